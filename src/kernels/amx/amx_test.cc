// The emulated tile unit against its definition, and the AMX rows of every linear family where their own
// paths matter: below and at their first number of tokens, ragged last tiles, odd numbers of tiles, several
// chunks. The tests that run over all rows (linear_test.cc, super_block/super_block_test.cc) have these rows
// as well.

#define TALLY_EMULATE
#include "kernels/intrin_amx.h"
#include "kernels/linear_data.h"
#include "kernels/runnable_test_support.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

namespace tally::kernels {

namespace {

using emulated::TileConfig;
using emulated::Tiles;
using tensor::DType;

// The AMX rows of a type that can run here.
std::vector<LinearFn> amx_rows(const LinearFamily& family) {
  std::vector<LinearFn> list;
  for (const LinearVariant& v : runnable(family))
    if (v.isa == Isa::kAmx) list.push_back(v.entry);
  return list;
}

struct Shape {
  size_t m, k, n;  // tokens, bytes of k, columns
};

// Tiles 0, 1, 2 as C, A, B.
template <class Multiply>
std::vector<int32_t> emulated_product(const Shape& s, const std::vector<uint8_t>& a,
                                      const std::vector<uint8_t>& b, Multiply multiply) {
  TileConfig config;
  config.shape(0, s.m, 4 * s.n);
  config.shape(1, s.m, s.k);
  config.shape(2, s.k / 4, 4 * s.n);
  Tiles tiles(config);
  std::vector<int32_t> c(s.m * 17);  // rows 17 apart: what lies behind a row of C stays
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<int32_t>(0x7FFFFF00 + i);
  tiles.load<0>(c.data(), 68);
  tiles.load<1>(a.data(), 64);
  tiles.load<2>(b.data(), 64);
  multiply(tiles);
  tiles.store<0>(c.data(), 68);
  return c;
}

std::vector<int32_t> plain_product(const Shape& s, const std::vector<uint8_t>& a,
                                   const std::vector<uint8_t>& b, bool signed_a, bool signed_b) {
  const auto value = [](uint8_t byte, bool is_signed) {
    return is_signed ? static_cast<int32_t>(static_cast<int8_t>(byte)) : int32_t{byte};
  };
  std::vector<int32_t> c(s.m * 17);
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<int32_t>(0x7FFFFF00 + i);
  for (size_t m = 0; m < s.m; ++m)
    for (size_t n = 0; n < s.n; ++n)
      for (size_t k = 0; k < s.k; ++k) {
        const int32_t product =
            value(a[64 * m + k], signed_a) * value(b[64 * (k / 4) + 4 * n + k % 4], signed_b);
        c[17 * m + n] =
            static_cast<int32_t>(static_cast<uint32_t>(c[17 * m + n]) + static_cast<uint32_t>(product));
      }
  return c;
}

TEST(EmulatedTiles, ProductsAreThoseOfTheDefinition) {
  if (!host_has(Isa::kAvx2)) return;
  Random random(5);
  for (const Shape s : {Shape{16, 64, 16}, {1, 64, 16}, {13, 32, 16}, {16, 4, 1}, {7, 60, 9}}) {
    for (const int mode : {0, 1, 2}) {  // any bytes; the largest; one
      std::vector<uint8_t> a(16 * 64), b(16 * 64);
      for (uint8_t& v : a) v = mode == 1 ? 0x80 : static_cast<uint8_t>(mode == 2 ? 1 : random() & 255u);
      for (uint8_t& v : b) v = mode == 1 ? 0xFF : static_cast<uint8_t>(mode == 2 ? 1 : random() & 255u);
      const auto at = testing::Message() << s.m << " x " << s.k << " x " << s.n << " mode " << mode;
      EXPECT_EQ(emulated_product(s, a, b, [](auto& t) { t.template dot_ss<0, 1, 2>(); }),
                plain_product(s, a, b, true, true))
          << at;
      EXPECT_EQ(emulated_product(s, a, b, [](auto& t) { t.template dot_su<0, 1, 2>(); }),
                plain_product(s, a, b, true, false))
          << at;
      EXPECT_EQ(emulated_product(s, a, b, [](auto& t) { t.template dot_us<0, 1, 2>(); }),
                plain_product(s, a, b, false, true))
          << at;
    }
  }
}

TEST(EmulatedTiles, BeginAsZeroAndLoadTheirShapeOnly) {
  TileConfig config;
  config.shape(7, 3, 8);
  Tiles tiles(config);
  std::vector<uint8_t> source(3 * 10), out(3 * 10, 9);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i + 1);
  tiles.store<7>(out.data(), 10);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % 10 < 8 ? 0 : 9) << i;
  tiles.load<7>(source.data(), 10);
  tiles.store<7>(out.data(), 10);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % 10 < 8 ? i + 1 : 9) << i;
  tiles.zero<7>();
  tiles.store<7>(out.data(), 10);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % 10 < 8 ? 0 : 9) << i;
}

