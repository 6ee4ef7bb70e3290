#pragma once
// Runs a model file over token ids without an engine: one sequence, blocks in a scattered order. For tests.

#include "base/accounts.h"
#include "base/pool.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::model {

// What a test of whole models runs with: every codec, or under a sanitizer the one that has most parts. (The
// kernels' own tests have every codec there too.)
inline std::span<const tensor::KvCodecInfo> codecs_under_test() {
  const std::span<const tensor::KvCodecInfo> all = tensor::kKvCodecs;
#if defined(TALLY_INSTRUMENTED)
  return all.subspan(static_cast<size_t>(tensor::KvCodec::kInt4), 1);
#else
  return all;
#endif
}

struct RigOptions {
  bool to_f32 = false;
  tensor::KvCodec codec = tensor::KvCodec::kF32;
  uint32_t block_tokens = 64;
  size_t threads = 2;
  kernels::Isa isa = kernels::best_isa();
  uint32_t context = 1024;
  uint32_t rows_max = 512;
  bool standard_attention = false;
  StreamOptions stream = {};
};

class Rig {
 public:
  explicit Rig(const std::string& path, const RigOptions& options = {})
      : options_(options), pool_(options.threads, kernels::set_float_mode), accounts_(uint64_t{8} << 30) {
    kernels::set_float_mode();
    auto file = gguf::File::open(path);
    EXPECT_TRUE(file) << path << ": " << (file ? "" : file.error().message);
    LoadOptions load;
    load.dequantize_to_f32 = options.to_f32;
    load.context = options.context, load.stream = options.stream;
    auto model = Model::load(*file, kernels::kernel_table(options.isa), load, pool_, accounts_);
    EXPECT_TRUE(model) << path << ": " << (model ? "" : model.error().message);
    model_.emplace(std::move(model).value());
    const auto layouts = kv_layouts(model_->spec(), options.codec, options.block_tokens);
    const uint32_t blocks = (options.context + options.block_tokens - 1) / options.block_tokens;
    shape_ = kv::make_pool_shape(layouts, blocks);
    pool_memory_ = accounts_.reserve(base::Account::kKv, "pool", shape_.pool_bytes()).value();
    view_ = kv::View(&shape_, pool_memory_.data());
    for (uint32_t b = 0; b < blocks; ++b) view_.poison(BlockId{b});
    // A fixed scattered order: placement must not matter.
    table_.resize(blocks);
    for (uint32_t b = 0; b < blocks; ++b) table_[b] = blocks % 7 == 0 ? blocks - 1 - b : (b * 7) % blocks;
    StepLimits limits;
    limits.rows_max = options.rows_max, limits.logits_rows_max = options.rows_max,
    limits.context_max = options.context;
    limits.standard_attention = options.standard_attention;
    scratch_.emplace(model_->make_scratch(limits, layouts, options.threads, accounts_).value());
  }

  const Model& model() const { return *model_; }
  base::Accounts& accounts() { return accounts_; }

  // Feeds ids at the sequence's end; `each` gets (position, logits) for every fed row.
  template <class Each>
  void feed(const std::vector<int>& ids, uint32_t chunk, const Each& each) {
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      const auto n = static_cast<uint32_t>(std::min<size_t>(chunk, ids.size() - begin));
      std::vector<TokenId> tokens;
      std::vector<uint32_t> rows(n);
      std::iota(rows.begin(), rows.end(), 0u);
      for (uint32_t i = 0; i < n; ++i) tokens.push_back(TokenId{ids[begin + i]});
      const Segment segment{0, n, length_, 0};
      model_->forward({tokens, {&segment, 1}, table_, rows}, view_, *scratch_, pool_);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT_EQ(scratch_->nonfinite()[i], 0) << "position " << length_ + i;
        each(length_ + i, scratch_->logits(i));
      }
      length_ += n;
    }
  }
  void restart() { length_ = 0; }

 private:
  RigOptions options_;
  base::ThreadPool pool_;
  base::Accounts accounts_;
  std::optional<Model> model_;
  kv::PoolShape shape_;
  base::Arena pool_memory_;
  kv::View view_;
  std::vector<uint32_t> table_;
  std::optional<Scratch> scratch_;
  uint32_t length_ = 0;
};

inline double log_sum_exp(std::span<const float> logits) {
  double top = logits[0], sum = 0;
  for (const float x : logits) top = std::max(top, static_cast<double>(x));
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

inline size_t argmax(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace tally::model
