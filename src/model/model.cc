#include "model/model.h"

#include "base/check.h"
#include "base/sha256.h"
#include "model/kv_probe.h"
#include "model/program.h"
#include "model/scratch.h"
#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

namespace tally::model {
namespace {

using base::Result;

std::vector<RopeSpec> distinct_ropes(const ModelSpec& spec) {
  std::vector<RopeSpec> ropes;
  for (const LayerSpec& layer : spec.layer) {
    if (layer.rope.kind == RopeKind::kNone) continue;
    if (std::find(ropes.begin(), ropes.end(), layer.rope) == ropes.end()) ropes.push_back(layer.rope);
  }
  return ropes;
}

uint32_t context_of(const ModelSpec& spec, const LoadOptions& options) {
  return options.context == 0 ? spec.context : options.context;
}

size_t rope_bytes(const ModelSpec& spec, uint32_t context) {
  size_t bytes = 0;
  for (const RopeSpec& rope : distinct_ropes(spec)) bytes += size_t{context} * rope.rotated * sizeof(float);
  return bytes;
}

// YaRN's share of extrapolation for pair i: 1 for pairs that turn beta_fast times or more in the original
// context, 0 for those that turn beta_slow times or less. Source: Peng et al. 2023; the range is rounded
// outwards.
double yarn_share(const RopeSpec& rope, uint32_t i) {
  const auto pair_of = [&](double turns) {
    return rope.rotated * std::log(rope.original_context / (turns * 2 * M_PI)) / (2 * std::log(rope.base));
  };
  const double low = std::max(0.0, std::floor(pair_of(rope.beta_fast)));
  const double high = std::min(rope.rotated - 1.0, std::ceil(pair_of(rope.beta_slow)));
  return rope.ext_factor * (1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0));
}

// Angles in double, rounded once: every tier reads the same table. divisors [rotated / 2] or null.
void fill_rope(const RopeSpec& rope, const float* divisors, uint32_t context, base::ThreadPool& pool,
               float* out) {
  const uint32_t pairs = rope.rotated / 2;
  std::vector<double> frequency(pairs);
  for (uint32_t i = 0; i < pairs; ++i) {
    const double divisor = divisors == nullptr ? 1.0 : static_cast<double>(divisors[i]);
    const double plain = std::pow(rope.base, -2.0 * i / rope.rotated) / divisor;
    const double share = rope.ext_factor == 0 ? 0 : yarn_share(rope, i);
    frequency[i] = plain * (1 - share) / rope.factor + plain * share;
  }
  constexpr uint32_t kPositions = 256;  // of an item
  pool.parallel_for((context + kPositions - 1) / kPositions, [&](size_t item, size_t) {
    const auto begin = static_cast<uint32_t>(item) * kPositions;
    float* pair = out + size_t{begin} * pairs * 2;
    for (uint32_t position = begin; position < std::min(context, begin + kPositions); ++position) {
      for (uint32_t i = 0; i < pairs; ++i, pair += 2) {
        pair[0] = static_cast<float>(std::cos(position * frequency[i]) * rope.magnitude);
        pair[1] = static_cast<float>(std::sin(position * frequency[i]) * rope.magnitude);
      }
    }
  });
}

// The file may bring one set of divisors, or one for short contexts and one for long ones: which, is decided
// once, by the longest sequence there can be.
Slot divisor_slot(const ModelSpec& spec, const Weights& weights, uint32_t context) {
  if (weights.has(Slot::kRopeFreqs) || !weights.has(Slot::kRopeLong)) return Slot::kRopeFreqs;
  return context > spec.layer[0].rope.original_context ? Slot::kRopeLong : Slot::kRopeShort;
}

// One set of tables for sizing: specs without data.
std::vector<RopeTable> bare_ropes(const ModelSpec& spec) {
  std::vector<RopeTable> tables;
  for (const RopeSpec& rope : distinct_ropes(spec)) tables.push_back({rope, nullptr});
  return tables;
}

// [heads][rows][context], written by a layer after the other.
size_t matrix_bytes(const ModelSpec& spec, const StepLimits& limits) {
  if (!limits.standard_attention) return 0;
  size_t heads = 0;
  for (const LayerSpec& layer : spec.layer) heads = std::max<size_t>(heads, layer.heads);
  return heads * limits.rows_max * limits.context_max * sizeof(float);
}

size_t attend_bytes(const ModelSpec& spec, const StepLimits& limits,
                    const std::vector<tensor::KvLayout>& layouts) {
  size_t bytes = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const size_t group = spec.layer[i].heads / spec.layer[i].kv_heads;
    bytes = std::max(bytes, limits.standard_attention
                                ? kernels::attend_standard_scratch_bytes(layouts[i], limits.context_max)
                                : kernels::attend_scratch_bytes(layouts[i], group));
  }
  return bytes;
}

}  // namespace

