#include "engine/memory.h"

#include "base/log.h"
#include "engine/loop.h"
#include "engine/stream.h"
#include "engine/tuning.h"
#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace tally::engine {
namespace {

using base::Account;
using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Code, stacks, malloc arenas, the scheduler's tables: an upper estimate, see docs/measured.md.
constexpr uint64_t kProcessBytes = 24 * kMiB;

Result<kernels::Isa> find_isa(const std::string& name) {
  if (name == "best") return kernels::best_isa();
  const auto isa = kernels::find_isa(name);
  if (!isa || !kernels::host_has(*isa)) {
    return Error{ErrorCode::kConfig, fmt::format("--isa {}: this CPU has {}", name, kernels::host_isas())};
  }
  return *isa;
}

Result<tensor::KvCodec> find_codec(const std::string& name) {
  std::string known;
  for (const tensor::KvCodecInfo& row : tensor::kKvCodecs) {
    if (row.name == name) return row.codec;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Error{ErrorCode::kConfig, fmt::format("--kv-type {}: built are {}", name, known)};
}

// Everything that is known before the budget is divided.
struct Sizes {
  gguf::File file;
  model::ModelSpec spec;
  kernels::KernelTable kernels;
  tensor::KvCodec codec{};
  model::LoadOptions load;
  model::StepLimits limits;
  std::vector<tensor::KvLayout> layouts;
  uint64_t block_bytes = 0;
  uint32_t wanted_len = 0;
};

Result<Sizes> measure(const LoadRequest& request) {
  const Settings& settings = request.settings;
  TALLY_TRY(gguf::File file, gguf::File::open(request.model_path));
  TALLY_TRY(const kernels::Isa isa, find_isa(settings.isa));
  TALLY_TRY(const tensor::KvCodec codec, find_codec(settings.kv_type));
  TALLY_TRY(model::ModelSpec spec, model::read_spec(file));
  if (settings.max_model_len > spec.context) {
    return Error{ErrorCode::kConfig, fmt::format("--max-model-len {}: the model's context is {} tokens",
                                                 settings.max_model_len, spec.context)};
  }
  Sizes s{std::move(file), std::move(spec), kernels::kernel_table(isa), codec, {}, {}, {}, 0, 0};
  s.wanted_len = settings.max_model_len == 0 ? s.spec.context : settings.max_model_len;
  s.load.dequantize_to_f32 = request.dequantize_to_f32;
  s.load.context = s.wanted_len;
  s.load.progress = request.progress;
  s.limits.rows_max = settings.step_tokens;
  s.limits.logits_rows_max = settings.max_seqs;
  s.limits.context_max = s.wanted_len;
  s.limits.standard_attention = settings.policy.attention == "standard";
  s.layouts = model::kv_layouts(s.spec, s.codec, settings.block_tokens);
  s.block_bytes = kv::pool_block_bytes(s.layouts);
  return s;
}

PlanAccount account(Account which, std::vector<PlanPart> parts) {
  PlanAccount a{which, 0, std::move(parts)};
  for (const PlanPart& part : a.parts) a.bytes += part.bytes;
  return a;
}

std::string mib(uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB); }

// A worker's candidates, and its copy of a row that several choices draw from.
uint64_t sampling_bytes(uint32_t threads, uint32_t vocab) {
  return threads * (sample::Scratch::bytes(vocab) + uint64_t{vocab} * sizeof(float));
}

// The three accounts that do not depend on the pool.
Result<MemoryPlan> fixed_part(const LoadRequest& request, const Sizes& s) {
  const Settings& set = request.settings;
  MemoryPlan plan;
  plan.budget_bytes = set.memory_bytes;
  plan.max_seqs = set.max_seqs;
  plan.kv_bytes_per_token = s.block_bytes / set.block_tokens;
  TALLY_TRY(const size_t packed, model::Model::packed_bytes(s.file, s.kernels, s.load));
  TALLY_TRY(const size_t scratch,
            model::Model::scratch_bytes(s.file, s.kernels, s.load, s.limits, s.layouts, set.threads));
  const uint64_t sampling = sampling_bytes(set.threads, s.spec.vocab);
  const uint64_t streams = uint64_t{set.max_seqs} * TokenStream::bytes(s.wanted_len, 0);
  plan.accounts.push_back(account(
      Account::kWeights, {{"packed weights and rope tables", packed, "sum over tensors of packed groups"}}));
  plan.accounts.push_back(account(
      Account::kActivations,
      {{"scratch", scratch,
        fmt::format("{} rows x live buffers + {} x {} logits", set.step_tokens, set.max_seqs, s.spec.vocab)},
       {"sampling", sampling, fmt::format("{} threads x candidates of {}", set.threads, s.spec.vocab)}}));
  plan.accounts.push_back(account(
      Account::kRuntime,
      {{"process", kProcessBytes, "code, stacks, allocator"},
       {"tokenizer and connections", request.runtime_bytes, "tables of the vocabulary"},
       {"token streams", streams, fmt::format("{} sequences x {} tokens", set.max_seqs, s.wanted_len)}}));
  for (const PlanAccount& a : plan.accounts) plan.total_bytes += a.bytes;
  return plan;
}

Error too_small(const MemoryPlan& plan, const Sizes& s, uint32_t block_tokens, std::string_view what) {
  const uint64_t left = plan.budget_bytes > plan.total_bytes ? plan.budget_bytes - plan.total_bytes : 0;
  return {
      ErrorCode::kUnavailable,
      fmt::format(
          "{}: --memory {} ({} bytes), {}; one KV block of {} tokens is {} bytes; {} bytes are left for KV",
          what, mib(plan.budget_bytes), plan.budget_bytes, plan_table(plan), block_tokens, s.block_bytes,
          left)};
}

kv::LedgerConfig ledger_config(const Settings& set, uint64_t blocks) {
  constexpr uint32_t kEventsKept = 4096;
  return {.blocks = static_cast<uint32_t>(blocks),
          .block_tokens = set.block_tokens,
          .prefix_cache = set.prefix_cache,
          .events_kept = set.prefix_cache ? kEventsKept : 0};
}

uint64_t ledger_bytes(const Settings& set, uint64_t blocks) {
  return kv::ledger_bytes(ledger_config(set, blocks));
}

// Divides what is left into blocks.
Result<MemoryPlan> divide(const LoadRequest& request, const Sizes& s) {
  const Settings& set = request.settings;
  TALLY_TRY(MemoryPlan plan, fixed_part(request, s));
  // The events that the ledger keeps cost the same whatever the number of blocks.
  const uint64_t some = 4096, events = 2 * ledger_bytes(set, some) - ledger_bytes(set, 2 * some);
  const uint64_t taken = plan.total_bytes + events;
  const uint64_t left = plan.budget_bytes > taken ? plan.budget_bytes - taken : 0;
  const auto blocks_for = [&](uint64_t tokens) { return (tokens + set.block_tokens - 1) / set.block_tokens; };
  constexpr uint64_t kBlocksMin = 2, kBlocksMax = 1u << 24;
  // A block costs its bytes and its record in the ledger.
  const uint64_t cost = s.block_bytes + (ledger_bytes(set, some) - events) / some + 1;
  // By default not more than the sequences can be expected to fill: most end far below the context.
  constexpr uint64_t kFullShare = 8;
  const uint64_t full = blocks_for(s.wanted_len);
  const uint64_t useful = std::max(full, set.max_seqs * full / kFullShare);
  uint64_t blocks = std::min({left / cost, useful, kBlocksMax});
  if (set.kv_pool_bytes > 0) {
    blocks = std::min(set.kv_pool_bytes / s.block_bytes, kBlocksMax);
    if (blocks * cost > left) {
      return too_small(plan, s, set.block_tokens,
                       fmt::format("--kv-pool {} does not fit", set.kv_pool_bytes));
    }
  }
  if (blocks < kBlocksMin) return too_small(plan, s, set.block_tokens, "the model does not fit");
  plan.blocks = static_cast<uint32_t>(blocks);
  const uint64_t holds = uint64_t{plan.blocks} * set.block_tokens;
  if (set.max_model_len > holds) {
    return too_small(plan, s, set.block_tokens,
                     fmt::format("--max-model-len {} does not fit (the pool would hold {} tokens)",
                                 set.max_model_len, holds));
  }
  plan.max_model_len = static_cast<uint32_t>(std::min<uint64_t>(s.wanted_len, holds));
  const uint64_t pool = plan.blocks * s.block_bytes, ledger = ledger_bytes(set, plan.blocks);
  plan.accounts.insert(
      plan.accounts.begin() + 1,
      account(Account::kKv, {{"pool", pool, fmt::format("{} blocks x {} bytes", plan.blocks, s.block_bytes)},
                             {"block ledger", ledger, fmt::format("{} block records", plan.blocks)}}));
  plan.total_bytes += pool + ledger;
  return plan;
}

// A full house at full length, and as much again as the queue holds, within a sixteenth of the budget.
uint64_t stream_bytes_max(const Settings& set, const MemoryPlan& plan) {
  const uint64_t one = TokenStream::bytes(plan.max_model_len, 0);
  return std::max(set.max_seqs * one,
                  std::min((uint64_t{set.max_seqs} + set.max_queue) * one, set.memory_bytes / 16));
}

void set_policy(const Policy& policy, Parts& parts) {
  // Aimed below the bound, which is to hold for nearly all steps and not on average.
  constexpr double kAim = 0.9;
  parts.sched.step_latency = static_cast<Tick>(kAim * static_cast<double>(policy.step_latency_us));
  if (policy.batching == "static") parts.sched.batching = sched::Batching::kStatic;
  if (policy.allocator == "reserve") parts.sched.allocator = sched::Allocator::kReserve;
}

}  // namespace

