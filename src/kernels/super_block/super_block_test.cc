// The formats with blocks of 256: the file's values, the packed layout, and every variant against the scalar
// definition, bit for bit.

#include "kernels/super_block/super_block.h"

#include "kernels/runnable_test_support.h"
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace tally::kernels {

namespace {

using tensor::DType;

struct Type {
  const char* name;
  LinearFamily family;
  size_t block_bytes, unit_bytes;
  std::vector<size_t> halves;     // offsets of f16 fields in the file's block
  size_t scale_begin, scale_end;  // of the sub-block scales there
  // Bytes of them that make the scales largest in magnitude, largest with the other sign, and zero;
  // `zero_high` for the bytes from high_begin to high_end, which hold the upper bits of scales that are
  // stored plus 32.
  uint8_t largest, smallest, zero_high;
  size_t high_begin, high_end;
  size_t d_offset, scale_offset;  // in the packed unit
  size_t sub_block;
};

std::vector<Type> types() {
  return {
      {"q2_k", q2k_family(), 84, 1344, {80, 82}, 0, 16, 0xFF, 0xFF, 0, 0, 0, 1024, 1088, 128},
      {"q3_k", q3k_family(), 110, 1824, {108}, 96, 108, 0, 0xFF, 0xAA, 104, 108, 1536, 1568, 192},
      {"q4_k", q4k_family(), 144, 2496, {0, 2}, 4, 16, 0xFF, 0xFF, 0, 0, 0, 2048, 2112, 256},
      {"q5_k", q5k_family(), 176, 3008, {0, 2}, 4, 16, 0xFF, 0xFF, 0, 0, 0, 2560, 2624, 320},
      {"q6_k", q6k_family(), 210, 3360, {208}, 192, 208, 0x80, 0x7F, 0, 0, 0, 3072, 3104, 384},
      {"iq4_xs", iq4_xs_family(), 136, 2208, {0}, 2, 8, 0, 0xFF, 0xAA, 2, 4, 2048, 2080, 256},
  };
}

LinearFn scalar_of(const Type& type) { return type.family.variants.back().entry; }

enum class Kind { kRandom, kLargest, kSmallest, kZeroScales, kOddHalves };
constexpr Kind kKinds[] = {Kind::kRandom, Kind::kLargest, Kind::kSmallest, Kind::kZeroScales,
                           Kind::kOddHalves};

// Rows of blocks as they lie in a file. kLargest and kSmallest drive the integer sums to their bounds.
std::vector<std::byte> file_rows(const Type& type, size_t rows, size_t k, Kind kind, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> half(-0.02f, 0.02f);
  const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF,
                          0x7C00, 0xFC00, 0x7E00, 0x3C00, 0x1400};
  std::vector<std::byte> data(rows * k / 256 * type.block_bytes);
  for (std::byte& b : data)
    b = kind == Kind::kLargest ? std::byte{255} : static_cast<std::byte>(rng() & 255u);
  for (size_t at = 0; at < data.size(); at += type.block_bytes) {
    for (size_t i = type.scale_begin; i < type.scale_end; ++i) {
      const bool high = i >= type.high_begin && i < type.high_end;
      if (kind == Kind::kZeroScales) data[at + i] = std::byte{high ? type.zero_high : uint8_t{0}};
      if (kind == Kind::kLargest) data[at + i] = std::byte{type.largest};
      if (kind == Kind::kSmallest) data[at + i] = std::byte{type.smallest};
    }
    for (const size_t i : type.halves) {
      const uint16_t bits =
          kind == Kind::kOddHalves ? odd[rng() % std::size(odd)] : tensor::f32_to_f16(half(rng));
      std::memcpy(&data[at + i], &bits, 2);
    }
  }
  return data;
}

std::vector<std::byte> pack_rows(const Type& type, const std::vector<std::byte>& data, size_t rows,
                                 size_t k) {
  const LinearFormat& format = type.family.format;
  const size_t groups = (rows + kGroupRows - 1) / kGroupRows, row_bytes = k / 256 * type.block_bytes;
  std::vector<std::byte> packed(groups * format.group_bytes(k) + kTailPadding, std::byte{0xA5});
  for (size_t g = 0; g < groups; ++g) {
    format.pack(data.data() + g * kGroupRows * row_bytes, std::min(kGroupRows, rows - g * kGroupRows), k,
                packed.data() + g * format.group_bytes(k));
  }
  return packed;
}

// Activations of one token: block by block the scale and 256 codes.
struct Token {
  std::vector<float> d;
  std::vector<int8_t> q;
};

Token make_token(size_t k, Kind kind, uint32_t seed) {
  std::mt19937 rng(seed);
  Token token;
  for (size_t i = 0; i < k; ++i) {
    int q = static_cast<int>(rng() % 255u) - 127;
    if (kind == Kind::kLargest) q = seed % 2 == 0 ? 127 : -127;
    if (kind == Kind::kSmallest) q = (i / (1 + seed % 64)) % 2 == 0 ? 127 : -127;
    token.q.push_back(static_cast<int8_t>(q));
  }
  const float odd[] = {0.0f, 1e-38f, 1e30f, 1.0f};
  for (size_t b = 0; b < k / 256; ++b)
    token.d.push_back(kind == Kind::kOddHalves ? odd[rng() % 4]
                                               : 1e-3f * static_cast<float>(1 + rng() % 1000));
  return token;
}

// The panel of panel.h, 64-byte aligned as the door asks.
struct Panel {
  std::vector<std::byte> storage;
  std::byte* bytes;
  explicit Panel(const std::vector<Token>& tokens, size_t k)
      : storage(panel_bytes(PanelKind::kInt256, tokens.size(), k) + 64) {
    bytes = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64);
    const size_t blocks = k / 256;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const PanelTile tile = panel_tile(bytes, tokens.size(), blocks * kInt256BlockBytes, i / kPanelTile);
      for (size_t b = 0; b < blocks; ++b)
        fill(int256_block(tile.bytes, tile.tokens, b), i % kPanelTile, tokens[i], b);
    }
  }
  static void fill(const Int256Block& block, size_t t, const Token& token, size_t b) {
    const int8_t* q = token.q.data() + 256 * b;
    std::memcpy(const_cast<int8_t*>(block.q) + 256 * t, q, 256);
    const_cast<float*>(block.d)[t] = token.d[b];
    for (size_t g = 0; g < 16; ++g) {
      int sum = 0, next = 0;
      for (size_t i = 0; i < 16; ++i) sum += q[16 * g + i], next += q[16 * (g ^ 1) + i];
      const_cast<int16_t*>(block.sum16)[16 * t + g] = static_cast<int16_t>(sum);
      const_cast<int16_t*>(block.sum32)[8 * t + g / 2] = static_cast<int16_t>(sum + next);
    }
  }
};

