#pragma once
// f32 values to GGUF blocks: the `encode` of each LinearFormat (kernels.h has the contract). Private to the
// room. The types of 32 elements use the formulas of ggml's reference, byte for byte; the super-blocks search
// (fit.h).

#include <cstddef>

namespace tally::kernels {

bool encode_f32(const float* x, size_t k, std::byte* row);
bool encode_f16(const float* x, size_t k, std::byte* row);
bool encode_bf16(const float* x, size_t k, std::byte* row);
bool encode_q4_0(const float* x, size_t k, std::byte* row);
bool encode_q4_1(const float* x, size_t k, std::byte* row);
bool encode_q5_0(const float* x, size_t k, std::byte* row);
bool encode_q5_1(const float* x, size_t k, std::byte* row);
bool encode_q8_0(const float* x, size_t k, std::byte* row);
bool encode_q4k(const float* x, size_t k, std::byte* row);
bool encode_q5k(const float* x, size_t k, std::byte* row);
bool encode_q6k(const float* x, size_t k, std::byte* row);

}  // namespace tally::kernels
