#include "engine/score.h"

#include "base/check.h"
#include "base/utf8.h"
#include "engine/plan_sizes.h"
#include "kv/view.h"
#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace tally::engine {
namespace {

using base::Account;
using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint32_t kBlockTokens = 32;
constexpr uint32_t kTuningMs = 200;

// In [-0.5, 0.5): splitmix64 of a counter.
float centred_noise(uint64_t counter) {
  uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>(static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53 - 0.5);
}

// A pool of one codec's blocks.
struct Pool {
  std::vector<tensor::KvLayout> layouts;
  kv::PoolShape shape;
  base::Arena memory;
  kv::View view;

  Result<void> make(const model::Model& model, tensor::KvCodec codec, uint32_t blocks,
                    base::Accounts& accounts) {
    layouts = model::kv_layouts(model.spec(), codec, kBlockTokens);
    shape = kv::make_pool_shape(layouts, blocks);
    TALLY_TRY(memory, accounts.reserve(Account::kKv, "pool", shape.pool_bytes()));
    view = kv::View(&shape, memory.data());
    return {};
  }
};

class CodecLane final : public Lane {
 public:
  CodecLane(const model::Model& model, base::ThreadPool& threads, uint32_t context)
      : model_(model), threads_(threads), context_(context) {}

  Result<void> make(const LaneRequest& request, base::Accounts& accounts) {
    TALLY_TRY(const tensor::KvCodec codec, find_codec(request.kv_type));
    TALLY_CHECK(request.fault.noise_bits == 0 || codec == tensor::KvCodec::kF32, "noise wants an f32 lane");
    fault_ = request.fault;
    // A block that each sequence begins, and one that it copies before it writes.
    const uint64_t blocks = request.pool_tokens / kBlockTokens + 2 * uint64_t{request.sequences};
    TALLY_CHECK(blocks < UINT32_MAX, "a pool of more blocks than ids: {}", blocks);
    TALLY_TRY_VOID(stored_.make(model_, codec, static_cast<uint32_t>(blocks), accounts));
    if (fault_.is_never_read_back) {
      TALLY_TRY_VOID(
          read_.emplace().make(model_, tensor::KvCodec::kF32, static_cast<uint32_t>(blocks), accounts));
    }
    model::StepLimits limits;
    limits.rows_max = limits.logits_rows_max = kRowsMax, limits.context_max = context_;
    TALLY_TRY(scratch_, model_.make_scratch(limits, attended().layouts, threads_.threads(), accounts));
    owners_.assign(blocks, 0);
    for (uint64_t id = blocks; id > 0; --id) free_.push_back(static_cast<uint32_t>(id - 1));
    sequences_.resize(request.sequences);
    return {};
  }

  Result<void> feed(std::span<const Rows> rows) override {
    kernels::set_float_mode();
    tokens_.clear(), segments_.clear(), tables_.clear(), logits_rows_.clear();
    for (const Rows& part : rows) append(part);
    TALLY_CHECK(!tokens_.empty() && tokens_.size() <= kRowsMax, "{} rows in a pass", tokens_.size());
    model_.forward({tokens_, segments_, tables_, logits_rows_}, attended().view, scratch_, threads_);
    for (const model::Segment& segment : segments_) {
      for (uint32_t row = 0; row < segment.rows; ++row) {
        if (scratch_.nonfinite()[segment.row_begin + row] == 0) continue;
        return Error{ErrorCode::kBadData,
                     fmt::format("position {} gives values that are not finite with {} KV",
                                 segment.position + row, kv_types().front())};
      }
      count_reads(segment);
      if (fault_.noise_bits > 0) add_noise(segment);
    }
    return {};
  }

  std::span<const float> logits(size_t index) const override {
    TALLY_CHECK(index < logits_rows_.size(), "row {} of {}", index, logits_rows_.size());
    return scratch_.logits(index);
  }

  uint32_t length(uint32_t sequence) const override { return sequences_.at(sequence).length; }

  void truncate(uint32_t sequence, uint32_t length) override {
    Sequence& s = sequences_.at(sequence);
    TALLY_CHECK(length <= s.length, "{} tokens kept of {}", length, s.length);
    for (; s.blocks.size() > blocks_for(length); s.blocks.pop_back()) drop(s.blocks.back());
    s.length = length;
  }

  void fork(uint32_t from, uint32_t to) override {
    TALLY_CHECK(from != to, "sequence {} forked to itself", from);
    truncate(to, 0);
    sequences_.at(to) = sequences_.at(from);
    for (const uint32_t id : sequences_.at(to).blocks) ++owners_[id];
  }

  void spoil(uint32_t sequence) override {
    const Sequence& s = sequences_.at(sequence);
    for (size_t i = 1; i < s.length / kBlockTokens; ++i) {
      TALLY_CHECK(owners_[s.blocks[i - 1]] == 1, "block {} is shared", s.blocks[i - 1]);
      for (uint32_t layer = 0; layer < stored_.layouts.size(); ++layer)
        stored_.view.copy_block(LayerIdx{layer}, BlockId{s.blocks[i]}, BlockId{s.blocks[i - 1]});
    }
  }