// What the CPU refuses ends the emulation as well: a wrong shape would pass every test here and die on AMX.
TEST(EmulatedTilesDeathTest, RefuseWhatTheCpuRefuses) {
  const auto config = [](size_t c_rows, size_t a_bytes, size_t b_rows, size_t b_bytes) {
    TileConfig tiles;
    tiles.shape(0, c_rows, 64);
    tiles.shape(1, 16, a_bytes);
    tiles.shape(2, b_rows, b_bytes);
    return tiles;
  };
  const auto multiply = [](const TileConfig& shapes) {
    Tiles tiles(shapes);
    tiles.dot_su<0, 1, 2>();
  };
  EXPECT_DEATH(multiply(config(15, 64, 16, 64)), "") << "rows of C and A differ";
  EXPECT_DEATH(multiply(config(16, 32, 16, 64)), "") << "A has half of B's k";
  EXPECT_DEATH(multiply(config(16, 64, 16, 32)), "") << "B has half of C's columns";
  EXPECT_DEATH(multiply(config(16, 64, 0, 0)), "") << "B has no shape";
  EXPECT_DEATH(multiply(config(17, 64, 16, 64)), "") << "17 rows";
  EXPECT_DEATH(multiply(config(16, 64, 16, 0)), "") << "rows of no bytes";
}

class AmxTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { set_float_mode(); }

  const LinearFormat& format() const { return family_.format; }

  LinearFamily family_ = linear_families()[GetParam()];
  Random random_{static_cast<uint32_t>(GetParam() + 1)};
};

INSTANTIATE_TEST_SUITE_P(Families, AmxTest, testing::Range(size_t{0}, kLinearFormats),
                         [](const testing::TestParamInfo<size_t>& family) {
                           return std::string(
                               tensor::dtype_info(linear_families()[family.param].format.type).name);
                         });

TEST(Amx, TheTypesItPaysForHaveARow) {
  using enum DType;
  for (const DType type : {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS})
    for (const LinearFamily& family : linear_families())
      if (family.format.type == type) {
        EXPECT_EQ(family.variants.front().isa, Isa::kAmx) << tensor::dtype_info(type).name;
        EXPECT_EQ(amx_rows(family).empty(), !host_has(Isa::kAvx2)) << tensor::dtype_info(type).name;
      }
}

constexpr float kUntouched = -12345.5f;

// One matrix and the activations of `tokens` tokens, of which a run takes the first ones.
struct Problem {
  const LinearFormat& format;
  size_t rows, k;
  AlignedBytes weights;
  std::vector<float> x;

  // Row t of the result at t * (rows + 3); a row more in front and behind.
  std::vector<float> run(LinearFn fn, size_t tokens, const LinearTuning& tuning = {},
                         size_t first_group = 0) {
    AlignedBytes panel = make_panel(scalar_panel(format.panel), format.panel, x, tokens, k);
    std::vector<float> out((tokens + 2) * (rows + 3), kUntouched);
    fn({.weights = weights.data(),
        .rows = rows,
        .k = k,
        .panel = panel.data(),
        .tokens = tokens,
        .out = out.data() + rows + 3,
        .out_stride = rows + 3,
        .group_begin = first_group,
        .group_end = (rows + kGroupRows - 1) / kGroupRows,
        .tuning = tuning});
    return out;
  }
};

// `mode` 0: random weights; else bytes that drive codes and scales to their ends.
Problem make_problem(const LinearFormat& format, size_t rows, size_t k, size_t tokens, Random& random,
                     int mode = 0) {
  std::vector<std::byte> data = make_rows(format.type, rows, k, random, WeightMode::kRandom);
  if (mode != 0) {
    const uint8_t ends[] = {0x00, 0xFF, 0x80, 0x7F};
    const size_t block = tensor::dtype_info(format.type).block_bytes;
    std::vector<bool> is_scale(block);
    for (const size_t offset : scale_offsets(format.type)) is_scale[offset] = is_scale[offset + 1] = true;
    for (size_t i = 0; i < data.size(); ++i)
      if (!is_scale[i % block])
        data[i] = std::byte{ends[mode < 5 ? static_cast<size_t>(mode - 1) : random() % 4]};
  }
  std::vector<float> x(tokens * k);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = mode == 0 ? random_float(random, -3, 3) : (i / k) % 2 == 0 || random() % 4 == 0 ? 2.0f : -2.0f;
  return {format, rows, k, pack_rows(format, data, rows, k), std::move(x)};
}

// Rows [first_row, rows) of the first `tokens` tokens of `all` are those of `some`, the rest is untouched.
bool agrees(const std::vector<float>& some, const std::vector<float>& all, size_t rows, size_t tokens,
            size_t first_row = 0) {
  const size_t stride = rows + 3;
  for (size_t i = 0; i < some.size(); ++i) {
    const size_t row = i % stride;
    const bool written = i >= stride && i < (tokens + 1) * stride && row >= first_row && row < rows;
    const float want = written ? all[i] : kUntouched;
    if (std::memcmp(&some[i], &want, sizeof want) != 0) return false;
  }
  return true;
}

