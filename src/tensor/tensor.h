#pragma once
// What bytes mean: element types of GGUF tensors and views of them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tally::tensor {

// Values are the ids of the GGUF file format.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

// One row of the type table.
struct DTypeInfo {
  DType type;
  std::string_view name;
  uint32_t block_elements;  // elements in one block along dim[0]
  uint32_t block_bytes;
};

// Every type whose size is known, in order of id. Source: GGUF, ggml.h.
std::span<const DTypeInfo> dtypes();

// The row of `type`, or nullptr: a hole of the id space, a retired id, or a type whose size is not known
// here.
const DTypeInfo* find_dtype(uint32_t id);
const DTypeInfo& dtype_info(DType type);

// Bytes of `elements` values of `type` along dim[0]. Requires (checked): elements is a multiple of the block.
size_t row_bytes(DType type, size_t elements);

// dim[0] is innermost (the input length of a matrix), dim[1] the rows. Unused dimensions are 1.
struct Shape {
  std::array<uint64_t, 4> dim{1, 1, 1, 1};
  uint32_t rank = 1;

  uint64_t elements() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
  bool operator==(const Shape&) const = default;
};

// Does not own its bytes.
struct TensorView {
  DType type = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

}  // namespace tally::tensor
