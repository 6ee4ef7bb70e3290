#include "bench_engine.h"

#include "base/accounts.h"
#include "base/clock.h"
#include "base/pool.h"
#include "bench_cache.h"
#include "bench_machine.h"
#include "interrupt.h"
#include "kernels/kernels.h"
#include "kv/view.h"
#include "model/model.h"
#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <random>

namespace tally::apps {
namespace {

using base::Account;
using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint32_t kTuningMs = 200;
constexpr uint64_t kHugeWorthwhile = uint64_t{32} << 20;  // bytes; below, huge pages do not matter
constexpr uint64_t kBlocksMax = 1u << 24;
constexpr uint32_t kWarmDecode = 4;  // tokens

// Every measure of one codec and thread count.
std::vector<EngineMeasure> list_measures(const EngineBenchSettings& s, tensor::KvCodec codec,
                                         uint32_t threads) {
  std::vector<EngineMeasure> list;
  EngineMeasure m;
  m.codec = codec, m.threads = threads;
  for (const uint32_t depth : s.depths) {
    m.depth = depth, m.decode = 0, m.batch = 1, m.depth_blocks = DepthBlocks::kOwn;
    for (m.prompt = 0; const uint32_t prompt : s.prompts)
      if (m.prompt = prompt; prompt > 0) list.push_back(m);
    for (m.prompt = 0; const uint32_t batch : s.batches)
      for (const uint32_t decode : s.decodes)
        for (m.batch = batch, m.decode = decode; const DepthBlocks blocks : s.depth_blocks)
          if (m.depth_blocks = blocks; decode > 0) list.push_back(m);
  }
  return list;
}

uint32_t blocks_of(const EngineMeasure& m, uint32_t block_tokens) {
  return (m.depth + std::max(m.prompt, m.decode) + block_tokens - 1) / block_tokens;
}

// A KV pool in which every position of every sequence holds encoded random keys and values.
class FilledCache {
 public:
  static Result<FilledCache> make(const std::vector<tensor::KvLayout>& layouts, uint32_t blocks,
                                  const kernels::AttentionKernels& codec, base::ThreadPool& pool,
                                  base::Accounts& accounts) {
    FilledCache cache;
    cache.shape_ = std::make_unique<kv::PoolShape>(kv::make_pool_shape(layouts, blocks));
    TALLY_TRY(cache.memory_,
              accounts.reserve(Account::kKv, "pool", cache.shape_->pool_bytes(), base::FirstTouch::kByOwner));
    cache.view_ = kv::View(cache.shape_.get(), cache.memory_.data());
    pool.parallel_for(layouts.size(), [&](size_t l, size_t) {
      const LayerIdx layer{static_cast<uint32_t>(l)};
      fill_layer(layouts[l], cache.view_.layer(layer), blocks, codec.store, static_cast<uint32_t>(l) + 1);
    });
    return cache;
  }
  const kv::View& view() const { return view_; }

 private:
  std::unique_ptr<kv::PoolShape> shape_;  // the view points at it
  base::Arena memory_;
  kv::View view_;
};

// What the measures of one codec and thread count share. Sequence s of a measure has the blocks [s, s + 1) *
// blocks of one.
class Runner {
 public:
  Runner(const model::Model& model, const kv::View& view, model::Scratch scratch, base::ThreadPool& pool,
         uint32_t step_tokens)
      : model_(model), view_(view), scratch_(std::move(scratch)), pool_(pool), step_tokens_(step_tokens) {
    greedy_.temperature = 0;
    for (size_t w = 0; w < pool.threads(); ++w) sampling_.emplace_back(model.spec().vocab);
  }

  // One repetition, into m. Errors: a value was not finite; interrupted.
  Result<void> run(EngineMeasure& m) {
    const int64_t begin = base::now_us();
    TALLY_TRY_VOID(m.is_prefill() ? prefill(m) : decode(m));
    m.seconds.push_back(seconds_since(begin));
    return {};
  }

 private:
  Result<void> prefill(EngineMeasure& m) {
    prepare(m, m.prompt);
    for (uint32_t begin = 0; begin < m.prompt; begin += step_tokens_) {
      const uint32_t rows = std::min(step_tokens_, m.prompt - begin);
      segments_ = {{0, rows, m.depth + begin, 0}};
      logits_rows_.clear();
      if (begin + rows == m.prompt) logits_rows_.push_back(rows - 1);
      TALLY_TRY_VOID(pass(std::span(tokens_).subspan(begin, rows), m));
    }
    return {};
  }

  Result<void> decode(EngineMeasure& m) {
    const uint32_t blocks = prepare(m, m.batch);
    logits_rows_.resize(m.batch);
    std::iota(logits_rows_.begin(), logits_rows_.end(), 0u);
    for (uint32_t step = 0; step < m.decode; ++step) {
      segments_.clear();
      for (uint32_t s = 0; s < m.batch; ++s) segments_.push_back({s, 1, m.depth + step, s * blocks});
      TALLY_TRY_VOID(pass(tokens_, m));
      for (uint32_t s = 0; s < m.batch; ++s) tokens_[s] = picks_[s].id;
    }
    return {};
  }