std::vector<Token> make_tokens(size_t count, size_t k, Kind kind) {
  std::vector<Token> tokens;
  for (size_t t = 0; t < count; ++t) tokens.push_back(make_token(k, kind, static_cast<uint32_t>(100 + t)));
  return tokens;
}

constexpr float kUntouched = -12345.5f;

// One matrix times one panel. `out` begins one float after an alignment boundary and its rows are an odd
// stride apart.
struct Case {
  size_t rows, k, tokens;
  size_t group_begin, group_end;
};
std::vector<float> multiply(LinearFn run, const Case& c, const std::vector<std::byte>& packed,
                            const Panel& panel, const LinearTuning& tuning = {}) {
  const size_t stride = c.rows + 3;
  std::vector<float> out(1 + c.tokens * stride, kUntouched);
  run({packed.data(), c.rows, c.k, panel.bytes, c.tokens, out.data() + 1, stride, c.group_begin, c.group_end,
       tuning});
  return out;
}

// Bits are equal; where the definition is NaN the sign and payload of the NaN are free.
void expect_equal(const std::vector<float>& want, const std::vector<float>& got) {
  ASSERT_EQ(want.size(), got.size());
  if (std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(want[i]), std::bit_cast<uint32_t>(got[i]))
        << i << ": " << want[i] << " and " << got[i];
  }
}

