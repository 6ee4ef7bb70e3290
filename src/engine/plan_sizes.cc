#include "engine/plan_sizes.h"

#include "engine/disk/disk_tier.h"
#include "engine/drafts/draft_model.h"
#include "engine/drafts/lookup.h"
#include "engine/drafts/row_prices.h"
#include "engine/step_log.h"
#include "engine/stream.h"
#include "sample/constraint.h"
#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::engine {
namespace {

using base::Account;
using base::Accounts;
using base::Error;
using base::ErrorCode;
using base::Result;

PlanAccount account(Account which, std::vector<PlanPart> parts) {
  PlanAccount a{which, 0, std::move(parts)};
  for (const PlanPart& part : a.parts) a.bytes += part.bytes;
  return a;
}

void add_part(MemoryPlan& plan, Account which, PlanPart part) {
  PlanAccount& a = plan.accounts[static_cast<size_t>(which)];
  a.bytes += part.bytes, plan.total_bytes += part.bytes;
  a.parts.push_back(std::move(part));
}

std::string kinds_text(const Sizes& s) {
  std::string text;
  for (const auto& [kind, bytes] : s.blueprint.packed_parts())
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", kind, bytes);
  return text;
}

// Adds to a part of the same name, as the accounts do, or makes one.
void merge_part(std::vector<PlanPart>& parts, PlanPart part) {
  for (PlanPart& p : parts) {
    if (p.name != part.name) continue;
    p.bytes += part.bytes, p.formula += "; of the model that drafts: " + part.formula;
    return;
  }
  parts.push_back(std::move(part));
}

void add_weights(const Sizes& s, std::vector<PlanPart>& parts) {
  if (const uint32_t streamed = s.load.stream.layers; streamed == 0) {
    merge_part(parts, {"packed weights", Accounts::arena_bytes(s.blueprint.packed_bytes()), kinds_text(s)});
  } else {
    const model::StreamSizes sizes = s.blueprint.stream_sizes(streamed);
    const uint32_t layers = s.spec().layers;
    merge_part(parts, {"packed weights", Accounts::arena_bytes(sizes.kept_bytes),
                       fmt::format("{} of {} layers, and what all layers share", layers - streamed, layers)});
    merge_part(parts,
               {"ring", Accounts::arena_bytes(sizes.ring_bytes),
                fmt::format("of {} layers, {} bytes, that each pass reads", streamed, sizes.read_bytes)});
  }
  if (const size_t rope = s.blueprint.rope_bytes(s.load.context); rope > 0) {
    merge_part(parts, {"rope tables", Accounts::arena_bytes(rope),
                       fmt::format("{} positions x cos and sin of each rotated pair x 4 bytes",
                                   s.load.context)});
  }
  if (s.draft) add_weights(*s.draft, parts);
}

PlanAccount weights_account(const Sizes& s) {
  std::vector<PlanPart> parts;
  add_weights(s, parts);
  return account(Account::kWeights, std::move(parts));
}

PlanAccount activations_account(const LoadRequest& request, const Sizes& s) {
  const Settings& set = request.settings;
  const uint32_t vocab = s.spec().vocab;
  std::vector<PlanPart> parts = {
      {"scratch", Accounts::arena_bytes(s.blueprint.scratch_bytes(s.limits, s.layouts)),
       fmt::format("{} rows x buffers live at once + {} x {} logits x 4 bytes + attention of {} threads",
                   set.step_tokens, s.limits.logits_rows_max, vocab, set.threads)}};
  if (s.draft) {
    merge_part(parts, {"scratch", Accounts::arena_bytes(s.draft->blueprint.scratch_bytes(s.draft->limits,
                                                                                         s.draft->layouts)),
                       fmt::format("{} rows", s.draft->limits.rows_max)});
  }
  if (const size_t scores = s.blueprint.score_matrix_bytes(s.limits); scores > 0) {
    parts.push_back(
        {"score matrix", Accounts::arena_bytes(scores),
         fmt::format("{} heads x {} rows x {} positions x 4 bytes",
                     scores / sizeof(float) / set.step_tokens / s.context(), set.step_tokens, s.context())});
  }
  parts.push_back({"sampling", sampling_bytes(set.threads, vocab),
                   fmt::format("{} threads x (candidates and a row of {})", set.threads, vocab)});
  if (s.draft)
    merge_part(parts, {"sampling", sample::Scratch::bytes(s.draft->spec().vocab), "candidates of a thread"});
  if (draws_guesses(set)) {
    parts.push_back({"draft chances", Accounts::arena_bytes(chances_bytes(vocab)),
                     fmt::format("{} drafts x {} x 4 bytes", RowPrices::kRowsMax, vocab)});
    merge_part(parts, {"sampling", DraftModel::drawing_bytes(vocab), "a row and candidates of drafts"});
  }
  return account(Account::kActivations, std::move(parts));
}

}  // namespace

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

