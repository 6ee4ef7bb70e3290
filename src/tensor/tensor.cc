#include "tensor/tensor.h"

#include "base/check.h"

namespace tally::tensor {
namespace {

constexpr DTypeInfo kTypes[] = {
    {DType::kF32, "F32", 1, 4},         {DType::kF16, "F16", 1, 2},
    {DType::kQ4_0, "Q4_0", 32, 18},     {DType::kQ4_1, "Q4_1", 32, 20},
    {DType::kQ5_0, "Q5_0", 32, 22},     {DType::kQ5_1, "Q5_1", 32, 24},
    {DType::kQ8_0, "Q8_0", 32, 34},     {DType::kQ2_K, "Q2_K", 256, 84},
    {DType::kQ3_K, "Q3_K", 256, 110},   {DType::kQ4_K, "Q4_K", 256, 144},
    {DType::kQ5_K, "Q5_K", 256, 176},   {DType::kQ6_K, "Q6_K", 256, 210},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18}, {DType::kIQ4_XS, "IQ4_XS", 256, 136},
    {DType::kI8, "I8", 1, 1},           {DType::kI16, "I16", 1, 2},
    {DType::kI32, "I32", 1, 4},         {DType::kI64, "I64", 1, 8},
    {DType::kF64, "F64", 1, 8},         {DType::kBF16, "BF16", 1, 2},
    {DType::kMXFP4, "MXFP4", 32, 17},
};

}  // namespace

std::span<const DTypeInfo> dtypes() { return kTypes; }

const DTypeInfo* find_dtype(uint32_t id) {
  for (const DTypeInfo& row : kTypes) {
    if (static_cast<uint32_t>(row.type) == id) return &row;
  }
  return nullptr;
}

const DTypeInfo& dtype_info(DType type) {
  const DTypeInfo* row = find_dtype(static_cast<uint32_t>(type));
  TALLY_CHECK(row != nullptr, "no such element type", static_cast<uint32_t>(type));
  return *row;
}

size_t row_bytes(DType type, size_t elements) {
  const DTypeInfo& info = dtype_info(type);
  TALLY_CHECK(elements % info.block_elements == 0, "row is not a multiple of the block", elements);
  return elements / info.block_elements * info.block_bytes;
}

}  // namespace tally::tensor
