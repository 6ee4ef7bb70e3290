#pragma once
// Which type each tensor of a quantized file gets: the mixes of llama.cpp's llama-quantize, from tensor names
// and shapes alone.  Source: llama-quant.cpp.

#include "gguf/gguf.h"
#include "tensor/tensor.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace tally::model {

struct QuantizeType;

// What a choice depends on besides the tensor itself.
struct MixContext {
  uint32_t layers = 0;   // 1 + the largest N of blk.N
  uint64_t experts = 0;  // dim[2] of the expert tensors; 0: dense
  bool tied_output = false;
  bool shared_values =
      false;  // 80 layers with fewer value rows than query rows: attn_v is small and used often
};
MixContext mix_context(std::span<const gguf::TensorInfo> tensors);

// Vectors, norms, routers, position tables and other small ones keep their precision.
bool stays_float(const gguf::TensorInfo& tensor);

// The type of a matrix, rows that the type's block does not divide included (Q4_K -> Q5_0, Q5_K -> Q5_1, Q6_K
// -> Q8_0, any of those and the rest -> F16).
tensor::DType mixed_type(const QuantizeType& wanted, const gguf::TensorInfo& tensor,
                         const MixContext& context);

}  // namespace tally::model