void compare_variants(const Type& type, const Case& c, Kind kind) {
  const std::vector<std::byte> packed = pack_rows(type, file_rows(type, c.rows, c.k, kind, 7), c.rows, c.k);
  const Panel panel(make_tokens(c.tokens, c.k, kind), c.k);
  const std::vector<float> want = multiply(scalar_of(type), c, packed, panel);
  for (const LinearVariant& variant : runnable(type.family)) {
    SCOPED_TRACE(testing::Message() << variant.name << " rows " << c.rows << " k " << c.k << " tokens "
                                    << c.tokens << " groups " << c.group_begin << ".." << c.group_end
                                    << " kind " << static_cast<int>(kind));
    expect_equal(want, multiply(variant.entry, c, packed, panel));
  }
}

// The code of row r and element k as the layout's table says it, byte by byte.
int code_at(const Type& type, const std::byte* unit, size_t r, size_t k) {
  const size_t in = k % 32, j = in % 16 / 4, i = in % 4;
  const std::byte* sub = unit + type.sub_block * (k / 32);
  if (type.sub_block < 256) {
    const int two = (std::to_integer<int>(sub[64 * (in / 16) + 4 * r + i]) >> (2 * j)) & 3;
    if (type.sub_block == 128) return two;
    return two | (((std::to_integer<int>(sub[128 + 4 * r + i]) >> (in / 4)) & 1) << 2);
  }
  const bool upper = in >= 16;
  const int nibble = (std::to_integer<int>(sub[64 * j + 4 * r + i]) >> (upper ? 4 : 0)) & 15;
  if (type.sub_block == 256) return nibble;
  if (type.sub_block == 320) {
    const int high = std::to_integer<int>(sub[256 + 4 * r + i]);
    return nibble | (((high >> (upper ? 4 + j : j)) & 1) << 4);
  }
  const int high = std::to_integer<int>(sub[256 + 64 * (j / 2) + 4 * r + i]);
  return nibble | (((high >> ((j % 2) * 4 + (upper ? 2 : 0))) & 3) << 4);
}