TEST_P(AmxTest, EqualsScalarForEveryPath) {
  const std::vector<LinearFn> list = amx_rows(family_);
  if (list.empty()) return;  // a type without such a row
  constexpr size_t kMost = 257;
  // Blocks: one, and for blocks of 32 every number in a job and in a slice.
  const std::vector<size_t> block_counts =
      format().block == 32 ? std::vector<size_t>{1, 2, 3, 4, 7, 8, 21} : std::vector<size_t>{1, 2, 5};
  for (const size_t rows : {1, 47, 64})
    for (const size_t blocks : block_counts) {
      Problem problem = make_problem(format(), rows, blocks * format().block, kMost, random_);
      const std::vector<float> expected = problem.run(family_.variants.back().entry, kMost);
      for (const LinearFn fn : list)
        for (const size_t tokens : {7, 8, 11, 12, 15, 16, 17, 31, 32, 33, 48, 100, 257})
          EXPECT_TRUE(agrees(problem.run(fn, tokens), expected, rows, tokens))
              << "rows " << rows << " blocks " << blocks << " tokens " << tokens;
    }
}

// Bytes that end, to within 64, at memory that may not be read.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) : mapped_((bytes + 2 * kPage - 1) / kPage * kPage) {
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(static_cast<std::byte*>(base_) + mapped_ - kPage, kPage, PROT_NONE), 0);
    data_ = static_cast<std::byte*>(base_) + mapped_ - kPage - (bytes + 63) / 64 * 64;
  }
  ~GuardedBytes() { munmap(base_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() { return data_; }

 private:
  static constexpr size_t kPage = 4096;
  size_t mapped_;
  void* base_;
  std::byte* data_;
};

// Tiles have 16 rows, the last panel tile may not.
TEST_P(AmxTest, ReadsNothingBehindThePanelAndTheWeights) {
  constexpr size_t kRows = 32;
  for (const LinearFn fn : amx_rows(family_))
    for (const size_t tokens : {12, 15, 16, 17, 33, 47}) {
      const size_t k = 2 * format().block;
      Problem problem = make_problem(format(), kRows, k, tokens, random_);
      const std::vector<float> expected = problem.run(family_.variants.back().entry, tokens);
      AlignedBytes made = make_panel(scalar_panel(format().panel), format().panel, problem.x, tokens, k);
      GuardedBytes panel(made.size()), weights(format().group_bytes(k));
      std::memcpy(panel.data(), made.data(), made.size());
      std::memcpy(weights.data(), problem.weights.data(), format().group_bytes(k));
      std::vector<float> out((tokens + 2) * (kRows + 3), kUntouched);
      fn({.weights = weights.data(),
          .rows = kRows,
          .k = k,
          .panel = panel.data(),
          .tokens = tokens,
          .out = out.data() + kRows + 3,
          .out_stride = kRows + 3,
          .group_begin = 0,
          .group_end = 1,
          .tuning = {}});
      EXPECT_TRUE(agrees(out, expected, kRows, tokens)) << tokens;
    }
}

TEST_P(AmxTest, WalksTheSameHoweverMemoryIsWalked) {
  const std::vector<LinearFn> list = amx_rows(family_);
  constexpr size_t kRows = 70, kTokens = 167;
  Problem problem = make_problem(format(), kRows, 3 * format().block, kTokens, random_);
  const std::vector<float> expected = problem.run(family_.variants.back().entry, kTokens);
  for (const LinearFn fn : list) {
    for (const uint32_t chunk : {1u, 40000u, 1u << 20})
      EXPECT_TRUE(
          agrees(problem.run(fn, kTokens, {.prefetch_bytes = chunk % 2 ? 0 : 8192u, .chunk_bytes = chunk}),
                 expected, kRows, kTokens))
          << "chunk " << chunk;
    for (const size_t tokens : {20, 40})
      EXPECT_TRUE(agrees(problem.run(fn, tokens, {}, 1), expected, kRows, tokens, kGroupRows)) << tokens;
  }
}

TEST_P(AmxTest, EqualsScalarAtTheExtremes) {
  const std::vector<LinearFn> list = amx_rows(family_);
  constexpr size_t kRows = 34, kTokens = 40;
  for (int mode = 1; mode <= 5 && !list.empty(); ++mode) {
    Problem problem = make_problem(format(), kRows, 3 * format().block, kTokens, random_, mode);
    const std::vector<float> expected = problem.run(family_.variants.back().entry, kTokens);
    for (const LinearFn fn : list)
      for (const size_t tokens : {12, 20, 40})
        EXPECT_TRUE(agrees(problem.run(fn, tokens), expected, kRows, tokens))
            << "mode " << mode << " of " << tokens;
  }
}

}  // namespace
}  // namespace tally::kernels
