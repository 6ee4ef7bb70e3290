#include "kernels/panel.h"

#include "kernels/linear.h"
#include "kernels/linear_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tally::kernels {

// The emulated copies (tier.h).
namespace emulated {
#define TALLY_VARIANT(isa, symbol) TALLY_IF_EMULATED_##isa(void symbol(const PanelArgs&);)
#include "kernels/panel/variants_int256.inc"
#include "kernels/panel/variants_int32.inc"
#undef TALLY_VARIANT
}  // namespace emulated

namespace {

constexpr PanelKind kKinds[] = {PanelKind::kF32, PanelKind::kInt32, PanelKind::kInt256};

std::vector<Variant<PanelFn>> runnable(PanelKind kind) {
  std::vector<Variant<PanelFn>> list;
  for (const Variant<PanelFn>& v : panel_variants(kind))
    if (host_has(v.isa)) list.push_back(v);
  if (!host_has(Isa::kAvx2)) return list;
#define TALLY_VARIANT(isa, symbol) \
  TALLY_IF_EMULATED_##isa(list.push_back({Isa::isa, "emulated " #symbol, emulated::symbol});)
  if (kind == PanelKind::kInt32) {
#include "kernels/panel/variants_int32.inc"
  }
  if (kind == PanelKind::kInt256) {
#include "kernels/panel/variants_int256.inc"
  }
#undef TALLY_VARIANT
  return list;
}

struct Panel {
  std::vector<std::byte> bytes;
  std::vector<uint8_t> nonfinite;
  bool operator==(const Panel&) const = default;
};

// Makes the panel of x [tokens][stride] in the given ranges of tokens (ends), into memory full of another
// value.
Panel make(PanelFn fn, PanelKind kind, const std::vector<float>& x, size_t tokens, size_t k,
           const std::vector<size_t>& ends) {
  const size_t stride = x.size() / tokens;
  AlignedBytes memory(panel_bytes(kind, tokens, k));
  std::memset(memory.data(), 0x5A, memory.size());
  Panel panel{{}, std::vector<uint8_t>(tokens)};
  size_t begin = 0;
  for (const size_t end : ends) {
    fn({.x = x.data(),
        .x_stride = stride,
        .tokens = tokens,
        .k = k,
        .token_begin = begin,
        .token_end = end,
        .panel = memory.data(),
        .nonfinite = panel.nonfinite.data()});
    begin = end;
  }
  panel.bytes.assign(memory.data(), memory.data() + memory.size());
  return panel;
}

std::vector<float> awkward_values(size_t n, Random& random) {
  constexpr float kAwkward[] = {0.0f,   -0.0f, 1e-30f, 9.9e-31f, -1e-38f, 1e-42f, 3.4e38f,
                                -3e38f, 0.5f,  1.5f,   127.0f,   63.5f,   -63.5f, 1.0f};
  std::vector<float> x(n);
  for (float& value : x)
    value = random() % 4 == 0 ? kAwkward[random() % std::size(kAwkward)] : random_float(random, -2, 2);
  return x;
}

class PanelTest : public testing::TestWithParam<PanelKind> {
 protected:
  void SetUp() override { set_float_mode(); }
  PanelKind kind() const { return GetParam(); }
  size_t block() const { return panel_block(kind()); }
  Random random_{7};
};

INSTANTIATE_TEST_SUITE_P(Kinds, PanelTest, testing::ValuesIn(kKinds),
                         [](const testing::TestParamInfo<PanelKind>& kind) {
                           return std::string("Block") + std::to_string(panel_block(kind.param));
                         });

TEST_P(PanelTest, VariantsEqualScalar) {
  const size_t k = block() == 1 ? 43 : 3 * block();
  for (const size_t tokens : {1, 2, 7, 8, 9, 15, 16, 17, 33, 40})
    for (int round = 0; round < 4; ++round) {
      const size_t stride = k + 3;
      std::vector<float> x = awkward_values(tokens * stride, random_);
      if (round == 1) x[random_() % x.size()] = std::numeric_limits<float>::infinity();
      if (round == 2) x[random_() % x.size()] = std::numeric_limits<float>::quiet_NaN();
      if (round == 3)
        for (float& value : x) value *= 1e-32f;
      const Panel expected = make(scalar_panel(kind()), kind(), x, tokens, k, {tokens});
      for (const auto& v : runnable(kind()))
        EXPECT_TRUE(make(v.entry, kind(), x, tokens, k, {tokens}) == expected)
            << v.name << " tokens " << tokens << " round " << round;
    }
}

TEST_P(PanelTest, RangesMakeTheSamePanel) {
  const size_t k = 2 * block(), tokens = 40;
  const std::vector<float> x = awkward_values(tokens * k, random_);
  for (const auto& v : runnable(kind()))
    EXPECT_TRUE(make(v.entry, kind(), x, tokens, k, {tokens}) ==
                make(v.entry, kind(), x, tokens, k, {16, 32, 40}))
        << v.name;
}

TEST_P(PanelTest, ARowThatIsNotFiniteIsZeroAndSpoilsNoOther) {
  const size_t k = 2 * block(), tokens = 18;
  const std::vector<float> x = awkward_values(tokens * k, random_);
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()})
    for (const size_t row : {0, 5, 16, 17})
      for (const size_t column : {size_t{0}, k - 1}) {
        std::vector<float> spoiled = x, zeroed = x;
        spoiled[row * k + column] = bad;
        std::fill_n(zeroed.begin() + static_cast<ptrdiff_t>(row * k), k, 0.0f);
        for (const auto& v : runnable(kind())) {
          Panel got = make(v.entry, kind(), spoiled, tokens, k, {tokens});
          EXPECT_EQ(got.nonfinite[row], 1) << v.name;
          got.nonfinite[row] = 0;
          EXPECT_TRUE(got == make(v.entry, kind(), zeroed, tokens, k, {tokens})) << v.name << " row " << row;
        }
      }
}