std::string plan_table(const MemoryPlan& plan) {
  std::string out;
  for (const PlanAccount& a : plan.accounts) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", base::account_name(a.account), mib(a.bytes));
  }
  return out;
}

Result<MemoryPlan> plan_memory(const LoadRequest& request) {
  TALLY_TRY(const Sizes sizes, measure(request));
  return divide(request, sizes);
}

Result<std::unique_ptr<Engine>> load_engine(const LoadRequest& request, base::Accounts& accounts) {
  const Settings& set = request.settings;
  TALLY_TRY(Sizes s, measure(request));
  TALLY_TRY(const MemoryPlan plan, divide(request, s));
  for (const PlanAccount& a : plan.accounts) accounts.set_planned(a.account, a.bytes);
  accounts.book(Account::kRuntime, "process", kProcessBytes);
  accounts.book(Account::kRuntime, "tokenizer and connections", static_cast<int64_t>(request.runtime_bytes));
  accounts.book(Account::kActivations, "sampling",
                static_cast<int64_t>(sampling_bytes(set.threads, s.spec.vocab)));

  Parts parts;
  parts.accounts = &accounts;
  parts.pool = std::make_unique<base::ThreadPool>(set.threads, kernels::set_float_mode);
  s.load.context = plan.max_model_len;
  // The pool's pages are a part of what the loader waits for.
  const uint64_t pool_bytes = plan.blocks * s.block_bytes;
  uint64_t weight_bytes = 0;
  if (request.progress) {
    s.load.progress = [&](uint64_t done, uint64_t total) {
      weight_bytes = total;
      return request.progress(done, total + pool_bytes);
    };
  }
  TALLY_TRY(model::Model model, model::Model::load(s.file, s.kernels, s.load, *parts.pool, accounts));
  parts.model = std::make_unique<model::Model>(std::move(model));
  kernels::set_float_mode();
  parts.info.tuning = tune(request.tune, kernels::isa_name(s.kernels.isa), *parts.model, *parts.pool);
  if (!parts.model->unused_tensors().empty()) {
    base::log_warn("{} tensors of the file are not used, the first is {}",
                   parts.model->unused_tensors().size(), parts.model->unused_tensors().front());
  }
  TALLY_TRY(parts.scratch, parts.model->make_scratch(s.limits, s.layouts, set.threads, accounts));
  parts.shape = kv::make_pool_shape(s.layouts, plan.blocks);
  TALLY_TRY(parts.kv_memory,
            accounts.reserve(Account::kKv, "pool", parts.shape.pool_bytes(), base::FirstTouch::kByOwner));
  const uint64_t kv_bytes = parts.kv_memory.size();
  if (!parts.kv_memory.touch(*parts.pool, [&](uint64_t done) {
        return !request.progress || request.progress(weight_bytes + done, weight_bytes + kv_bytes);
      }))
    return Error{ErrorCode::kUnavailable, "loading was interrupted"};

  accounts.book(Account::kKv, "block ledger", static_cast<int64_t>(ledger_bytes(set, plan.blocks)));

  set_policy(set.policy, parts);
  if (parts.sched.step_latency > 0) {
    const kv::View view(&parts.shape, parts.kv_memory.data());
    parts.cost =
        measure_cost(*parts.model, view, parts.scratch, *parts.pool, set.step_tokens, plan.max_model_len);
  }
  parts.sched.seqs_max = set.max_seqs, parts.sched.queue_max = set.max_queue;
  parts.sched.step_tokens = set.step_tokens, parts.sched.model_len_max = plan.max_model_len;
  parts.ledger = ledger_config(set, plan.blocks);
  parts.stream_bytes_max = stream_bytes_max(set, plan);
  parts.end_ids = request.end_ids, parts.suppressed_ids = request.suppressed_ids;
  parts.info = {s.spec.vocab,
                plan.max_model_len,
                std::min(set.max_seqs, set.step_tokens),  // each has a row in every step
                set.block_tokens,
                plan.blocks,
                set.kv_type,
                std::string(kernels::isa_name(s.kernels.isa)),
                parts.model->fingerprint(),
                std::move(parts.info.tuning)};
  return std::unique_ptr<Engine>(std::make_unique<Loop>(std::move(parts)));
}

}  // namespace tally::engine
