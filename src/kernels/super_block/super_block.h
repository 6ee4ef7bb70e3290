#pragma once
// What the K-quants share outside their fast kernels: the walk over units when packing and unpacking, and the
// scalar definition. A Format (codes.h of each family) says how one row of one 256-block is read from the
// file, put into a packed unit and read back:
//   Unit, Block                                    the byte offsets; the block of the file
//   Row                                            one row of a block, decoded: codes, scales, f16 factors
//   Row read(const Block&)
//   void put(const Row&, size_t r, uint8_t* unit)  r in 0..15
//   Row get(const uint8_t* unit, size_t r)
//   float value(const Row&, size_t i)              element i of the block
//   float accumulate(const Row&, const Int256Block&, size_t token, float acc)   one block of Law 1's chain
//
// Baseline objects only: the functions of a Format are inline and may become weak symbols.

#include "kernels/linear_loop.h"

#include <cstring>

namespace tally::kernels {

constexpr size_t kSuperBlock = 256;

template <class Format>
size_t super_group_bytes(size_t k) {
  return k / kSuperBlock * 2 * Format::Unit::kBytes;
}

template <class Format>
void super_pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  const size_t blocks = k / kSuperBlock;
  std::memset(group, 0, super_group_bytes<Format>(k));
  auto* unit = reinterpret_cast<uint8_t*>(group);
  for (size_t b = 0; b < blocks; ++b) {
    for (size_t half = 0; half < 2; ++half, unit += Format::Unit::kBytes) {
      for (size_t r = 0; r < 16 && 16 * half + r < row_count; ++r) {
        typename Format::Block block;
        std::memcpy(&block, rows + ((16 * half + r) * blocks + b) * sizeof(block), sizeof(block));
        Format::put(Format::read(block), r, unit);
      }
    }
  }
}

// The unit of a lane (0..31) of a group in block b.
template <class Format>
const uint8_t* super_unit(const std::byte* group, size_t lane, size_t b) {
  return reinterpret_cast<const uint8_t*>(group) + (2 * b + lane / 16) * Format::Unit::kBytes;
}

template <class Format>
void super_unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t b = 0; b < k / kSuperBlock; ++b) {
    const typename Format::Row row = Format::get(super_unit<Format>(group, lane, b), lane % 16);
    for (size_t i = 0; i < kSuperBlock; ++i) out[kSuperBlock * b + i] = Format::value(row, i);
  }
}

template <class Format>
void super_dequantize(const std::byte* data, size_t k, float* out) {
  for (size_t b = 0; b < k / kSuperBlock; ++b) {
    typename Format::Block block;
    std::memcpy(&block, data + b * sizeof(block), sizeof(block));
    const typename Format::Row row = Format::read(block);
    for (size_t i = 0; i < kSuperBlock; ++i) out[kSuperBlock * b + i] = Format::value(row, i);
  }
}

// The definition: one accumulator a (row, token), blocks in ascending k.
template <class Format>
void super_run_scalar(const LinearArgs& args) {
  const size_t blocks = args.k / kSuperBlock;
  each_row(args, super_group_bytes<Format>(args.k), blocks * kInt256BlockBytes,
           [blocks](const std::byte* group, size_t lane, const PanelTile& tile, float* acc) {
             for (size_t b = 0; b < blocks; ++b) {
               const typename Format::Row row = Format::get(super_unit<Format>(group, lane, b), lane % 16);
               const Int256Block x = int256_block(tile.bytes, tile.tokens, b);
               for (size_t t = 0; t < tile.tokens; ++t) acc[t] = Format::accumulate(row, x, t, acc[t]);
             }
           });
}

}  // namespace tally::kernels
