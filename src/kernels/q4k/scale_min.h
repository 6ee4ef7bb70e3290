#pragma once
// The row of a Q4_K or Q5_K block, and the parts of its packed unit that the two types share (offsets: Unit).

#include "kernels/panel.h"
#include "tensor/blocks.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tally::kernels {

struct ScaleMinRow {
  uint16_t d, dmin;          // f16
  uint8_t scale[8], min[8];  // of each 32 elements, 0..63
  uint8_t code[256];
};

// Sets all but the codes from a BlockQ4_K or BlockQ5_K.
template <class Block>
void read_scales(const Block& block, ScaleMinRow* row) {
  row->d = block.d;
  row->dmin = block.dmin;
  for (int j = 0; j < 8; ++j) {
    const tensor::ScaleMin s = tensor::q4k_scale_min(block.sc, j);
    row->scale[j] = s.scale;
    row->min[j] = s.min;
  }
}

template <class Unit>
void put_scales(const ScaleMinRow& row, size_t r, uint8_t* unit) {
  std::memcpy(unit + Unit::kD + 2 * r, &row.d, 2);
  std::memcpy(unit + Unit::kMinD + 2 * r, &row.dmin, 2);
  for (size_t b = 0; b < 8; ++b) {
    unit[Unit::kScale + 16 * b + r] = row.scale[b];
    const int16_t min = row.min[b];
    std::memcpy(unit + Unit::kMin + b / 2 * 64 + 4 * r + b % 2 * 2, &min, 2);
  }
}

template <class Unit>
void get_scales(const uint8_t* unit, size_t r, ScaleMinRow* row) {
  std::memcpy(&row->d, unit + Unit::kD + 2 * r, 2);
  std::memcpy(&row->dmin, unit + Unit::kMinD + 2 * r, 2);
  for (size_t b = 0; b < 8; ++b) {
    row->scale[b] = unit[Unit::kScale + 16 * b + r];
    row->min[b] = unit[Unit::kMin + b / 2 * 64 + 4 * r + b % 2 * 2];  // the low byte of an s16 in 0..63
  }
}

inline float scale_min_value(const ScaleMinRow& row, size_t i) {
  const float scale = tensor::f16_to_f32(row.d) * static_cast<float>(row.scale[i / 32]);
  const float min = tensor::f16_to_f32(row.dmin) * static_cast<float>(row.min[i / 32]);
  return scale * static_cast<float>(row.code[i]) - min;
}

inline float scale_min_accumulate(const ScaleMinRow& w, const Int256Block& x, size_t token, float acc) {
  const int8_t* q = x.q + 256 * token;
  int32_t isum = 0, msum = 0;
  for (size_t b = 0; b < 8; ++b) {
    int32_t dot = 0;
    for (size_t i = 32 * b; i < 32 * b + 32; ++i) dot += w.code[i] * q[i];
    isum += w.scale[b] * dot;
    msum += w.min[b] * x.sum32[8 * token + b];
  }
  const float da = x.d[token];
  acc = std::fma(static_cast<float>(isum), tensor::f16_to_f32(w.d) * da, acc);
  return std::fma(-static_cast<float>(msum), tensor::f16_to_f32(w.dmin) * da, acc);
}

}  // namespace tally::kernels
