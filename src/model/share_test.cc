// Sequences that begin with the same blocks attend them together: every row gets the bits that it gets alone.
#include "model/rig_test_support.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tally::model {
namespace {

constexpr uint32_t kBlock = 64, kContext = 4096;

struct Branch {
  uint32_t trunk, from;  // shares the blocks of positions 0 .. from - 1 with sequence `trunk`
  uint32_t length;       // positions before the step
  uint32_t rows;         // in the step
};

// Sequence 0 is the first trunk; some share it, one less of it than others; two share another; one has
// nothing of anybody's, and one has too little.
constexpr Branch kBranches[] = {{0, 0, 3100, 1},    {0, 3072, 3072, 1}, {0, 2048, 2300, 3},
                                {0, 3072, 3300, 1}, {4, 0, 1100, 1},    {4, 1024, 1500, 2},
                                {6, 0, 2100, 1},    {0, 960, 1500, 1},  {0, 3072, 3090, 40},
                                {0, 3072, 3073, 1}, {0, 3072, 3079, 1}, {0, 3072, 3075, 1}};

class SharedPrefix {
 public:
  SharedPrefix(const char* path, tensor::KvCodec codec, size_t threads)
      : pool_(threads, kernels::set_float_mode), accounts_(uint64_t{2} << 30) {
    kernels::set_float_mode();
    const auto file = gguf::File::open(path).value();
    LoadOptions load;
    load.context = kContext;
    model_.emplace(
        Model::load(file, kernels::kernel_table(kernels::best_isa()), load, pool_, accounts_).value());
    const auto layouts = kv_layouts(model_->spec(), codec, kBlock);
    constexpr uint32_t kBlocks = std::size(kBranches) * kContext / kBlock;
    shape_ = kv::make_pool_shape(layouts, kBlocks);
    memory_ = accounts_.reserve(base::Account::kKv, "pool", shape_.pool_bytes()).value();
    view_ = kv::View(&shape_, memory_.data());
    scratch_.emplace(model_
                         ->make_scratch({.rows_max = 256, .logits_rows_max = 256, .context_max = kContext},
                                        layouts, threads, accounts_)
                         .value());
    uint32_t next = kBlocks;
    for (const Branch& b : kBranches) {
      std::vector<uint32_t> table(kContext / kBlock);
      for (uint32_t i = 0; i < table.size(); ++i)
        table[i] = i < b.from / kBlock ? tables_[b.trunk][i] : --next;
      tables_.push_back(table);
    }
    for (uint32_t s = 0; s < std::size(kBranches); ++s)
      for (uint32_t p = kBranches[s].from; p < kBranches[s].length; p += 128)
        run({{s, p, std::min(128u, kBranches[s].length - p)}});
  }

  struct Rows {
    uint32_t sequence, position, count;
  };
  // The logits of all rows of a step.
  std::vector<float> run(const std::vector<Rows>& parts) {
    std::vector<TokenId> tokens;
    std::vector<Segment> segments;
    std::vector<uint32_t> tables, logits;
    for (const Rows& part : parts) {
      segments.push_back({.row_begin = static_cast<uint32_t>(tokens.size()),
                          .rows = part.count,
                          .position = part.position,
                          .table_begin = static_cast<uint32_t>(tables.size())});
      const auto& table = tables_[part.sequence];
      tables.insert(tables.end(), table.begin(), table.end());
      for (uint32_t i = 0; i < part.count; ++i) {
        logits.push_back(static_cast<uint32_t>(tokens.size()));
        const uint32_t id = (part.sequence * 31 + (part.position + i) * 17) % model_->spec().vocab;
        tokens.push_back(TokenId{static_cast<int>(id)});
      }
    }
    model_->forward({tokens, segments, tables, logits}, view_, *scratch_, pool_);
    std::vector<float> out;
    for (size_t r = 0; r < tokens.size(); ++r) {
      EXPECT_EQ(scratch_->nonfinite()[r], 0);
      const std::span<const float> row = scratch_->logits(r);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

 private:
  base::ThreadPool pool_;
  base::Accounts accounts_;
  std::optional<Model> model_;
  kv::PoolShape shape_;
  base::Arena memory_;
  kv::View view_;
  std::vector<std::vector<uint32_t>> tables_;
  std::optional<Scratch> scratch_;
};

class Share : public testing::TestWithParam<const char*> {};

TEST_P(Share, RowsGetTheBitsThatTheyGetAlone) {
  for (const tensor::KvCodecInfo& codec : codecs_under_test()) {
    std::vector<float> wanted;
    for (const size_t threads : {size_t{1}, size_t{3}}) {
      SharedPrefix shared(GetParam(), codec.codec, threads);
      std::vector<SharedPrefix::Rows> parts;
      std::vector<float> alone;
      for (uint32_t s = 0; s < std::size(kBranches); ++s) {
        parts.push_back({s, kBranches[s].length, kBranches[s].rows});
        const std::vector<float> one = shared.run({parts.back()});
        alone.insert(alone.end(), one.begin(), one.end());
      }
      const std::vector<float> together = shared.run(parts);
      ASSERT_EQ(together.size(), alone.size());
      EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0)
          << codec.name << " " << threads;
      if (wanted.empty()) wanted = together;
      EXPECT_EQ(std::memcmp(together.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << codec.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Share,
                         testing::Values("tests/golden/arch/llama_bias.gguf", "tests/golden/arch/gemma3.gguf",
                                         "tests/golden/arch/gptoss.gguf", "tests/golden/arch/bloom.gguf"),
                         [](const auto& row) {
                           const std::string path = row.param;
                           return path.substr(path.rfind('/') + 1, path.rfind('.') - path.rfind('/') - 1);
                         });

}  // namespace
}  // namespace tally::model