struct Model::State {
  ModelSpec spec;
  kernels::KernelTable kernels;
  Weights weights;
  base::Arena rope_arena;
  std::vector<RopeTable> ropes;
  Program program;
  std::string fingerprint;
  std::vector<std::string> unused;
};

Scratch::Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;
Scratch::~Scratch() = default;

std::span<float> Scratch::logits(size_t index) const {
  return {state_->buf(Buf::kLogits) + index * state_->vocab, state_->vocab};
}
std::span<const uint8_t> Scratch::nonfinite() const { return {state_->nonfinite.data(), state_->rows}; }
const OpTimes& Scratch::times() const { return state_->times; }
size_t Scratch::bytes() const { return state_->arena.size() + state_->scores.size(); }

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ModelSpec& Model::spec() const { return state_->spec; }
uint64_t Model::weight_bytes() const { return state_->weights.matrix_bytes(); }
uint64_t Model::row_flops() const {
  return 2 * state_->weights.matrix_values(state_->spec.tied_output, false);
}
uint64_t Model::logits_flops() const {
  return 2 * state_->weights.matrix_values(state_->spec.tied_output, true);
}
const std::string& Model::fingerprint() const { return state_->fingerprint; }
const std::vector<std::string>& Model::unused_tensors() const { return state_->unused; }

Result<Model> Model::load(const gguf::File& file, const kernels::KernelTable& kernels,
                          const LoadOptions& options, base::ThreadPool& pool, base::Accounts& accounts) {
  auto state = std::make_unique<State>();
  TALLY_TRY(state->spec, read_spec(file));
  const ModelSpec& spec = state->spec;
  state->kernels = kernels;
  TALLY_TRY(WeightPlan plan, plan_weights(file, spec, state->kernels, options.dequantize_to_f32));
  state->unused = plan.unused;
  stream_layers(plan, options.stream.layers, spec.layers);

  // The file's hash is taken beside the packing: both read it from the page cache.
  Result<base::Digest> digest = base::Digest{};
  std::thread hasher([&] { digest = base::sha256_file(file.path()); });
  auto weights = Weights::load(file, std::move(plan), spec, pool, accounts, options.progress);
  hasher.join();
  if (!weights) return weights.error();
  if (!digest) return digest.error();
  state->weights = std::move(weights).value();
  state->fingerprint = base::hex(digest.value());
  if (options.stream.layers > 0) {
    const StreamPlace place{options.stream.directory,
                            fmt::format("{} {}{}", state->fingerprint, kernels::isa_name(kernels.isa),
                                        options.dequantize_to_f32 ? " f32" : "")};
    TALLY_TRY_VOID(state->weights.start_stream(file, place, pool, accounts));
  }

  const uint32_t context = context_of(spec, options);
  if (const size_t bytes = rope_bytes(spec, context); bytes > 0) {
    TALLY_TRY(state->rope_arena,
              accounts.reserve(base::Account::kWeights, "rope tables", bytes, base::FirstTouch::kByOwner));
    auto* next = reinterpret_cast<float*>(state->rope_arena.data());
    const Slot divisors = divisor_slot(spec, state->weights, context);
    if (divisors == Slot::kRopeLong) state->fingerprint += "-long";  // its KV is not that of short contexts
    for (const RopeSpec& rope : distinct_ropes(spec)) {
      fill_rope(rope, state->weights.vector(divisors), context, pool, next);
      state->ropes.push_back({rope, next});
      next += size_t{context} * rope.rotated;
    }
  }
  state->program = build_program(spec, state->weights, state->ropes, pool.threads());
  return Model(std::move(state));
}

Result<size_t> Model::packed_bytes(const gguf::File& file, const kernels::KernelTable& kernels,
                                   const LoadOptions& options) {
  TALLY_TRY(const ModelSpec spec, read_spec(file));
  TALLY_TRY(const WeightPlan plan, plan_weights(file, spec, kernels, options.dequantize_to_f32));
  return plan.bytes + rope_bytes(spec, context_of(spec, options));
}

Result<std::vector<std::string>> Model::find_unused_tensors(const gguf::File& file,
                                                            const kernels::KernelTable& kernels) {
  TALLY_TRY(const ModelSpec spec, read_spec(file));
  TALLY_TRY(WeightPlan plan, plan_weights(file, spec, kernels, false));
  return std::move(plan.unused);
}

