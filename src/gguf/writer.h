#pragma once
// Write a GGUF version 3 file: for tests, synthetic models and `tally quantize`.

#include "base/result.h"
#include "tensor/tensor.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::gguf {

// Collects metadata and tensors, then writes them in one go.
class Writer {
 public:
  void set_uint(std::string_view key, uint32_t value);
  void set_float(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, std::span<const std::string> values);
  void set_floats(std::string_view key, std::span<const float> values);
  void set_ints(std::string_view key, std::span<const int32_t> values);

  // `data` is copied. Requires (checked): its size is that of the type and shape.
  void add_tensor(std::string_view name, tensor::DType type, const tensor::Shape& shape,
                  std::span<const std::byte> data);

  // The whole file as bytes (tests cut and flip them).
  std::string bytes() const;
  // Writes to a temporary name beside `path`, syncs, renames. Errors: kIo.
  base::Result<void> write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    tensor::DType type;
    tensor::Shape shape;
    std::string data;
  };
  std::string header() const;  // up to the start of the data

  std::string metadata_;
  uint64_t metadata_count_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace tally::gguf
