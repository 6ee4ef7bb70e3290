#include "kernels/tune.h"

#include "kernels/linear_data.h"

#include <gtest/gtest.h>

#include <string>

namespace tally::kernels {
namespace {

using tensor::DType;

std::vector<FormatTuning> some_tuning() {
  FormatTuning a, b;
  a.type = DType::kQ4_K, a.walk = {8192, 131072};
  b.type = DType::kQ8_0, b.walk = {0, 524288};
  for (size_t t = 0; t < kCostRows; ++t) {
    a.cost[t] = 1 + 0.125f * static_cast<float>(t);
    b.cost[t] = 1;
  }
  return {a, b};
}

TEST(Tune, TextKeepsEverything) {
  const auto tuning = some_tuning();
  const auto read = parse_tuning("a machine", tuning_text("a machine", tuning));
  ASSERT_EQ(read.size(), tuning.size());
  for (size_t i = 0; i < tuning.size(); ++i) {
    EXPECT_EQ(read[i].type, tuning[i].type);
    EXPECT_EQ(read[i].walk.prefetch_bytes, tuning[i].walk.prefetch_bytes);
    EXPECT_EQ(read[i].walk.chunk_bytes, tuning[i].walk.chunk_bytes);
    EXPECT_EQ(read[i].cost, tuning[i].cost);
  }
}

TEST(Tune, AnotherMachineOrDamagedTextIsNoTuning) {
  const std::string good = tuning_text("a machine", some_tuning());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string s = good;
    s.replace(s.find(from), from.size(), to);
    return s;
  };
  EXPECT_TRUE(parse_tuning("another machine", good).empty());
  EXPECT_TRUE(parse_tuning("a machine", "").empty());
  EXPECT_TRUE(parse_tuning("a machine", std::string(3000, '\0')).empty());
  for (const std::string& bad :
       {with("Q8_0", "Q8_9"), with("8192", "-1"), with("8192", "65537"), with("131072", "0"),
        with("131072", "99999999999999999999"), with(" 1.000 1.125", " 0.500 1.125"), with(" 1.500", " nan"),
        with(" 1.500", " 1.000"),  // falls
        with(" 1.500", ""), with(" 1.500", " 1.500 1.500"), good.substr(0, good.size() - 8), good + "x\n"}) {
    EXPECT_TRUE(parse_tuning("a machine", bad).empty()) << bad;
  }
}

// Whatever is chosen, the product has the same bits, and the choice is one that was on offer.
TEST(Tune, ChoosesWithinBoundsAndChangesNoBit) {
  set_float_mode();
  const KernelTable table = kernel_table(best_isa());
  base::ThreadPool pool(2, set_float_mode);
  Random random(5);
  constexpr size_t kRows = 96, kK = 512, kTokens = 21;
  std::vector<AlignedBytes> packed;
  std::vector<TuneMatrix> matrices;
  for (const DType type : {DType::kF32, DType::kQ8_0, DType::kQ4_K}) {
    const LinearFormat& format = *table.find_linear(type);
    packed.push_back(pack_rows(format, make_rows(type, kRows, kK, random, WeightMode::kRandom), kRows, kK));
    matrices.push_back({&format, packed.back().data(), kRows, kK});
  }
  const LinearFormat& tiny =
      *table.find_linear(DType::kQ6_K);  // of fewer rows than a group: cannot be measured
  packed.push_back(pack_rows(tiny, make_rows(DType::kQ6_K, 4, kK, random, WeightMode::kRandom), 4, kK));
  matrices.push_back({&tiny, packed.back().data(), 4, kK});

  const std::vector<FormatTuning> tuning = tune(table, matrices, pool, 20);
  ASSERT_EQ(tuning.size(), 3u);
  std::vector<float> x(kTokens * kK);
  for (float& v : x) v = random_float(random, -1, 1);
  for (size_t i = 0; i < tuning.size(); ++i) {
    const TuneMatrix& m = matrices[i];
    EXPECT_EQ(tuning[i].type, m.format->type);
    EXPECT_LE(tuning[i].walk.prefetch_bytes, kTailPadding);
    EXPECT_EQ(tuning[i].cost[0], 1.f);
    for (size_t t = 1; t < kCostRows; ++t) EXPECT_GE(tuning[i].cost[t], tuning[i].cost[t - 1]);
    EXPECT_GT(tuning[i].cost[kCostRows - 1], 1.f) << "32 rows cost more than one";

    AlignedBytes panel = make_panel(scalar_panel(m.format->panel), m.format->panel, x, kTokens, kK);
    std::vector<std::vector<float>> results;
    for (const LinearTuning walk :
         {LinearTuning{}, tuning[i].walk, LinearTuning{0, 4096}, LinearTuning{65536, 1u << 20}}) {
      std::vector<float>& out = results.emplace_back(kTokens * kRows);
      m.format->run({.weights = m.weights,
                     .rows = kRows,
                     .k = kK,
                     .panel = panel.data(),
                     .tokens = kTokens,
                     .out = out.data(),
                     .out_stride = kRows,
                     .group_begin = 0,
                     .group_end = kRows / kGroupRows,
                     .tuning = walk});
      EXPECT_EQ(out, results.front());
    }
  }
}

}  // namespace
}  // namespace tally::kernels