Result<Scratch> Model::make_scratch(const StepLimits& limits, const std::vector<tensor::KvLayout>& layouts,
                                    size_t threads, base::Accounts& accounts) const {
  auto s = std::make_unique<Scratch::State>();
  s->limits = limits;
  s->layout = lay_out_scratch(state_->program, limits, attend_bytes(state_->spec, limits, layouts), threads);
  TALLY_TRY(s->arena, accounts.reserve(base::Account::kActivations, "scratch", s->layout.bytes));
  if (const size_t scores = matrix_bytes(state_->spec, limits); scores > 0) {
    TALLY_TRY(s->scores, accounts.reserve(base::Account::kActivations, "score matrix", scores));
  }
  s->row_position.resize(limits.rows_max);
  s->row_segment.resize(limits.rows_max);
  s->nonfinite.resize(limits.rows_max);
  s->head_nonfinite.resize(limits.logits_rows_max);
  s->worker_nonfinite.resize(threads * limits.rows_max);
  AttendPlan::Limits attend{
      .rows = limits.rows_max, .threads = threads, .states = s->layout.attend_states_max};
  for (const LayerSpec& layer : state_->spec.layer)
    attend.kv_heads = std::max<size_t>(attend.kv_heads, layer.kv_heads);
  s->attend = AttendPlan(attend);
  if (const MoeSpec& moe = state_->spec.moe; moe.experts > 0) {
    const size_t pairs = size_t{limits.rows_max} * moe.used, slots = expert_slots(moe, limits.rows_max);
    s->route_ids.resize(pairs), s->route_weights.resize(pairs), s->row_slot.resize(pairs);
    s->slot_row.resize(slots), s->slot_nonfinite.resize(slots), s->expert_next.resize(moe.experts);
    s->experts.reserve(moe.experts), s->expert_tiles.reserve(slots / 16 + moe.experts);
  }
  s->vocab = state_->spec.vocab;
  Scratch scratch;
  scratch.state_ = std::move(s);
  return scratch;
}

StreamStats Model::stream_stats() const {
  const LayerRing* ring = state_->weights.ring();
  if (ring == nullptr) return {};
  const RingStats s = ring->stats();
  return {ring->file().slices(), ring->pass_bytes(), s.read_bytes, s.passes, s.read_s, s.waited_s};
}

std::optional<base::Error> Model::stream_fault() const {
  const LayerRing* ring = state_->weights.ring();
  return ring == nullptr ? std::nullopt : ring->fault();
}

void Model::give_up_stream() {
  if (LayerRing* ring = state_->weights.ring()) ring->give_up();
}

struct Blueprint::State {
  ModelSpec spec;
  WeightPlan plan;  // entries without their tensors
  size_t packed_bytes = 0, threads = 1;
  std::vector<std::pair<std::string, size_t>> parts;
  Weights weights;
  std::vector<RopeTable> ropes;
  Program program;
};

Blueprint::Blueprint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Blueprint::Blueprint(Blueprint&&) noexcept = default;
Blueprint& Blueprint::operator=(Blueprint&&) noexcept = default;
Blueprint::~Blueprint() = default;

Result<Blueprint> Blueprint::read(const gguf::File& file, const kernels::KernelTable& kernels,
                                  const LoadOptions& options, size_t threads) {
  auto state = std::make_unique<State>();
  TALLY_TRY(state->spec, read_spec(file));
  TALLY_TRY(WeightPlan plan, plan_weights(file, state->spec, kernels, options.dequantize_to_f32));
  state->packed_bytes = plan.bytes, state->threads = threads, state->parts = size_parts(plan);
  for (WeightEntry& e : plan.entries) e.tensor = nullptr;
  state->plan = plan;
  state->weights = Weights::bind(std::move(plan), state->spec);
  state->ropes = bare_ropes(state->spec);
  state->program = build_program(state->spec, state->weights, state->ropes, threads);
  return Blueprint(std::move(state));
}

const ModelSpec& Blueprint::spec() const { return state_->spec; }
size_t Blueprint::packed_bytes() const { return state_->packed_bytes; }
const std::vector<std::pair<std::string, size_t>>& Blueprint::packed_parts() const { return state_->parts; }
StreamSizes Blueprint::stream_sizes(uint32_t layers) const {
  WeightPlan plan = state_->plan;
  stream_layers(plan, layers, state_->spec.layers);
  return {plan.bytes, plan.ring_bytes(), plan.read_bytes()};
}
size_t Blueprint::rope_bytes(uint32_t context) const { return model::rope_bytes(state_->spec, context); }
size_t Blueprint::score_matrix_bytes(const StepLimits& limits) const {
  return matrix_bytes(state_->spec, limits);
}
size_t Blueprint::scratch_bytes(const StepLimits& limits,
                                const std::vector<tensor::KvLayout>& layouts) const {
  const size_t attend = attend_bytes(state_->spec, limits, layouts);
  return lay_out_scratch(state_->program, limits, attend, state_->threads).bytes;
}

