#include "engine/memory.h"

#include "base/log.h"
#include "engine/drafts/draft_model.h"
#include "engine/drafts/lookup.h"
#include "engine/kv_check.h"
#include "engine/loop.h"
#include "engine/plan_sizes.h"
#include "engine/stream_plan.h"
#include "engine/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tally::engine {
namespace {

using base::Account;
using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string mib(uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB); }

Error too_small(const MemoryPlan& plan, const Sizes& s, uint32_t block_tokens, std::string_view what,
                std::string_view offer = "") {
  const uint64_t left = plan.budget_bytes > plan.total_bytes ? plan.budget_bytes - plan.total_bytes : 0;
  return {
      ErrorCode::kUnavailable,
      fmt::format(
          "{}: --memory {} ({} bytes), {}; one KV block of {} tokens is {} bytes; {} bytes are left for KV{}",
          what, mib(plan.budget_bytes), plan.budget_bytes, plan_table(plan), block_tokens, s.block_bytes,
          left, offer)};
}

// Divides what the budget leaves into blocks. `sizes` gets the context that fits, if none was asked for.
Result<MemoryPlan> divide(const LoadRequest& request, Sizes& s) {
  const Settings& set = request.settings;
  if (request.weights.mode == "stream" && !s.is_loaded) s.load.stream.layers = s.spec().layers;  // at first
  MemoryPlan plan = fixed_plan(request, s);
  const uint64_t budget = plan.budget_bytes - std::min(plan.budget_bytes, request.constraint_room_bytes);
  const auto left = [&] { return budget - std::min(budget, plan.total_bytes); };
  // A context that nobody asked for is as long as its tables leave room for.
  constexpr uint32_t kContextMin = 512;
  while (set.max_model_len == 0 && plan.total_bytes > budget && s.context() > kContextMin) {
    s.set_context(s.context() / 2);
    plan = fixed_plan(request, s);
  }
  choose_streamed(request, s);
  plan = fixed_plan(request, s);
  const PoolPrice price(request, s);
  // By default not more than the sequences can be expected to fill: most end far below the context.
  constexpr uint64_t kFullShare = 8;
  const uint64_t full = price.blocks_for(s.context());
  const uint64_t useful = std::max(full, set.max_seqs * full / kFullShare);
  uint64_t blocks = std::min(price.blocks_within(left()), useful);
  if (set.kv_pool_bytes > 0) {
    blocks = std::min(set.kv_pool_bytes / s.block_bytes, kPoolBlocksMax);
    if (price.bytes(blocks) > left()) {
      return too_small(plan, s, set.block_tokens,
                       fmt::format("--kv-pool {} does not fit", set.kv_pool_bytes));
    }
  }
  if (blocks < kPoolBlocksMin)
    return too_small(plan, s, set.block_tokens, "the model does not fit", stream_offer(request));
  const uint64_t holds = blocks * set.block_tokens;
  if (set.max_model_len > holds) {
    return too_small(plan, s, set.block_tokens,
                     fmt::format("--max-model-len {} does not fit (the pool would hold {} tokens)",
                                 set.max_model_len, holds));
  }
  if (holds < s.context()) {  // smaller tables, and the same pool
    s.set_context(static_cast<uint32_t>(holds));
    plan = fixed_plan(request, s);
  }
  add_pool(plan, PoolPrice(request, s), s, blocks);
  return plan;
}

// Looks whether the KV type suits the model, and divides again if layers keep another.
Result<void> check_layers(const LoadRequest& request, Parts& parts, Sizes& s, MemoryPlan& plan) {
  const tensor::KvCodec codec = s.codec;
  if (!wants_kv_check(request.kv_check.mode, codec)) return {};
  std::span<const TokenId> probe = request.kv_check.probe;
  probe = probe.first(std::min<size_t>(probe.size(), plan.max_model_len));
  const Result<KvCheck> check = check_kv(*parts.model, codec, probe, *parts.pool, *parts.accounts);
  if (!check) {  // what was planned fits, and the look at it does not: no reason not to serve
    base::log_warn("--kv-check: {}; the KV type is taken unseen", check.error().message);
    return {};
  }
  if (check->kept_bf16.empty()) return {};
  base::log_warn("{}", kv_check_text(*check, codec));
  parts.info.bf16_layers = check->kept_bf16;
  s.set_codecs(check->codecs, request.settings.block_tokens);
  TALLY_TRY(plan, divide(request, s));
  return {};
}

// What is planned, and of it what is no arena and does not come and go.
void book_plan(const MemoryPlan& plan, base::Accounts& accounts) {
  constexpr std::string_view kBooked[] = {
      "sampling", "block ledger", "process", "tokenizer", "connections", "step log", sample::kConstraintPart};
  for (const PlanAccount& a : plan.accounts) {
    for (const PlanPart& part : a.parts) {
      accounts.plan(a.account, part.name, part.bytes);
      if (std::find(std::begin(kBooked), std::end(kBooked), part.name) != std::end(kBooked))
        accounts.book(a.account, part.name, static_cast<int64_t>(part.bytes));
    }
  }
}