Result<Sizes> Sizes::read(const LoadRequest& request) {
  const Settings& set = request.settings;
  TALLY_TRY(gguf::File file, gguf::File::open(request.model_path));
  TALLY_TRY(const kernels::Isa isa, find_isa(set.isa));
  TALLY_TRY(const tensor::KvCodec codec, find_codec(set.kv_type));
  const kernels::KernelTable table = kernels::kernel_table(isa);
  model::LoadOptions load;
  load.dequantize_to_f32 = request.dequantize_to_f32;
  load.progress = request.progress;
  load.stream.directory = request.weights.directory;
  TALLY_TRY(model::Blueprint blueprint, model::Blueprint::read(file, table, load, set.threads));
  const uint32_t most = blueprint.spec().context;
  if (set.max_model_len > most) {
    return Error{ErrorCode::kConfig, fmt::format("--max-model-len {}: the model's context is {} tokens",
                                                 set.max_model_len, most)};
  }
  Sizes s{std::move(file), table, std::move(blueprint), codec, std::move(load), {}, {}, 0};
  s.limits.rows_max = set.step_tokens;
  s.limits.logits_rows_max = logits_rows_max(set);
  s.limits.standard_attention = set.policy.attention == "standard";
  s.set_context(set.max_model_len == 0 ? most : set.max_model_len);
  s.set_codec(codec, set.block_tokens);
  if (set.policy.speculate == "draft") {
    TALLY_TRY(s.draft, read_draft(request));
    s.set_context(s.context());
  }
  return s;
}

// The model that drafts: one row of logits a pass, int8 KV, and no more context than it has.
Result<std::unique_ptr<Sizes>> Sizes::read_draft(const LoadRequest& request) {
  LoadRequest of_draft;
  of_draft.model_path = request.settings.policy.draft_model;
  of_draft.settings = request.settings;
  of_draft.settings.policy = {};
  of_draft.settings.max_model_len = 0, of_draft.settings.max_seqs = 1;
  of_draft.settings.kv_type = tensor::kv_codec_info(tensor::KvCodec::kInt8).name;
  TALLY_TRY(Sizes sizes, read(of_draft));
  return std::make_unique<Sizes>(std::move(sizes));
}

void Sizes::set_context(uint32_t context) {
  limits.context_max = context;
  if (!is_loaded) load.context = context;
  if (draft) draft->set_context(std::min(context, draft->spec().context));
}

void Sizes::set_codec(tensor::KvCodec of, uint32_t block_tokens) {
  codec = of;
  set_codecs(std::vector<tensor::KvCodec>(spec().layer.size(), of), block_tokens);
}

void Sizes::set_codecs(std::span<const tensor::KvCodec> of_layers, uint32_t block_tokens) {
  layouts = model::kv_layouts(spec(), of_layers, block_tokens);
  block_bytes = kv::pool_block_bytes(layouts);
}

kv::LedgerConfig ledger_config(const Settings& set, uint64_t blocks) {
  constexpr uint32_t kEventsKept = 4096;
  return {.blocks = static_cast<uint32_t>(blocks),
          .block_tokens = set.block_tokens,
          .prefix_cache = set.prefix_cache,
          .events_kept = set.prefix_cache ? kEventsKept : 0};
}

uint32_t logits_rows_max(const Settings& set) {
  return set.max_seqs + (draft_seats(set) > 0 ? RowPrices::kRowsMax : 0);
}

uint32_t draft_seats(const Settings& set) {
  return set.policy.speculate == "off" ? 0 : std::min(set.max_seqs, set.step_tokens);
}

bool draws_guesses(const Settings& set) {
  return set.policy.speculate == "draft" && set.policy.rejection_sampling;
}

uint64_t chances_bytes(uint32_t vocab) { return uint64_t{RowPrices::kRowsMax} * vocab * sizeof(float); }

uint64_t sampling_bytes(uint32_t threads, uint32_t vocab) {
  return threads * (sample::Scratch::bytes(vocab) + uint64_t{vocab} * sizeof(float));
}

PoolPrice::PoolPrice(const LoadRequest& request, const Sizes& sizes)
    : settings_(request.settings),
      disk_(request.kv_disk),
      block_bytes_(sizes.block_bytes),
      draft_block_bytes_(sizes.draft ? sizes.draft->block_bytes : 0),
      block_tokens_(settings_.block_tokens),
      context_(sizes.context()) {}

// Two arenas at the most.
uint64_t PoolPrice::pool_bytes(uint64_t blocks) const {
  return Accounts::arena_bytes(blocks * block_bytes_) +
         (draft_block_bytes_ > 0 ? Accounts::arena_bytes(blocks * draft_block_bytes_) : 0);
}