  const LaneReads& reads() const override { return reads_; }
  uint64_t bytes_per_token() const override { return stored_.shape.block_bytes() / kBlockTokens; }

  std::vector<std::string> kv_types() const override {
    std::vector<std::string> out;
    for (const tensor::KvLayout& layout : stored_.layouts)
      out.emplace_back(tensor::kv_codec_info(layout.codec).name);
    return out;
  }

 private:
  struct Sequence {
    uint32_t length = 0;
    std::vector<uint32_t> blocks;
  };

  static size_t blocks_for(uint64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  const Pool& attended() const { return read_ ? *read_ : stored_; }

  uint32_t take() {
    TALLY_CHECK(!free_.empty(), "a pool of {} blocks is full", owners_.size());
    const uint32_t id = free_.back();
    free_.pop_back();
    owners_[id] = 1;
    return id;
  }

  void drop(uint32_t id) {
    if (--owners_[id] == 0) free_.push_back(id);
  }

  // The last block is written next: one that others read too becomes a copy.
  void own_tail(Sequence& s) {
    if (s.length % kBlockTokens == 0 || owners_[s.blocks.back()] == 1) return;
    const uint32_t shared = s.blocks.back(), own = take();
    for (uint32_t layer = 0; layer < attended().layouts.size(); ++layer)
      attended().view.copy_block(LayerIdx{layer}, BlockId{shared}, BlockId{own});
    drop(shared);
    s.blocks.back() = own;
  }

  void append(const Rows& part) {
    Sequence& s = sequences_.at(part.sequence);
    const auto count = static_cast<uint32_t>(part.tokens.size()),
               begin = static_cast<uint32_t>(tokens_.size());
    TALLY_CHECK(count > 0 && uint64_t{s.length} + count <= context_, "{} tokens behind {}, the context is {}",
                count, s.length, context_);
    own_tail(s);
    while (s.blocks.size() < blocks_for(s.length + count)) s.blocks.push_back(take());
    segments_.push_back({begin, count, s.length, static_cast<uint32_t>(tables_.size())});
    tokens_.insert(tokens_.end(), part.tokens.begin(), part.tokens.end());
    tables_.insert(tables_.end(), s.blocks.begin(), s.blocks.end());
    for (uint32_t row = part.wants_every_row ? 0 : count - 1; row < count; ++row)
      logits_rows_.push_back(begin + row);
    s.length += count;
  }

  void count_reads(const model::Segment& segment) {
    for (size_t layer = 0; layer < stored_.layouts.size(); ++layer) {
      const uint64_t window = model_.spec().layer[layer].window;
      const auto seen_at = [&](uint64_t position) {
        return window == 0 ? position + 1 : std::min(window, position + 1);
      };
      for (uint64_t row = 0; row < segment.rows; ++row) {
        const uint64_t seen = seen_at(segment.position + row);
        reads_.positions += seen;
        reads_.earlier_positions += seen - std::min(seen, row + 1);
      }
      const tensor::KvLayout& layout = attended().layouts[layer];
      const uint64_t spanned = seen_at(segment.position) + segment.rows - 1;
      reads_.bytes += spanned * (layout.block_bytes / layout.block_tokens);
    }
  }

  void add_noise(const model::Segment& segment) {
    for (uint32_t layer = 0; layer < stored_.layouts.size(); ++layer) {
      const tensor::KvLayout& layout = stored_.layouts[layer];
      for (uint32_t position = segment.position; position < segment.position + segment.rows; ++position) {
        const uint32_t id = tables_[segment.table_begin + position / kBlockTokens],
                       row = position % kBlockTokens;
        for (uint32_t head = 0; head < layout.kv_heads; ++head) {
          std::byte* block =
              stored_.view.layer(LayerIdx{layer}) + id * layout.block_bytes + head * layout.head_block_bytes;
          move_values({reinterpret_cast<float*>(block) + row * layout.key_columns, layout.key_dim});
          move_values({reinterpret_cast<float*>(block + layout.value_offset) + row * layout.value_columns,
                       layout.value_dim});
        }
      }
    }
  }

  void move_values(std::span<float> values) {
    float most = 0;
    for (const float x : values) most = std::max(most, std::abs(x));
    const auto step = static_cast<float>(2 * most / (std::exp2(fault_.noise_bits) - 1));
    for (float& x : values) x += step * centred_noise(noise_count_++);
  }

  const model::Model& model_;
  base::ThreadPool& threads_;
  const uint32_t context_;
  LaneFault fault_;
  Pool stored_;
  std::optional<Pool> read_;  // a lane that is never read back: what attention reads instead
  model::Scratch scratch_;
  std::vector<uint32_t> owners_, free_;
  std::vector<Sequence> sequences_;
  LaneReads reads_;
  uint64_t noise_count_ = 0;
  // Of the last pass.
  std::vector<TokenId> tokens_;
  std::vector<model::Segment> segments_;
  std::vector<uint32_t> tables_, logits_rows_;
};

class ModelScorer final : public Scorer {
 public:
  ModelScorer(model::Model model, std::unique_ptr<base::ThreadPool> pool, kernels::Isa tier,
              const ScoreRequest& request, base::Accounts& accounts)
      : model_(std::move(model)),
        pool_(std::move(pool)),
        tier_(tier),
        context_(request.context),
        accounts_(accounts) {
    if (request.tune) model_.set_tuning(model_.measure_tuning(*pool_, kTuningMs));
  }

