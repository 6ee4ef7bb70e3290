// The ceilings of this machine: bytes read from memory a second by so many threads, operations a second of
// instructions, and of the kernels of each weight type.
#pragma once

#include "base/pool.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::measure {

// kKernel: the matrix kernel of one weight type, with weights and activations in the caches.
enum class RoofKind : uint8_t { kRead, kInt8, kF32, kKernel };

// Rows of activations multiplied at once for which kernels are measured: a sequence that decodes, a small
// batch of them, a piece of a prompt.
inline constexpr uint32_t kKernelRows[] = {1, 8, 64};

// A loop that does one thing and nothing else; apps fills a table of them from the kernels. `run` returns
// what depends on all that it did.
struct RoofProbe {
  RoofKind kind{};
  std::string name;  // of the instruction, of the form of reading, of the weight type
  double work = 1;   // operations of a round; kRead: unused
  std::function<uint64_t(const std::byte* data, size_t bytes, uint64_t rounds)> run;
  uint32_t rows = 0;  // kKernel: at once
};

// Reads `data` once on all threads of the pool: bytes a second. Requires: `data` as the probe wants it, in
// pieces of 4 MiB.
double read_rate(const RoofProbe& probe, base::ThreadPool& pool, std::span<const std::byte> data);
// Operations a second of all threads of the pool.
double operation_rate(const RoofProbe& probe, base::ThreadPool& pool);

using RatesByRows = std::map<uint32_t, double>;  // by rows at once

struct Roofs {
  std::map<uint32_t, double> bytes_per_s;               // by threads
  double int8_ops_per_s = 0, f32_ops_per_s = 0;         // of all threads; 0: this tier has no loop for it
  std::map<std::string, RatesByRows> kernel_ops_per_s;  // of all threads, by weight type ("q4_1")
  std::string isa;                                      // the tier that the operations were measured on
  std::string read_form;                                // the fastest
  bool disturbed = false;                               // others used the CPUs meanwhile

  bool empty() const { return bytes_per_s.empty(); }
  uint32_t threads_max() const { return empty() ? 0 : bytes_per_s.rbegin()->first; }
  // Of so many threads, straight lines between those measured. Requires: not empty.
  double read_at(uint32_t threads) const;
  // Operations a second of so many threads, of the kind that such weights ("F16", "Q4_1") take.
  double operations_at(uint32_t threads, std::string_view weight_type) const;
  // The same of the kernels of such weights, by rows at once; empty: they were not measured.
  RatesByRows kernels_at(uint32_t threads, std::string_view weight_type) const;
};

struct RoofRequest {
  std::vector<RoofProbe> probes;  // of one tier: its best loop for each kind of operation, all for reading
  std::string isa;
  uint32_t threads = 1;             // most
  std::span<const std::byte> data;  // touched, much larger than the caches
  std::function<void()> on_thread =
      {};  // called first on each thread that is started; the caller's own is its
};
// Measures in about a second: reading with 1, 2, 3 ... threads (beyond 8 with powers of two), operations with
// all. Each rate is the largest of three that another one confirms within 5 %, else the
// median.
Roofs measure_roofs(const RoofRequest& request);
double largest_confirmed(std::vector<double> rates);

// The rate with so many rows at once, if a call's time grows in straight lines between those measured.
// Requires: not empty.
double rate_with_rows(const RatesByRows& rates, double rows);

// {"isa", "bytes_per_s": {"1": rate}, "ops_per_s": {"int8": rate}, "kernel_ops_per_s": {"q4_1": {"8": rate}},
// "read_form", "disturbed"}
nlohmann::json roofs_json(const Roofs& roofs);
// Of untrusted JSON: what is no rate is left out; empty roofs where nothing is told.
Roofs parse_roofs(const nlohmann::json& value);

// The file that keeps the roofs of this machine below a directory of caches ("": none, nothing is kept).
std::string roofs_file(const std::string& directory);
// Absent: no file, none that can be read, of another machine, or of a version that did not measure kernels.
std::optional<Roofs> kept_roofs(const std::string& file);
// A file that cannot be written costs a measurement each time, nothing else.
void keep_roofs(const std::string& file, const Roofs& roofs);

}  // namespace tally::measure