std::vector<kernels::FormatTuning> Model::measure_tuning(base::ThreadPool& pool, uint32_t budget_ms) const {
  return kernels::tune(state_->kernels, state_->weights.matrices(), pool, budget_ms);
}

bool Model::set_tuning(std::span<const kernels::FormatTuning> tuning) {
  const auto find = [&](tensor::DType type) {
    return std::find_if(tuning.begin(), tuning.end(), [&](const auto& f) { return f.type == type; });
  };
  for (const kernels::TuneMatrix& m : state_->weights.matrices())
    if (m.rows >= kernels::kGroupRows && find(m.format->type) == tuning.end()) return false;
  for (kernels::LinearFormat& format : state_->kernels.linear)
    if (const auto found = find(format.type); found != tuning.end()) format.tuning = found->walk;
  return true;
}

void Model::forward(const Batch& batch, const kv::View& kv, Scratch& scratch, base::ThreadPool& pool) const {
  const StepContext step{&batch, &kv, &state_->weights, &state_->kernels, scratch.state_.get()};
  run(state_->program, step, pool);
}

Result<std::vector<double>> Model::kv_damage(std::span<const TokenId> tokens, tensor::KvCodec codec,
                                             base::ThreadPool& pool, base::Accounts& accounts) const {
  constexpr uint32_t kBlockTokens = 64;
  const auto rows = static_cast<uint32_t>(tokens.size());
  std::vector<uint32_t> blocks((rows + kBlockTokens - 1) / kBlockTokens);
  std::iota(blocks.begin(), blocks.end(), 0u);
  const auto shape_of = [&](tensor::KvCodec of) {
    return kv::make_pool_shape(kv_layouts(state_->spec, of, kBlockTokens),
                               static_cast<uint32_t>(blocks.size()));
  };
  const kv::PoolShape exact = shape_of(tensor::KvCodec::kF32), coded = shape_of(codec);
  const StepLimits limits{.rows_max = rows, .logits_rows_max = 1, .context_max = rows};
  TALLY_TRY(Scratch scratch, make_scratch(limits, exact.layers, pool.threads(), accounts));
  const ProbeLayout layout = lay_out_probe(state_->program, exact, coded, rows, pool.threads());
  TALLY_TRY(const base::Arena memory, accounts.reserve(base::Account::kKv, "probe", layout.bytes));
  const kv::View exact_view(&exact, memory.data() + layout.reference);
  const kv::View coded_view(&coded, memory.data() + layout.candidate);
  KvProbe probe{.view = &coded_view,
                .out = reinterpret_cast<float*>(memory.data() + layout.out),
                .worker = memory.data() + layout.worker,
                .worker_bytes = layout.worker_bytes,
                .refused = std::vector<uint8_t>(rows),
                .damage = std::vector<double>(state_->program.attention.size())};

  const Segment segment{.rows = rows};
  const Batch batch{.tokens = tokens, .segments = {&segment, 1}, .tables = blocks, .logits_rows = {}};
  const StepContext step{&batch,           &exact_view,          &state_->weights,
                         &state_->kernels, scratch.state_.get(), &probe};
  run(state_->program, step, pool);
  return std::move(probe.damage);
}

std::vector<tensor::KvLayout> kv_layouts(const ModelSpec& spec, std::span<const tensor::KvCodec> codecs,
                                         uint32_t block_tokens) {
  TALLY_CHECK(codecs.size() == spec.layer.size(), "codecs of layers", codecs.size(), spec.layer.size());
  std::vector<tensor::KvLayout> layouts;
  for (size_t i = 0; i < codecs.size(); ++i) {
    layouts.push_back(tensor::make_kv_layout(codecs[i], spec.layer[i].kv_heads, spec.attention.key_dim,
                                             spec.attention.value_dim, block_tokens));
  }
  return layouts;
}

std::vector<tensor::KvLayout> kv_layouts(const ModelSpec& spec, tensor::KvCodec codec,
                                         uint32_t block_tokens) {
  return kv_layouts(spec, std::vector<tensor::KvCodec>(spec.layer.size(), codec), block_tokens);
}

}  // namespace tally::model