uint16_t u16_at(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

// The value of row r and element k (0..255) of a packed unit.
float value_at(const Type& type, const std::byte* unit, size_t r, size_t k) {
  const int code = code_at(type, unit, r, k);
  const float d = tensor::f16_to_f32(u16_at(unit + type.d_offset + 2 * r));
  const auto signed_scale = [&](size_t elements) {
    return static_cast<float>(static_cast<int8_t>(unit[type.scale_offset + 16 * (k / elements) + r]));
  };
  if (type.family.format.type == DType::kIQ4_XS)
    return d * signed_scale(32) * static_cast<float>(tensor::kIq4Values[code]);
  if (type.halves.size() == 1)
    return d * signed_scale(16) * static_cast<float>(code - (type.sub_block == 384 ? 32 : 4));
  const size_t b = k / 32;
  const float dmin = tensor::f16_to_f32(u16_at(unit + type.d_offset + 32 + 2 * r));
  if (type.sub_block == 128) {
    const int both = std::to_integer<int>(unit[type.scale_offset + 16 * (k / 16) + r]);
    return d * static_cast<float>(both & 15) * static_cast<float>(code) -
           dmin * static_cast<float>(both >> 4);
  }
  const int scale = std::to_integer<int>(unit[type.scale_offset + 16 * b + r]);
  const int min = u16_at(unit + type.scale_offset + 128 + 64 * (b / 2) + 4 * r + 2 * (b % 2));
  return d * static_cast<float>(scale) * static_cast<float>(code) - dmin * static_cast<float>(min);
}

// The packed bytes are a contract between every kernel: values rebuilt from the table's offsets are the
// file's values.
TEST(SuperBlock, PackedUnitsFollowTheTable) {
  for (const Type& type : types()) {
    const auto data = file_rows(type, 32, 512, Kind::kRandom, 3);
    const auto packed = pack_rows(type, data, 32, 512);
    std::vector<float> want(512);
    for (size_t row = 0; row < 32; ++row) {
      type.family.format.dequantize(data.data() + row * 2 * type.block_bytes, 512, want.data());
      for (size_t k = 0; k < 512; ++k) {
        const std::byte* unit = packed.data() + (2 * (k / 256) + row / 16) * type.unit_bytes;
        ASSERT_EQ(want[k], value_at(type, unit, row % 16, k % 256))
            << type.name << " row " << row << " k " << k;
      }
    }
  }
}

// The sums of linear_test.cc stay far from the bounds of 16-bit intermediates; these reach them.
TEST(SuperBlock, EveryVariantEqualsScalarAtTheExtremes) {
  set_float_mode();
  for (const Type& type : types()) {
    for (const Kind kind : kKinds) {
      for (const size_t tokens : {1u, 4u, 16u, 21u}) compare_variants(type, {63, 2304, tokens, 0, 2}, kind);
    }
  }
}

// How a kernel walks memory, and when it asks for what, changes no bit.
TEST(SuperBlock, TuningChangesNothing) {
  set_float_mode();
  constexpr Case kCase{40, 512, 37, 0, 2};
  for (const Type& type : types()) {
    const auto packed =
        pack_rows(type, file_rows(type, kCase.rows, kCase.k, Kind::kRandom, 9), kCase.rows, kCase.k);
    const Panel panel(make_tokens(kCase.tokens, kCase.k, Kind::kRandom), kCase.k);
    const std::vector<float> want = multiply(scalar_of(type), kCase, packed, panel);
    for (const LinearVariant& variant : runnable(type.family)) {
      for (const LinearTuning tuning : {LinearTuning{0, 1}, LinearTuning{0, 32768}, LinearTuning{16384, 1}}) {
        SCOPED_TRACE(testing::Message() << variant.name << " prefetch " << tuning.prefetch_bytes << " chunk "
                                        << tuning.chunk_bytes);
        expect_equal(want, multiply(variant.entry, kCase, packed, panel, tuning));
      }
    }
  }
}

// Sets the f16 factors of every block: d to `d`, dmin (where there is one) to `dmin`.
void set_factors(const Type& type, float d, float dmin, std::vector<std::byte>* data) {
  for (size_t at = 0; at < data->size(); at += type.block_bytes) {
    for (size_t i = 0; i < type.halves.size(); ++i) {
      const uint16_t bits = tensor::f32_to_f16(i == 0 ? d : dmin);
      std::memcpy(data->data() + at + type.halves[i], &bits, 2);
    }
  }
}

// sum over k of value * q for one row of one block whose values are integers.
int64_t integer_sum(const Type& type, const std::byte* block, const Token& token) {
  float values[256];
  type.family.format.dequantize(block, 256, values);
  int64_t sum = 0;
  for (size_t k = 0; k < 256; ++k) sum += static_cast<int64_t>(values[k]) * token.q[k];
  return sum;
}

// With d = dmin = da = 1 a block's result is f32(isum) - f32(msum); both integers come from the file's values
// instead.
TEST(SuperBlock, IntegerPartsAreExact) {
  set_float_mode();
  constexpr size_t kRows = 32;
  for (const Type& type : types()) {
    std::vector<LinearVariant> list = runnable(type.family);
    list.push_back(type.family.variants.back());
    for (const Kind kind : {Kind::kRandom, Kind::kLargest, Kind::kSmallest}) {
      std::vector<std::byte> data = file_rows(type, kRows, 256, kind, 21), codes = data, mins = data;
      set_factors(type, 1, 1, &data);
      set_factors(type, 1, 0, &codes);
      set_factors(type, 0, -1, &mins);  // value = +min
      std::vector<Token> tokens = make_tokens(5, 256, kind);
      for (Token& token : tokens) token.d[0] = 1;
      const auto packed = pack_rows(type, data, kRows, 256);
      const Panel panel(tokens, 256);
      for (const LinearVariant& variant : list) {
        const auto got = multiply(variant.entry, {kRows, 256, tokens.size(), 0, 1}, packed, panel);
        for (size_t i = 0; i < tokens.size() * kRows; ++i) {
          const size_t t = i / kRows, r = i % kRows;
          const int64_t isum = integer_sum(type, &codes[r * type.block_bytes], tokens[t]);
          const int64_t msum =
              type.halves.size() == 1 ? 0 : integer_sum(type, &mins[r * type.block_bytes], tokens[t]);
          ASSERT_EQ(got[1 + t * (kRows + 3) + r], static_cast<float>(isum) - static_cast<float>(msum))
              << variant.name << " row " << r << " token " << t << " kind " << static_cast<int>(kind);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tally::kernels