  Result<std::unique_ptr<Lane>> make_lane(const LaneRequest& request) override {
    auto lane = std::make_unique<CodecLane>(model_, *pool_, context_);
    TALLY_TRY_VOID(lane->make(request, accounts_));
    return std::unique_ptr<Lane>(std::move(lane));
  }

  Result<std::vector<double>> layer_damage(const std::string& kv_type,
                                           std::span<const TokenId> tokens) override {
    TALLY_TRY(const tensor::KvCodec codec, find_codec(kv_type));
    TALLY_CHECK(!tokens.empty() && tokens.size() <= context_, "{} tokens, the context is {}", tokens.size(),
                context_);
    kernels::set_float_mode();
    return model_.kv_damage(tokens, codec, *pool_, accounts_);
  }

  uint64_t vocab_size() const override { return model_.spec().vocab; }
  const std::string& model_fingerprint() const override { return model_.fingerprint(); }
  std::string isa() const override { return std::string(kernels::isa_name(tier_)); }
  base::ThreadPool& pool() override { return *pool_; }

 private:
  model::Model model_;
  std::unique_ptr<base::ThreadPool> pool_;
  const kernels::Isa tier_;
  const uint32_t context_;
  base::Accounts& accounts_;
};

}  // namespace

Result<std::unique_ptr<Scorer>> Scorer::load(const ScoreRequest& request, base::Accounts& accounts) {
  TALLY_TRY(const gguf::File file, gguf::File::open(request.model_path));
  TALLY_TRY(const model::ModelSpec spec, model::read_spec(file));
  TALLY_TRY(const kernels::Isa tier, find_isa(request.isa));
  if (request.context == 0 || request.context > spec.context) {
    return Error{ErrorCode::kConfig,
                 fmt::format("--context {}: the context of {} is {} tokens", request.context,
                             base::escape_for_log(request.model_path), spec.context)};
  }
  kernels::set_float_mode();
  auto pool = std::make_unique<base::ThreadPool>(request.threads, kernels::set_float_mode);
  model::LoadOptions options;
  options.dequantize_to_f32 = request.dequantize_to_f32;
  options.context = request.context, options.progress = request.progress;
  TALLY_TRY(model::Model model,
            model::Model::load(file, kernels::kernel_table(tier), options, *pool, accounts));
  return std::unique_ptr<Scorer>(
      std::make_unique<ModelScorer>(std::move(model), std::move(pool), tier, request, accounts));
}

std::vector<std::string> kv_type_names() {
  std::vector<std::string> out;
  for (const tensor::KvCodecInfo& row : tensor::kKvCodecs) out.emplace_back(row.name);
  return out;
}

Result<uint32_t> model_context(const std::string& model_path) {
  TALLY_TRY(const gguf::File file, gguf::File::open(model_path));
  TALLY_TRY(const model::ModelSpec spec, model::read_spec(file));
  return static_cast<uint32_t>(spec.context);
}

Result<std::vector<std::vector<TokenId>>> continue_greedily(Scorer& scorer, Lane& lane,
                                                            std::span<const Continuation> starts,
                                                            uint32_t tokens,
                                                            std::span<const TokenId> end_ids) {
  std::vector<std::vector<TokenId>> out(starts.size());
  std::vector<TokenId> next;
  for (const Continuation& start : starts) next.push_back(start.next);
  std::vector<size_t> live(starts.size());
  std::iota(live.begin(), live.end(), size_t{0});
  std::vector<Lane::Rows> rows;
  for (uint32_t step = 0; step < tokens && !live.empty(); ++step) {
    rows.clear();
    for (const size_t i : live) rows.push_back({starts[i].sequence, {&next[i], 1}, false});
    TALLY_TRY_VOID(lane.feed(rows));
    scorer.pool().parallel_for(live.size(), [&](size_t i, size_t) {
      const std::span<const float> row = lane.logits(i);
      next[live[i]] = TokenId{static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin())};
    });
    for (const size_t i : live) out[i].push_back(next[i]);
    std::erase_if(
        live, [&](size_t i) { return std::find(end_ids.begin(), end_ids.end(), next[i]) != end_ids.end(); });
  }
  return out;
}

}  // namespace tally::engine