TEST_P(PanelTest, NonfiniteIsOnlyEverSet) {
  std::vector<float> x(block());
  AlignedBytes memory(panel_bytes(kind(), 1, block()));
  for (const auto& v : runnable(kind())) {
    uint8_t mark = 7;
    v.entry({.x = x.data(),
             .x_stride = block(),
             .tokens = 1,
             .k = block(),
             .token_begin = 0,
             .token_end = 1,
             .panel = memory.data(),
             .nonfinite = &mark});
    EXPECT_EQ(mark, 7) << v.name;
  }
}

// Checks codes, scale and sums of one block against the contract, in double where it decides nothing.
void expect_block(const float* x, size_t n, const int8_t* q, float d) {
  float amax = 0;
  for (size_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
  if (amax < 1e-30f) {
    EXPECT_EQ(d, 0.0f);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(q[i], 0);
    return;
  }
  EXPECT_EQ(d, amax / 127.0f);
  for (size_t i = 0; i < n; ++i) {
    ASSERT_LE(std::abs(int{q[i]}), 127);
    ASSERT_EQ(static_cast<float>(q[i]), std::nearbyint(x[i] * (127.0f / amax))) << x[i] << " of " << amax;
  }
}

TEST(PanelContract, Int32CodesScalesAndSums) {
  set_float_mode();
  Random random(3);
  const size_t tokens = 19, k = 96;
  const std::vector<float> x = awkward_values(tokens * k, random);
  for (const auto& v : runnable(PanelKind::kInt32)) {
    AlignedBytes panel = make_panel(v.entry, PanelKind::kInt32, x, tokens, k);
    for (size_t t = 0; t < tokens; ++t)
      for (size_t b = 0; b < k / 32; ++b) {
        const PanelTile tile = panel_tile(panel.data(), tokens, k / 32 * kInt32BlockBytes, t / kPanelTile);
        const Int32Block block = int32_block(tile.bytes, tile.tokens, b);
        const int8_t* q = block.q + 32 * (t % kPanelTile);
        expect_block(x.data() + t * k + 32 * b, 32, q, block.d[t % kPanelTile]);
        int sum = 0;
        for (size_t i = 0; i < 32; ++i) sum += q[i];
        EXPECT_EQ(block.sum[t % kPanelTile], sum) << v.name;
      }
  }
}

TEST(PanelContract, Int256CodesScalesAndSums) {
  set_float_mode();
  Random random(4);
  const size_t tokens = 19, k = 512;
  const std::vector<float> x = awkward_values(tokens * k, random);
  for (const auto& v : runnable(PanelKind::kInt256)) {
    AlignedBytes panel = make_panel(v.entry, PanelKind::kInt256, x, tokens, k);
    for (size_t t = 0; t < tokens; ++t)
      for (size_t b = 0; b < k / 256; ++b) {
        const PanelTile tile = panel_tile(panel.data(), tokens, k / 256 * kInt256BlockBytes, t / kPanelTile);
        const Int256Block block = int256_block(tile.bytes, tile.tokens, b);
        const size_t i = t % kPanelTile;
        expect_block(x.data() + t * k + 256 * b, 256, block.q + 256 * i, block.d[i]);
        int sums[16] = {};
        for (size_t j = 0; j < 256; ++j) sums[j / 16] += block.q[256 * i + j];
        for (size_t g = 0; g < 16; ++g) EXPECT_EQ(block.sum16[16 * i + g], sums[g]) << v.name;
        for (size_t g = 0; g < 8; ++g)
          EXPECT_EQ(block.sum32[8 * i + g], sums[2 * g] + sums[2 * g + 1]) << v.name;
      }
  }
}

TEST(PanelContract, F32IsTheInputTurned) {
  Random random(5);
  const size_t tokens = 21, k = 37;
  std::vector<float> x(tokens * k);
  for (float& value : x) value = random_float(random, -1, 1);
  for (const auto& v : runnable(PanelKind::kF32)) {
    AlignedBytes panel = make_panel(v.entry, PanelKind::kF32, x, tokens, k);
    for (size_t t = 0; t < tokens; ++t) {
      const PanelTile tile = panel_tile(panel.data(), tokens, k * sizeof(float), t / kPanelTile);
      for (size_t i = 0; i < k; ++i)
        ASSERT_EQ(f32_row(tile.bytes, tile.tokens, i)[t % kPanelTile], x[t * k + i]) << v.name;
    }
  }
}

TEST(PanelContract, FullTilesStartOnCacheLines) {
  for (const PanelKind kind : kKinds)
    for (size_t blocks = 1; blocks < 10; ++blocks)
      EXPECT_EQ(panel_bytes(kind, kPanelTile, blocks * panel_block(kind)) % 64, 0u);
}

}  // namespace
}  // namespace tally::kernels