uint64_t PoolPrice::ledger_bytes(uint64_t blocks) const {
  return kv::ledger_bytes(ledger_config(settings_, blocks));
}

uint64_t PoolPrice::disk_bytes(uint64_t blocks) const {
  return disk_.directory.empty() ? 0 : DiskTier::bytes(block_bytes_, static_cast<uint32_t>(blocks), disk_.bytes);
}

// Room for every answer at full length, of those that run and those that wait; but for not more tokens than
// the pool holds in so many fillings, since most answers end far below the context. In any case for one that
// tells all there is of each token, and of its prompt's.
uint64_t PoolPrice::stream_bytes(uint64_t blocks) const {
  const uint64_t answers = uint64_t{settings_.max_seqs} + settings_.max_queue;
  const uint64_t tokens = std::min(answers * context_, kStreamPools * blocks * block_tokens_);
  return std::max(answers * TokenStream::bytes(1, 1) + tokens * TokenStream::token_bytes(0),
                  TokenStream::bytes(context_, sample::kLogprobsMax) +
                      PromptScores::bytes(context_, sample::kLogprobsMax));
}

uint64_t PoolPrice::blocks_within(uint64_t bytes) const {
  uint64_t fits = 0, too_many = kPoolBlocksMax + 1;
  while (too_many - fits > 1) {
    const uint64_t middle = fits + (too_many - fits) / 2;
    (this->bytes(middle) <= bytes ? fits : too_many) = middle;
  }
  return fits;
}

MemoryPlan fixed_plan(const LoadRequest& request, const Sizes& s) {
  const Settings& set = request.settings;
  MemoryPlan plan;
  plan.budget_bytes = set.memory_bytes;
  plan.max_seqs = set.max_seqs, plan.max_model_len = s.context(), plan.block_tokens = set.block_tokens;
  plan.kv_bytes_per_token = s.block_bytes / set.block_tokens;
  plan.accounts = {
      weights_account(s), account(Account::kKv, {}), activations_account(request, s),
      account(Account::kRuntime,
              {{"process", kProcessBytes, "data of the code, stacks, slack of the allocator"},
               {"tokenizer", request.tokenizer_bytes, "tables of the vocabulary"},
               {std::string(sample::kConstraintPart), request.constraint_table_bytes,
                "the vocabulary as grammars see it"},
               {"connections", request.connection_bytes, "sockets, and requests being read"},
               {"step log", StepLog::bytes(), fmt::format("the last {} steps", StepLog::kKept)}})};
  for (const PlanAccount& a : plan.accounts) plan.total_bytes += a.bytes;
  if (const uint32_t seats = draft_seats(set); seats > 0) {
    const uint32_t window = Lookup::window_tokens(s.context());
    add_part(plan, Account::kRuntime,
             {"drafts", Accounts::arena_bytes(Lookup::bytes(seats, s.context())),
              fmt::format("{} sequences x {} tokens x {} bytes", seats, window, LookupIndex::bytes(1))});
  }
  return plan;
}

void add_pool(MemoryPlan& plan, const PoolPrice& price, const Sizes& s, uint64_t blocks) {
  const uint32_t block_tokens = s.layouts[0].block_tokens;
  const auto kept = std::count_if(s.layouts.begin(), s.layouts.end(),
                                  [&](const tensor::KvLayout& l) { return l.codec != s.codec; });
  plan.blocks = static_cast<uint32_t>(blocks);
  add_part(plan, Account::kKv,
           {"pool", price.pool_bytes(blocks),
             fmt::format("{} blocks x {} tokens x {} bytes a token{}{}", blocks, block_tokens,
                        s.block_bytes / block_tokens,
                        s.draft ? fmt::format(" and {} of the model that drafts", s.draft->block_bytes / block_tokens)
                                : "",
                        kept == 0 ? "" : fmt::format(", {} of {} layers in bf16", kept, s.layouts.size()))});
  add_part(plan, Account::kKv,
           {"block ledger", price.ledger_bytes(blocks),
            fmt::format("records of {} blocks, index, events", blocks)});
  if (const uint64_t disk = price.disk_bytes(blocks); disk > 0) {
    add_part(plan, Account::kRuntime,
             {"kv disk", disk, "blocks on their way to the file, tables of its slots and of keys"});
  }
  add_part(
      plan, Account::kRuntime,
      {std::string(kStreamPart), price.stream_bytes(blocks),
       fmt::format(
           "answers not read yet, {} bytes a token and {} for each alternative; beyond, requests are refused",
           TokenStream::token_bytes(0), TokenStream::token_bytes(1) - TokenStream::token_bytes(0))});
}

}  // namespace tally::engine