Result<void> open_disk(const LoadRequest& request, Parts& parts, base::Accounts& accounts) {
  const Settings& set = request.settings;
  if (request.kv_disk.directory.empty()) return {};
  if (!set.prefix_cache || set.policy.allocator == "reserve") {
    return Error{ErrorCode::kConfig,
                 "--kv-disk keeps what the prefix cache finds: it goes with --prefix-cache on and --allocator "
                 "paged only"};
  }
  const DiskTierConfig disk{request.kv_disk.directory, request.kv_disk.bytes,
                            parts.model->fingerprint() + (request.dequantize_to_f32 ? " f32 " : " ") +
                                  set.policy.attention,  // each with an arithmetic of its own
                            set.block_tokens};
  TALLY_TRY(parts.disk, DiskTier::open(disk, parts.shape, accounts));
  return {};
}

void set_policy(const Policy& policy, Parts& parts) {
  // Aimed below the bound, which is to hold for nearly all steps and not on average.
  constexpr double kAim = 0.9;
  parts.sched.step_latency = static_cast<Tick>(kAim * static_cast<double>(policy.step_latency_us));
  if (policy.batching == "static") parts.sched.batching = sched::Batching::kStatic;
  if (policy.allocator == "reserve") parts.sched.allocator = sched::Allocator::kReserve;
  parts.cascade = policy.cascade;
}

sched::StepCost step_cost(Parts& parts, uint32_t step_tokens, uint32_t context_max) {
  const kv::View view(&parts.shape, parts.kv_memory.data());
  return parts.sched.step_latency > 0
             ? measure_cost(*parts.model, view, parts.scratch, *parts.pool, step_tokens, context_max)
             : estimate_cost(*parts.model, view, parts.scratch, *parts.pool,
                             std::min(step_tokens, context_max), parts.info.tuning);
}

RowPrices row_prices(const LoadRequest& request, const MemoryPlan& plan, Parts& parts) {
  if (!request.row_prices_us.empty()) return RowPrices(request.row_prices_us, true);
  const uint32_t rows_max = std::min(request.settings.step_tokens, plan.max_model_len);
  std::vector<uint32_t> rows;
  for (const uint32_t r : RowPrices::kMeasuredRows)
    if (r <= rows_max) rows.push_back(r);
  const kv::View view(&parts.shape, parts.kv_memory.data());
  return RowPrices(measure_rows(*parts.model, view, parts.scratch, *parts.pool, rows));
}

// Tokens that no draft has: ends, and what is no text.
std::vector<TokenId> draft_stops(const LoadRequest& request) {
  std::vector<TokenId> stops = request.draft_stop_ids;
  stops.insert(stops.end(), request.end_ids.begin(), request.end_ids.end());
  std::sort(stops.begin(), stops.end());
  return stops;
}

Result<std::unique_ptr<Proposer>> load_draft_model(const LoadRequest& request, const MemoryPlan& plan,
                                                   const Sizes& draft, Parts& parts) {
  TALLY_TRY(model::Model model,
            model::Model::load(draft.file, draft.kernels, draft.load, *parts.pool, *parts.accounts));
  DraftModelParts d;
  d.model = std::make_unique<model::Model>(std::move(model));
  d.shape = kv::make_pool_shape(draft.layouts, plan.blocks);
  TALLY_TRY(d.memory, parts.accounts->reserve(Account::kKv, "pool", d.shape.pool_bytes()));
  const uint32_t threads = request.settings.threads;
  TALLY_TRY(d.scratch, d.model->make_scratch(draft.limits, draft.layouts, threads, *parts.accounts));
  d.stops = draft_stops(request), d.context = draft.context(), d.rows_max = draft.limits.rows_max;
  d.sure_enough = request.draft_sure_enough, d.text = request.draft_text;
  d.vocab = draws_guesses(request.settings) ? parts.model->spec().vocab : 0;
  return std::unique_ptr<Proposer>(
      std::make_unique<DraftModel>(std::move(d), draft_seats(request.settings), *parts.pool));
}

