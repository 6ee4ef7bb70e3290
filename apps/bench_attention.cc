#include "bench_attention.h"

#include "base/clock.h"
#include "bench_cache.h"
#include "bench_kernel.h"
#include "bench_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace tally::apps {
namespace {

using base::Account;
using base::Result;

constexpr double kRepetitionS = 0.02, kSlowS = 1;
constexpr uint32_t kItemTokens = 32;

// The cache of one codec and context, and what a call needs besides.
class Layers {
 public:
  static Result<Layers> make(const AttentionMeasure& m, const kernels::AttentionKernels& codec,
                             uint32_t block_tokens, base::ThreadPool& pool, base::Accounts& accounts) {
    Layers l;
    l.layout_ =
        tensor::make_kv_layout(m.codec, m.shape.kv_heads, m.shape.head_dim, m.shape.head_dim, block_tokens);
    const uint32_t blocks = (m.context + block_tokens - 1) / block_tokens;
    l.layer_bytes_ = blocks * l.layout_.block_bytes;
    l.count_ = static_cast<size_t>(bench_working_bytes() / l.layer_bytes_) + 1;
    TALLY_TRY(l.cache_, accounts.reserve(Account::kKv, "layers", l.count_ * l.layer_bytes_,
                                         base::FirstTouch::kByOwner));
    fill_layer(l.layout_, l.cache_.data(), blocks, codec.store, 1);
    pool.parallel_for(l.count_ - 1, [&](size_t i, size_t) {
      std::memcpy(l.cache_.data() + (i + 1) * l.layer_bytes_, l.cache_.data(), l.layer_bytes_);
    });
    l.table_.resize(blocks);
    std::iota(l.table_.begin(), l.table_.end(), 0u);
    return l;
  }

  // Makes the scratch that a form wants, in place of another form's.
  Result<void> prepare(AttentionMeasure& m, base::ThreadPool& pool, base::Accounts& accounts) {
    const size_t group = m.shape.heads / m.shape.kv_heads;
    const bool is_standard = m.form == AttentionForm::kStandard;
    const size_t each = is_standard ? kernels::attend_standard_scratch_bytes(layout_, m.context)
                                    : kernels::attend_scratch_bytes(layout_, group);
    scratch_each_ = (each + 63) / 64 * 64;
    scratch_ = {}, scores_ = {};
    TALLY_TRY(scratch_, accounts.reserve(Account::kActivations, "scratch", scratch_each_ * pool.threads()));
    const size_t scores = size_t{m.shape.heads} * m.tokens * m.context * sizeof(float);
    if (is_standard) {
      TALLY_TRY(scores_, accounts.reserve(Account::kActivations, "score matrix", scores));
    }
    head_stride_ = size_t{m.tokens} * m.context, row_stride_ = m.context;
    m.memory_bytes = layer_bytes_ + scratch_.size() + scores_.size();
    return {};
  }
  kernels::ScoreMatrix scores(size_t head, size_t row) const {
    return {reinterpret_cast<float*>(scores_.data()) + head * head_stride_ + row * row_stride_, head_stride_,
            row_stride_};
  }

  kernels::KvSequence next() {
    return {&layout_, cache_.data() + (at_++ % count_) * layer_bytes_, table_.data()};
  }
  std::byte* scratch(size_t worker) const { return scratch_.data() + worker * scratch_each_; }
  double bytes(const AttentionMeasure& m) const {
    return static_cast<double>(layout_.block_bytes) * m.context / layout_.block_tokens;
  }

 private:
  tensor::KvLayout layout_;
  size_t layer_bytes_ = 0, count_ = 0, at_ = 0, scratch_each_ = 0, head_stride_ = 0, row_stride_ = 0;
  base::Arena cache_, scratch_, scores_;
  std::vector<uint32_t> table_;
};

// One form: queries, output, and where they stand.
class Form {
 public:
  Form(AttentionMeasure m, const kernels::AttentionKernels& codec) : measure(std::move(m)), codec_(codec) {
    const size_t values = size_t{measure.tokens} * measure.shape.heads * measure.shape.head_dim;
    q_.resize(values), out_.resize(values);
    std::mt19937 random(measure.tokens);
    std::normal_distribution<float> normal;
    for (float& x : q_) x = normal(random);
  }

