#pragma once
// Write a GGUF version 3 file: for tests, synthetic models and `tally quantize`.

#include "base/result.h"
#include "gguf/gguf.h"
#include "tensor/tensor.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::gguf {

class StreamedFile;

// Collects metadata and tensors, then writes them in one go, or streams the tensors' data behind the header.
class Writer {
 public:
  void set_uint(std::string_view key, uint32_t value);
  void set_float(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, std::span<const std::string> values);
  void set_floats(std::string_view key, std::span<const float> values);
  void set_ints(std::string_view key, std::span<const int32_t> values);

  // A value of any type as another file has it, byte for byte.
  void set_value(std::string_view key, const Value& value);

  // Of the tensors' data; 32 until then. Does not write the key general.alignment.
  // Requires (checked): a power of two, at most 2^20.
  void set_alignment(uint64_t alignment);

  // `data` is copied. Requires (checked): its size is that of the type and shape.
  void add_tensor(std::string_view name, tensor::DType type, const tensor::Shape& shape,
                  std::span<const std::byte> data);

  // A tensor whose data is streamed. Requires (checked): either all tensors or none.
  void declare_tensor(std::string_view name, tensor::DType type, const tensor::Shape& shape);

  // The file up to where the data begins, and the bytes of the data behind it: a sparse file of both opens as
  // a model.
  std::string header() const;
  uint64_t data_bytes() const;
  // The whole file as bytes (tests cut and flip them).
  std::string bytes() const;
  // Writes to a temporary name beside `path`, syncs, renames. Errors: kIo.
  base::Result<void> write(const std::string& path) const;
  // Begins a temporary file beside `path` with the header. Errors: kIo; `path` exists and is no regular file.
  base::Result<StreamedFile> stream(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    tensor::DType type;
    tensor::Shape shape;
    uint64_t bytes = 0;
    std::string data;  // empty: declared
  };
  void add(std::string_view name, tensor::DType type, const tensor::Shape& shape);
  size_t padding(uint64_t bytes) const { return (alignment_ - bytes % alignment_) % alignment_; }

  uint64_t alignment_ = 32;
  std::string metadata_;
  uint64_t metadata_count_ = 0;
  std::vector<Tensor> tensors_;
};

// A file in the making: takes the tensors' data in order and in any pieces, then takes the place of `path` in
// one step. Until then `path` is untouched; destroyed before, the temporary is removed. Holds no data.
class StreamedFile {
 public:
  StreamedFile(StreamedFile&&) noexcept;
  StreamedFile& operator=(StreamedFile&&) noexcept;
  ~StreamedFile();

  // Appends data of the tensor whose turn it is, and the padding behind its last byte.
  // Requires (checked): no more than the tensor has left. Errors: kIo.
  base::Result<void> append(std::span<const std::byte> data);
  // Syncs and renames. Requires (checked): every tensor has all its data. Errors: kIo.
  base::Result<void> finish();
  uint64_t file_bytes() const;  // written so far

 private:
  friend class Writer;
  struct State;
  explicit StreamedFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tally::gguf
