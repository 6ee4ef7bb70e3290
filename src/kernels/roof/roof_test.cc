// The loops do what they are counted for: their result, which is known, depends on every round and byte.

#include "kernels/kernels.h"
#include "kernels/roof/loops.h"
#include "kernels/variants.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tally::kernels::emulated {

#define TALLY_ROOF(isa, kind, symbol, name, work) \
  TALLY_IF_EMULATED_##isa(uint64_t symbol(const RoofArgs& args);)
#include "kernels/roof/variants.inc"
#undef TALLY_ROOF

}  // namespace tally::kernels::emulated

namespace tally::kernels {
namespace {

// What the host can run, and the emulated copies of the tiers above AVX2.
std::vector<RoofLoop> all_loops() {
  std::vector<RoofLoop> loops;
  for (const RoofLoop& loop : roof_loops())
    if (host_has(loop.isa)) loops.push_back(loop);
  if (host_has(Isa::kAvx2)) {
#define TALLY_ROOF(isa, kind, symbol, name, work) \
  TALLY_IF_EMULATED_##isa(                        \
      loops.push_back({Isa::isa, RoofKind::kind, "emulated " name, work, emulated::symbol});)
#include "kernels/roof/variants.inc"
#undef TALLY_ROOF
  }
  return loops;
}

TEST(Roof, ReadsTakeInEveryByteOnce) {
  constexpr size_t kBytes = 64 << 10;
  struct alignas(64) Line {
    uint64_t words[8];
  };
  std::vector<Line> data((kBytes + kTailPadding) / sizeof(Line));
  auto* words = data[0].words;
  std::iota(words, words + kBytes / 8, uint64_t{1} << 40);
  const uint64_t sum = std::accumulate(words, words + kBytes / 8, uint64_t{0});
  size_t read = 0;
  for (const RoofLoop& loop : all_loops()) {
    if (loop.kind != RoofKind::kRead) continue;
    SCOPED_TRACE(loop.name);
    EXPECT_EQ(loop.run({.data = reinterpret_cast<std::byte*>(words), .bytes = kBytes}), sum);
    ++read;
  }
  EXPECT_GE(read, 1u);
}

TEST(Roof, DotProductsAddUpOverTheRounds) {
  const auto run = [](const RoofLoop& loop, uint64_t rounds) { return loop.run({.rounds = rounds}); };
  for (const RoofLoop& loop : all_loops()) {
    if (loop.name.find("dpbusd") == std::string_view::npos) continue;
    SCOPED_TRACE(loop.name);
    EXPECT_EQ(run(loop, 6), run(loop, 2));  // the operands are 0
    if (loop.isa == Isa::kAmx) {
      EXPECT_EQ(run(loop, 5), 5u * 64);  // one element: 64 products a round
    } else {
      // Twelve chains, four products a lane and round, both halves of each 64-bit lane.
      const uint64_t lanes = loop.isa == Isa::kAvxVnni ? 4 : 8;
      EXPECT_EQ(run(loop, 5) - run(loop, 6), lanes * 12 * 4 * 5 * ((uint64_t{1} << 32) + 1));
    }
  }
}

TEST(Roof, EveryLoopDependsOnItsRounds) {
  for (const RoofLoop& loop : all_loops()) {
    if (loop.kind == RoofKind::kRead) continue;
    SCOPED_TRACE(loop.name);
    EXPECT_GT(loop.work, 0);
    EXPECT_NE(loop.run({.rounds = 2}), loop.run({.rounds = 3}));
  }
}

}  // namespace
}  // namespace tally::kernels
