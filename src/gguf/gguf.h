#pragma once
// Open a GGUF file (version 2 or 3) and look; never trust it. Every count, offset and size is checked before
// it is used, and nothing is allocated by a number from the file alone. Errors are one line, exit code 65,
// and name the key or tensor and the byte offset.  Source: ggml docs/gguf.md; limits: reference of this
// project (ARCHITECTURE.md).

#include "base/result.h"
#include "tensor/tensor.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tally::gguf {

// One element of an array, integers and floats widened.
using Scalar = std::variant<bool, int64_t, uint64_t, float, double, std::string_view>;

// An array of one element type. Memory stays within the bytes of the file, whatever the type.
struct Array {
  uint32_t element_type = 0;              // GGUF value type id
  uint64_t count = 0;                     // elements
  std::string_view bytes;                 // the elements as stored, little endian; empty for strings
  std::vector<std::string_view> strings;  // element type string only
  std::vector<float> floats;              // element type f32 only

  size_t size() const { return count; }
  Scalar at(size_t i) const;  // Requires (checked): i < size()
};

// One metadata value. Typed getters of File are the way to read it.
struct Value {
  uint32_t type = 0;  // GGUF value type id
  std::variant<bool, int64_t, uint64_t, float, double, std::string_view, Array> data;
};

struct Metadata {
  std::string_view key;
  uint64_t offset = 0;  // of the key in the file
  Value value;
};

struct TensorInfo {
  std::string_view name;
  tensor::DType type = tensor::DType::kF32;
  tensor::Shape shape;
  uint64_t bytes = 0;
  uint64_t file_offset = 0;    // of its data, absolute
  uint64_t record_offset = 0;  // of its directory record, for messages
  uint32_t shard = 0;
};

// An open model file (or a set of split files), header parsed and checked, data unread.
// Threads: const methods may be called from any thread; read_tensor uses pread.
class File {
 public:
  // Opens `path`, and its siblings if it is shard 1 of a split model. Errors: kNoInput (cannot be opened, not
  // a regular file), kBadData (content), kIo.
  static base::Result<File> open(const std::string& path);

  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  uint32_t version() const;
  const std::string& path() const;
  uint64_t file_bytes() const;    // of all shards
  uint64_t header_bytes() const;  // of all shards
  std::span<const Metadata> metadata() const;
  std::span<const TensorInfo> tensors() const;

  const Value* find(std::string_view key) const;               // nullptr if absent
  const TensorInfo* find_tensor(std::string_view name) const;  // nullptr if absent

  // Typed getters. Absent key: the `required` forms are an error, the others give nullopt. Integers of any
  // width are accepted after a range check; a float never becomes an integer; an array is never read through
  // a scalar getter.
  base::Result<std::optional<uint64_t>> get_uint(std::string_view key, uint64_t min, uint64_t max) const;
  base::Result<std::optional<double>> get_float(std::string_view key) const;  // f32 or f64, finite
  base::Result<std::optional<bool>> get_bool(std::string_view key) const;
  base::Result<std::optional<std::string_view>> get_string(std::string_view key) const;
  base::Result<uint64_t> require_uint(std::string_view key, uint64_t min, uint64_t max) const;
  base::Result<double> require_float(std::string_view key) const;
  base::Result<std::string_view> require_string(std::string_view key) const;
  // Keys that are "scalar or one value a layer": `count` values either way. Bools read as 0 or 1. Absent:
  // empty.
  base::Result<std::vector<uint64_t>> get_uints(std::string_view key, size_t count, uint64_t min,
                                                uint64_t max) const;
  // Typed exactly: an array of another element type is an error. Absent: nullptr.
  base::Result<const std::vector<std::string_view>*> get_strings(std::string_view key) const;
  base::Result<const std::vector<float>*> get_floats(std::string_view key) const;
  // Arrays of any signed or unsigned integer type, each value in [min, max]. Absent: empty.
  base::Result<std::vector<int64_t>> get_ints(std::string_view key, int64_t min, int64_t max) const;

  // Reads bytes [begin, begin + out.size()) of a tensor's data. Errors: kIo, kBadData (file changed or was
  // cut meanwhile).
  base::Result<void> read_tensor(const TensorInfo& tensor, uint64_t begin, std::span<std::byte> out) const;

  // After the last read: an error if size or mtime of a shard changed since open.
  base::Result<void> check_unchanged() const;

 private:
  struct State;
  explicit File(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tally::gguf
