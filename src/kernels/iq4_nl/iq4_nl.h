#pragma once
// IQ4_NL: w = d * kIq4Values[c], c in 0..15, one f16 d for 32 values of a row.
//
// Packed unit: that of Q4_0 (q4_0/q4_0.h), 288 bytes, 4.5 bits a weight. Codes stay nibbles in memory and
// meet their table in registers. Panel: kInt32.
// Arithmetic, blocks ascending: acc = fma(f32(sum of kIq4Values[c] * a), d * d_a, acc); |sum| <= 32 * 127 *
// 127 = 0.5 M, exact.
// Source: ggml-common.h (block_iq4_nl, kvalues_iq4nl).

#include "kernels/linear.h"

namespace tally::kernels {

inline constexpr size_t kIq4NlUnit = 288, kIq4NlScale = 256;

void iq4_nl_amx(const LinearArgs& args);
void iq4_nl_scalar(const LinearArgs& args);
void iq4_nl_avx2(const LinearArgs& args);
void iq4_nl_avxvnni(const LinearArgs& args);
void iq4_nl_avx512(const LinearArgs& args);
void iq4_nl_avx512vnni(const LinearArgs& args);

}  // namespace tally::kernels