  // Block tables and first tokens; how many blocks a sequence has.
  uint32_t prepare(const EngineMeasure& m, uint32_t tokens) {
    const uint32_t block_tokens = view_.layout(LayerIdx{0}).block_tokens, blocks = blocks_of(m, block_tokens);
    tables_.resize(size_t{m.batch} * blocks);
    std::iota(tables_.begin(), tables_.end(), 0u);
    const uint32_t same = m.depth_blocks == DepthBlocks::kOwn ? 0 : m.depth / block_tokens;
    for (uint32_t s = 1; s < m.batch; ++s) std::copy_n(tables_.begin(), same, tables_.begin() + s * blocks);
    tokens_.resize(tokens);
    std::mt19937 random(1);
    for (TokenId& id : tokens_) id = TokenId{static_cast<int32_t>(random() % model_.spec().vocab)};
    picks_.resize(m.batch);
    return blocks;
  }

  // A forward pass, and the choice of a token for each row of logits.
  Result<void> pass(std::span<const TokenId> tokens, EngineMeasure& m) {
    if (interrupted()) return Error{ErrorCode::kUnavailable, "the bench was interrupted"};
    const bool cascade = m.depth_blocks != DepthBlocks::kApart;
    model_.forward({tokens, segments_, tables_, logits_rows_, cascade}, view_, scratch_, pool_);
    const model::OpTimes& times = scratch_.times();
    m.linear_s += times.linear_s, m.attention_s += times.attention_s;
    m.head_s += times.head_s, m.other_s += times.other_s;
    const int64_t begin = base::now_us();
    pool_.parallel_for(logits_rows_.size(), [&](size_t i, size_t worker) {
      picks_[i] = sample::pick(scratch_.logits(i), greedy_, {}, sampling_[worker]);
    });
    m.pick_s += seconds_since(begin);
    bool finite = true;
    for (const uint8_t bad : scratch_.nonfinite().first(tokens.size())) finite &= bad == 0;
    for (size_t i = 0; i < logits_rows_.size(); ++i) finite &= picks_[i].finite;
    if (!finite) return Error{ErrorCode::kBadData, "the model gives values that are not finite"};
    return {};
  }

  const model::Model& model_;
  const kv::View& view_;
  model::Scratch scratch_;
  base::ThreadPool& pool_;
  const uint32_t step_tokens_;
  sample::Params greedy_;
  std::vector<sample::Scratch> sampling_;
  std::vector<TokenId> tokens_;
  std::vector<model::Segment> segments_;
  std::vector<uint32_t> tables_, logits_rows_;
  std::vector<sample::Pick> picks_;
};

// Keys and values that one token at `position` reads.
uint64_t kv_bytes(const model::ModelSpec& spec, const std::vector<tensor::KvLayout>& layouts,
                  uint64_t position) {
  uint64_t bytes = 0;
  for (size_t l = 0; l < layouts.size(); ++l) {
    const uint64_t window = spec.layer[l].window;
    const uint64_t seen = window == 0 ? position + 1 : std::min(window, position + 1);
    bytes += seen * (layouts[l].block_bytes / layouts[l].block_tokens);
  }
  return bytes;
}

class Bench {
 public:
  Bench(const EngineBenchSettings& settings, const EngineBenchProgress& progress)
      : set_(settings),
        progress_(progress),
        accounts_(settings.memory_bytes),
        table_(kernels::kernel_table(settings.isa)) {}

  Result<EngineBenchReport> run(const std::string& model_path, const LoadProgress& loading) {
    kernels::set_float_mode();
    const uint32_t most = *std::max_element(set_.threads.begin(), set_.threads.end());
    TALLY_TRY(const gguf::File file, gguf::File::open(model_path));
    TALLY_TRY(const model::ModelSpec spec, model::read_spec(file));
    TALLY_TRY_VOID(size(spec));
    describe(file, spec);
    const int64_t begin = base::now_us();
    {
      base::ThreadPool pool(most, kernels::set_float_mode);
      model::LoadOptions options;
      options.context = longest_;
      options.progress = loading;
      auto loaded = model::Model::load(file, table_, options, pool, accounts_);
      if (!loaded) return std::move(loaded).error();
      model_.emplace(std::move(loaded).value());
    }
    report_.load_s = seconds_since(begin);
    report_.weight_bytes = model_->weight_bytes();
    for (const tensor::KvCodec codec : set_.codecs) TALLY_TRY_VOID(measure_codec(codec));
    return std::move(report_);
  }

