// G24, Q12: a non-finite value in one embedding row fails the rows that meet it, and no other row changes a
// bit.
#include "model/rig_test_support.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>

namespace tally::model {
namespace {

// tiny-f32 with one value of the embedding of token 7 replaced.
std::string poisoned_file(float value) {
  std::ifstream in("tests/golden/tiny/tiny-f32.gguf", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto file = gguf::File::open("tests/golden/tiny/tiny-f32.gguf").value();
  const gguf::TensorInfo* t = file.find_tensor("token_embd.weight");
  std::memcpy(bytes.data() + t->file_offset + 7 * t->shape.dim[0] * sizeof(float) + 12, &value, sizeof value);
  const std::string path = testing::TempDir() + "poisoned.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(NonFinite, OnlyTheRowsThatMeetItFail) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::string path = poisoned_file(value);
    base::ThreadPool pool(2, kernels::set_float_mode);
    kernels::set_float_mode();
    base::Accounts accounts(uint64_t{1} << 30);
    const auto file = gguf::File::open(path).value();
    LoadOptions load;
    load.context = 64;
    const Model model =
        Model::load(file, kernels::kernel_table(kernels::best_isa()), load, pool, accounts).value();
    const auto layouts = kv_layouts(model.spec(), tensor::KvCodec::kInt8, 16);
    const kv::PoolShape shape = kv::make_pool_shape(layouts, 8);
    const base::Arena memory = accounts.reserve(base::Account::kKv, "pool", shape.pool_bytes()).value();
    const kv::View view(&shape, memory.data());
    StepLimits limits;
    limits.rows_max = 64, limits.logits_rows_max = 8, limits.context_max = 64;
    Scratch scratch = model.make_scratch(limits, layouts, 2, accounts).value();

    // Sequence 0: clean. Sequence 1: token 7 in the middle. Sequence 2: clean.
    const auto run = [&](std::vector<std::vector<int>> sequences) {
      std::vector<TokenId> tokens;
      std::vector<Segment> segments;
      std::vector<uint32_t> tables, logits;
      for (uint32_t s = 0; s < sequences.size(); ++s) {
        const auto n = static_cast<uint32_t>(sequences[s].size());
        segments.push_back({static_cast<uint32_t>(tokens.size()), n, 0, s});
        for (const int id : sequences[s]) tokens.push_back(TokenId{id});
        tables.push_back(s);
        logits.push_back(static_cast<uint32_t>(tokens.size()) - 1);
      }
      model.forward({tokens, segments, tables, logits}, view, scratch, pool);
      std::vector<std::vector<float>> out;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const auto row = scratch.logits(i);
        out.emplace_back(row.begin(), row.end());
      }
      return out;
    };
    const auto clean = run({{1, 2, 3, 4}, {9, 8, 6}, {5, 5, 5}});
    for (const uint8_t flag : scratch.nonfinite()) ASSERT_EQ(flag, 0);
    const auto mixed = run({{1, 2, 3, 4}, {9, 7, 6}, {5, 5, 5}});
    const auto flags = scratch.nonfinite();
    ASSERT_EQ(flags.size(), 10u);
    for (size_t r = 0; r < 10; ++r) {
      EXPECT_EQ(flags[r], r == 5 ? 1 : 0) << "row " << r;
    }
    EXPECT_EQ(std::memcmp(mixed[0].data(), clean[0].data(), clean[0].size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(mixed[2].data(), clean[2].data(), clean[2].size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace tally::model
