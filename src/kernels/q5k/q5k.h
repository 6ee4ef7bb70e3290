#pragma once
// Q5_K: Q4_K with a fifth bit. Private to the room.
//
// Packed unit: 16 rows x 256 k, 3008 bytes; units lie as [32-row group][block][rows 0..15, rows 16..31].
//   320 b         nibbles of sub-block b, b in 0..7 (super_block/nibbles.h)
//   320 b + 256   high bits: in byte 4 r + i, bit j is bit 4 of code k = 4 j + i and bit 4 + j that of code k
//   = 16 + 4 j + i kD, kMinD, kScale, kMin   as in q4k.h
// Arithmetic: as in q4k.h with codes 0..31 (isum <= 63.5 M).
// Source: ggml-common.h (block_q5_K).

#include "kernels/kernels.h"

#include <cstddef>

namespace tally::kernels {

struct Q5KUnit {
  static constexpr size_t kSubBlock = 320;  // bytes from one sub-block's codes to the next
  static constexpr size_t kHigh = 256;      // the high bits inside a sub-block
  static constexpr size_t kD = 2560, kMinD = 2592, kScale = 2624, kMin = 2752, kBytes = 3008;
};

void q5k_amx(const LinearArgs& args);
void q5k_avx512vnni(const LinearArgs& args);
void q5k_avx512(const LinearArgs& args);
void q5k_avxvnni(const LinearArgs& args);
void q5k_avx2(const LinearArgs& args);
void q5k_scalar(const LinearArgs& args);

}  // namespace tally::kernels
