#pragma once
// The loop of `tally quantize`: another weight type for a model file, tensor by tensor, through a few MiB of
// memory.

#include "base/pool.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "tensor/tensor.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::model {

// What can be asked for. The _M types mix in more precise ones where it pays, the _S types less so.
struct QuantizeType {
  std::string_view name;
  uint32_t file_type;    // general.file_type
  tensor::DType weight;  // of most matrices
  enum class Mix : uint8_t { kPlain, kSmall, kMedium } mix;
};
std::span<const QuantizeType> quantize_types();
const QuantizeType* find_quantize_type(std::string_view name);  // in any case; nullptr: no such type

struct QuantizeOptions {
  const QuantizeType* type = nullptr;
  bool allow_requantize = false;  // else only F32, F16 and BF16 may change their type
  bool measure = false;           // fill the errors of the report
  // Called now and then with bytes of tensor data read so far and in all; returning false stops, leaving
  // nothing.
  std::function<bool(uint64_t done, uint64_t total)> progress;
};

struct QuantizedTensor {
  std::string name;
  tensor::DType from = tensor::DType::kF32, to = tensor::DType::kF32;
  uint64_t elements = 0, bytes_before = 0, bytes_after = 0;
  double relative_rms = 0, max_error = 0;  // of the new values against the old; 0 if not measured
};

struct QuantizeReport {
  std::vector<QuantizedTensor> tensors;
  uint64_t bytes_before = 0, bytes_after = 0;  // of the files
  double bits_per_weight = 0;                  // of all tensors written
};

// Writes `out_path` from `in`: metadata and order of tensors as they are, general.file_type and
// general.quantization_version set, one file whatever `in` was split into.
// Ensures: the bytes depend on the input and the type only; an existing file is replaced in one step, and only
// when all is written and synced.
// Threads: pieces of a tensor run on `pool`, whose threads are in IEEE mode (not set_float_mode). Memory: about
// 3 MiB a thread.
// Errors: kBadData (a type without kernel; a quantized tensor without allow_requantize; a value that is not
// finite or beyond the new type; the input changed meanwhile), kConfig (out_path is the input), kIo,
// kUnavailable (stopped).
base::Result<QuantizeReport> quantize(const gguf::File& in, const std::string& out_path,
                                      const kernels::KernelTable& kernels, const QuantizeOptions& options,
                                      base::ThreadPool& pool);

}  // namespace tally::model
