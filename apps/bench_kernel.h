#pragma once
// The linear kernels of every weight type and tier on their own, against the roofs of the machine.
//
// The matrix streams from memory: as many copies of it as leave the caches behind are multiplied in turn,
// each on all threads. A repetition runs for at least 20 ms. Values are random; the panels of activations are
// made beforehand.

#include "base/accounts.h"
#include "base/result.h"
#include "bench_roof.h"
#include "kernels/kernels.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tally::apps {

struct KernelBenchSettings {
  std::vector<kernels::Isa> isas;  // each one the host has
  bool scalar_at_one_token = true;
  std::vector<tensor::DType> types;
  std::vector<uint32_t> tokens;
  uint32_t rows = 4096, k = 4096, repetitions = 5;
};

struct KernelMeasure {
  tensor::DType type{};
  kernels::Isa isa{};
  uint32_t tokens = 0;
  std::vector<double> seconds;       // of one matrix
  double bytes = 0, operations = 0;  // of one matrix: packed bytes; two for each product
  double operations_roof = 0;        // a second, of its tier; 0: none
};

// Bytes of memory that benches work on: twice the last cache, 256 MiB to 1 GiB.
uint64_t bench_working_bytes();

// Measures every row. `arena` holds bench_working_bytes() + kTailPadding, and is overwritten; `go_on` is
// asked between two measurements, told how far they are, and may stop them (the result is what was complete).
std::vector<KernelMeasure> bench_kernels(
    const KernelBenchSettings& settings, const base::Arena& arena, base::ThreadPool& pool, Roofs& roofs,
    const std::function<bool(double share, const std::string& now)>& go_on);

}  // namespace tally::apps