 private:
  // What the largest measures need, and whether the model allows it.
  Result<void> size(const model::ModelSpec& spec) {
    const std::vector<EngineMeasure> list = list_measures(set_, {}, 1);
    if (list.empty()) {
      return Error{ErrorCode::kUsage,
                   "--prompt and --decode are 0: nothing to measure; allowed: one of them above 0"};
    }
    for (const EngineMeasure& m : list) {
      const uint64_t length = uint64_t{m.depth} + std::max(m.prompt, m.decode);
      if (length > spec.context) {
        return Error{ErrorCode::kConfig,
                     fmt::format("--depth {} with --{} {}: {} positions, the model's context is {}", m.depth,
                                 m.is_prefill() ? "prompt" : "decode", std::max(m.prompt, m.decode), length,
                                 spec.context)};
      }
      longest_ = std::max(longest_, static_cast<uint32_t>(length));
      batch_max_ = std::max(batch_max_, m.batch);
      const uint64_t blocks = uint64_t{m.batch} * blocks_of(m, set_.block_tokens);
      if (blocks > kBlocksMax) {
        return Error{ErrorCode::kUnavailable,
                     fmt::format("--batch {} with --depth {}: {} KV blocks, at most {} are possible", m.batch,
                                 m.depth, blocks, kBlocksMax)};
      }
      blocks_ = std::max(blocks_, static_cast<uint32_t>(blocks));
    }
    return {};
  }

  void describe(const gguf::File& file, const model::ModelSpec& spec) {
    report_.file_name = std::filesystem::path(file.path()).filename().string();
    report_.architecture = spec.architecture;
    std::map<tensor::DType, uint64_t> weights;
    for (const gguf::TensorInfo& t : file.tensors()) weights[t.type] += t.shape.elements();
    const auto most = std::max_element(weights.begin(), weights.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != weights.end()) report_.weight_type = tensor::dtype_info(most->first).name;
  }

  Result<void> measure_codec(tensor::KvCodec codec) {
    const auto layouts = model::kv_layouts(model_->spec(), codec, set_.block_tokens);
    base::ThreadPool filling(*std::max_element(set_.threads.begin(), set_.threads.end()),
                             kernels::set_float_mode);
    TALLY_TRY(const FilledCache cache,
              FilledCache::make(layouts, blocks_, table_.attention_for(codec), filling, accounts_));
    if (report_.measures.empty() && report_.weight_bytes >= kHugeWorthwhile) {
      const uint64_t large = accounts_.use(Account::kWeights).reserved + accounts_.use(Account::kKv).reserved;
      report_.huge_share =
          std::min(1.0, static_cast<double>(base::process_memory().anon_huge) / static_cast<double>(large));
    }
    for (const uint32_t threads : set_.threads)
      TALLY_TRY_VOID(measure_threads(cache.view(), layouts, threads));
    return {};
  }

  Result<void> measure_threads(const kv::View& view, const std::vector<tensor::KvLayout>& layouts,
                               uint32_t threads) {
    base::ThreadPool pool(threads, kernels::set_float_mode);
    if (set_.tune) model_->set_tuning(model_->measure_tuning(pool, kTuningMs));
    model::StepLimits limits;
    limits.rows_max = std::max(set_.step_tokens, batch_max_), limits.logits_rows_max = batch_max_;
    limits.context_max = longest_;
    limits.standard_attention = set_.standard_attention;
    TALLY_TRY(model::Scratch scratch, model_->make_scratch(limits, layouts, threads, accounts_));
    Runner runner(*model_, view, std::move(scratch), pool, set_.step_tokens);

    std::vector<EngineMeasure> list = list_measures(set_, layouts[0].codec, threads);
    for (uint32_t round = 0; round <= set_.repetitions; ++round) {
      for (size_t i = 0; i < list.size(); ++i) {
        progress_(list[i], static_cast<double>(round * list.size() + i) /
                               static_cast<double>((set_.repetitions + 1) * list.size()));
        EngineMeasure warm = list[i];
        warm.prompt = std::min(warm.prompt, set_.step_tokens),
        warm.decode = std::min(warm.decode, kWarmDecode);
        TALLY_TRY_VOID(runner.run(round == 0 ? warm : list[i]));
      }
    }
    for (EngineMeasure& m : list) {
      for (uint32_t step = 0; step < m.decode; ++step)
        m.bytes +=
            model_->weight_bytes() + m.batch * kv_bytes(model_->spec(), layouts, uint64_t{m.depth} + step);
      report_.measures.push_back(std::move(m));
    }
    return {};
  }

  const EngineBenchSettings& set_;
  const EngineBenchProgress& progress_;
  base::Accounts accounts_;
  const kernels::KernelTable table_;
  std::optional<model::Model> model_;
  uint32_t longest_ = 0, batch_max_ = 1, blocks_ = 1;
  EngineBenchReport report_;
};

}  // namespace

std::string_view depth_blocks_name(DepthBlocks blocks) {
  constexpr std::string_view kNames[] = {"own", "apart", "together"};
  return kNames[static_cast<size_t>(blocks)];
}

Result<EngineBenchReport> bench_engine(const std::string& model_path, const EngineBenchSettings& settings,
                                       const LoadProgress& loading, const EngineBenchProgress& progress) {
  return Bench(settings, progress).run(model_path, loading);
}

}  // namespace tally::apps