  // `count` layers, one after the other; seconds of one.
  double run(Layers& layers, size_t count, base::ThreadPool& pool) {
    const AttentionShape& s = measure.shape;
    const size_t tiles = (measure.tokens + kItemTokens - 1) / kItemTokens, group = s.heads / s.kv_heads;
    nonfinite_.resize(pool.threads() * measure.tokens);
    const int64_t begin = base::now_us();
    for (size_t i = 0; i < count; ++i) {
      const kernels::KvSequence kv = layers.next();
      pool.parallel_for(tiles * s.kv_heads, [&](size_t item, size_t worker) {
        const size_t head = item % s.kv_heads, first = item / s.kv_heads * kItemTokens;
        kernels::AttendArgs args;
        args.kv = kv, args.kv_head = head, args.group = group;
        args.q_stride = args.out_stride = size_t{s.heads} * s.head_dim;
        const size_t offset = first * args.q_stride + head * group * s.head_dim;
        args.q = q_.data() + offset, args.out = out_.data() + offset;
        args.tokens = std::min<size_t>(kItemTokens, measure.tokens - first);
        args.position = measure.context - measure.tokens + first;
        args.score_scale = 0.1f;
        args.scratch = layers.scratch(worker);
        args.nonfinite = nonfinite_.data() + worker * measure.tokens + first;
        if (measure.form == AttentionForm::kPaged) return codec_.attend(args);
        kernels::attend_standard(args, codec_, layers.scores(head * group, first));
      });
    }
    return seconds_since(begin) / static_cast<double>(count);
  }

  AttentionMeasure measure;
  size_t layers_each = 1;  // of a repetition
  bool is_slow = false;    // once is enough

 private:
  const kernels::AttentionKernels& codec_;
  std::vector<float> q_, out_;
  std::vector<uint8_t> nonfinite_;
};

// Decode and prefill of every tier that has a form of its own for this codec.
std::vector<Form> list_forms(const AttentionBenchSettings& s, std::span<const kernels::KernelTable> tables,
                             const AttentionMeasure& what, const Roofs& roofs) {
  std::vector<Form> forms;
  for (const kernels::KernelTable& table : tables) {
    const kernels::AttentionKernels& codec = table.attention_for(what.codec);
    if (codec.isa != table.isa) continue;
    const uint32_t prompt = std::min(s.prefill, what.context);
    const bool is_standard = what.form == AttentionForm::kStandard;
    if (is_standard && !forms.empty()) break;
    for (const uint32_t tokens : {1u, prompt}) {
      // The definition of a long prompt takes minutes.
      if (tokens > 1 && (prompt == 1 || (table.isa == kernels::Isa::kScalar && !is_standard))) continue;
      AttentionMeasure m = what;
      m.isa = is_standard ? kernels::Isa::kScalar : table.isa, m.tokens = tokens;
      const double n = tokens, pairs = n * (what.context - n) + n * (n + 1) / 2;
      m.operations = 4 * pairs * m.shape.heads * m.shape.head_dim;
      const bool is_integer = tensor::kv_codec_info(m.codec).key >= tensor::KvFormat::kInt8;
      const auto kind = is_integer ? kernels::RoofKind::kInt8 : kernels::RoofKind::kF32;
      m.operations_roof = is_standard ? 0 : roofs.operations(kind, table.isa);
      forms.emplace_back(std::move(m), codec);
    }
  }
  return forms;
}

}  // namespace

Result<std::vector<AttentionMeasure>> bench_attention(
    const AttentionBenchSettings& s, base::Accounts& accounts, base::ThreadPool& pool, Roofs& roofs,
    const std::function<bool(double, const std::string&)>& go_on) {
  std::vector<kernels::KernelTable> tables;
  for (const kernels::Isa isa : s.isas) tables.push_back(kernels::kernel_table(isa));
  std::vector<AttentionMeasure> caches, done;
  for (const AttentionShape& shape : s.shapes)
    for (const tensor::KvCodec codec : s.codecs)
      for (const uint32_t context : s.contexts)
        for (const AttentionForm form : s.forms) {
          AttentionMeasure& m = caches.emplace_back();
          m.codec = codec, m.shape = shape, m.context = context, m.form = form;
        }
  for (size_t c = 0; c < caches.size(); ++c) {
    std::vector<Form> forms = list_forms(s, tables, caches[c], roofs);
    if (forms.empty()) continue;
    TALLY_TRY(Layers layers, Layers::make(caches[c], tables.back().attention_for(caches[c].codec),
                                          s.block_tokens, pool, accounts));
    for (uint32_t round = 0; round <= s.repetitions; ++round) {  // the first one warms up
      roofs.probe();
      for (Form& form : forms) {
        const double share =
            (static_cast<double>(c) + round / (s.repetitions + 1.0)) / static_cast<double>(caches.size());
        const std::string now =
            fmt::format("{} {} {} context {}", kAttentionForms[static_cast<size_t>(caches[c].form)],
                        tensor::kv_codec_info(caches[c].codec).name, kernels::isa_name(form.measure.isa),
                        caches[c].context);
        if (!go_on(share, now)) return done;
        TALLY_TRY_VOID(layers.prepare(form.measure, pool, accounts));
        if (form.is_slow && form.measure.seconds.size() == 1) continue;
        const double seconds = form.run(layers, form.layers_each, pool);
        if (round == 0) {
          form.is_slow = seconds > kSlowS;
          form.measure.bytes = layers.bytes(form.measure);
          form.layers_each = static_cast<size_t>(std::clamp(kRepetitionS / seconds, 0.0, 1e6)) + 1;
        } else {
          form.measure.seconds.push_back(seconds);
        }
      }
    }
    for (Form& form : forms) done.push_back(std::move(form.measure));
  }
  return done;
}

}  // namespace tally::apps