// Who drafts, and what rows cost. Requires: weights, scratch and pool are there.
Result<void> make_drafter(const LoadRequest& request, const MemoryPlan& plan, const Sizes& s, Parts& parts) {
  const Settings& set = request.settings;
  const uint32_t seats = draft_seats(set), context = plan.max_model_len;
  if (seats == 0) return {};
  TALLY_TRY(parts.draft_memory,
            parts.accounts->reserve(Account::kRuntime, "drafts", Lookup::bytes(seats, context)));
  const std::span memory(parts.draft_memory.data(), parts.draft_memory.size());
  std::vector<std::unique_ptr<Proposer>> proposers;
  proposers.push_back(std::make_unique<Lookup>(memory, seats, context, draft_stops(request)));
  const RowPrices prices = row_prices(request, plan, parts);
  base::log_info("drafts: a step of 2, 4, 8 rows takes {:.2f}, {:.2f}, {:.2f} of one with 1",
                 prices.us(2) / prices.us(1), prices.us(4) / prices.us(1), prices.us(8) / prices.us(1));
  if (s.draft) {
    TALLY_TRY(std::unique_ptr<Proposer> model, load_draft_model(request, plan, *s.draft, parts));
    base::log_info("drafts: one of the model takes {:.2f} of a step", model->us_per_draft() / prices.us(1));
    proposers.push_back(std::move(model));
  }
  DraftLimits limits{seats, set.policy.speculate_max, parts.model->spec().vocab};
  if (draws_guesses(set)) {
    const uint64_t bytes = chances_bytes(parts.model->spec().vocab);
    TALLY_TRY(parts.draft_chances, parts.accounts->reserve(Account::kActivations, "draft chances", bytes));
    limits.chances = {reinterpret_cast<float*>(parts.draft_chances.data()), bytes / sizeof(float)};
  }
  parts.rejection_sampling = set.policy.rejection_sampling;
  parts.drafter = std::make_unique<Drafter>(limits, std::move(proposers), prices);
  return {};
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
  TALLY_TRY(Sizes sizes, Sizes::read(request));
  TALLY_TRY(MemoryPlan plan, divide(request, sizes));
  plan.stream = stream_outlook(request, sizes);
  return plan;
}

Result<std::unique_ptr<Engine>> load_engine(const LoadRequest& request, base::Accounts& accounts) {
  const Settings& set = request.settings;
  TALLY_TRY(Sizes s, Sizes::read(request));
  TALLY_TRY(MemoryPlan plan, divide(request, s));
  plan.stream = stream_outlook(request, s);

  Parts parts;
  if (plan.stream) {
    base::log_info("weights: {}", stream_text(*plan.stream));
    parts.disk_bytes_per_s = plan.stream->disk_bytes_per_s;
  }
  parts.accounts = &accounts;
  parts.pool = std::make_unique<base::ThreadPool>(set.threads, kernels::set_float_mode);
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
  s.is_loaded = true;
  TALLY_TRY_VOID(check_layers(request, parts, s, plan));
  book_plan(plan, accounts);
  TALLY_TRY(parts.scratch, parts.model->make_scratch(s.limits, s.layouts, set.threads, accounts));
  parts.shape = kv::make_pool_shape(s.layouts, plan.blocks);
  TALLY_TRY(parts.kv_memory,
            accounts.reserve(Account::kKv, "pool", parts.shape.pool_bytes(), base::FirstTouch::kByOwner));
  const uint64_t kv_bytes = parts.kv_memory.size();
  if (!parts.kv_memory.touch(*parts.pool, [&](uint64_t done) {
        return !request.progress || request.progress(weight_bytes + done, weight_bytes + kv_bytes);
      }))
    return Error{ErrorCode::kUnavailable, "loading was interrupted"};

  TALLY_TRY_VOID(open_disk(request, parts, accounts));
  set_policy(set.policy, parts);
  parts.cost = step_cost(parts, set.step_tokens, plan.max_model_len);
  TALLY_TRY_VOID(make_drafter(request, plan, s, parts));
  parts.sched.seqs_max = set.max_seqs, parts.sched.queue_max = set.max_queue;
  parts.sched.logits_rows_max = s.limits.logits_rows_max;
  parts.sched.step_tokens = set.step_tokens, parts.sched.model_len_max = plan.max_model_len;
  parts.ledger = ledger_config(set, plan.blocks);
  parts.end_ids = request.end_ids, parts.suppressed_ids = request.suppressed_ids;
  parts.info = {s.spec().vocab,
                plan.max_model_len,
                std::min(set.max_seqs, set.step_tokens),  // each has a row in every step
                set.block_tokens,
                plan.blocks,
                set.kv_type,
                std::string(kernels::isa_name(s.kernels.isa)),
                parts.model->fingerprint(),
                std::move(parts.info.tuning),
                std::move(parts.info.bf16_layers),
                s.spec().architecture,
                set.threads,
                request.roofs,
                set.policy.speculate,
                draft_seats(set) > 0 ? set.policy.speculate_max : 0,
                PoolPrice(request, s).stream_bytes(plan.blocks)};
  return std::unique_ptr<Engine>(std::make_unique<Loop>(std::move(parts)));
}

}  // namespace tally::engine
