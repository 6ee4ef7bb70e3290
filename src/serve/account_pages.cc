#include "serve/account_pages.h"

#include "base/clock.h"
#include "serve/block_sums.h"
#include "serve/openai/writer.h"
#include "serve/query.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>

namespace tally::serve {
namespace {

using openai::Writer;

constexpr size_t kStepsMax = 1000;  // in one answer

// What a part holds of what is booked: of the pool only blocks that somebody has use for.
uint64_t used_bytes(const base::AccountUse& use, uint64_t idle_bytes) {
  return use.used - std::min(use.used, idle_bytes);
}

void write_account(Writer& w, const base::AccountUse& use, uint64_t idle_bytes) {
  w.begin_object().key("planned_bytes").value(use.planned).key("reserved_bytes").value(use.reserved);
  w.key("used_bytes").value(used_bytes(use, idle_bytes)).key("peak_bytes").value(use.peak);
  w.key("parts").begin_object();
  for (const base::AccountPart& part : use.parts) {
    w.key(part.name).begin_object().key("planned_bytes").value(part.planned);
    w.key("reserved_bytes").value(part.reserved).key("peak_bytes").value(part.peak);
    w.key("bookings").value(part.bookings).end_object();
  }
  w.end_object().end_object();
}

// The general allocator's view of what is no arena.
void write_allocator(Writer& w) {
  const struct mallinfo2 heap = ::mallinfo2();
  w.key("allocator").begin_object().key("heap_bytes").value(heap.arena);
  w.key("heap_used_bytes").value(heap.uordblks).key("heap_free_bytes").value(heap.fordblks);
  w.key("mapped_bytes").value(heap.hblkhd).key("mappings").value(heap.hblks).end_object();
}

std::string mib(uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20); }

constexpr uint32_t kBlockSizes[] = {16, 32, 64, 128};

// The fragmentation of the pool in a sentence.
std::string verdict(const engine::BlockMap& map, const BlockSums& s, uint64_t token_bytes) {
  if (s.held == 0) {
    return fmt::format("no block is held; {} of {} blocks are cached, and taken when none is free", s.cached,
                       map.blocks.size());
  }
  std::string text = fmt::format("{:.1f} % of held KV is unwritten tail ({})", 100 * s.waste_share(),
                                 mib(s.waste_tokens * token_bytes));
  if (map.block_tokens > kBlockSizes[0]) {
    const uint64_t now = waste_of_sequences(map, map.block_tokens),
                   half = waste_of_sequences(map, map.block_tokens / 2);
    text += fmt::format("; blocks of {} would return {}, what they cost a step is not measured here",
                        map.block_tokens / 2, mib((now - std::min(now, half)) * token_bytes));
  }
  return text +
         fmt::format(
             "; {} cached blocks are taken when none is free; pieces cost nothing: blocks are taken one "
             "by one",
             s.cached);
}

void write_blocks(Writer& w, const engine::BlockMap& map, const engine::Info& info, uint64_t block_bytes) {
  const BlockSums s = sum_up(map);
  const uint64_t token_bytes = map.block_tokens > 0 ? block_bytes / map.block_tokens : 0;
  w.key("blocks")
      .begin_object()
      .key("block_tokens")
      .value(map.block_tokens)
      .key("block_bytes")
      .value(block_bytes);
  w.key("kv_type").value(info.kv_type).key("bf16_layers").begin_array();
  for (const uint32_t layer : info.bf16_layers) w.value(layer);
  w.end_array();
  w.key("total").value(map.blocks.size()).key("free").value(s.free).key("held").value(s.held);
  w.key("cached").value(s.cached).key("shared").value(s.shared).key("registered").value(s.registered);
  w.end_object().key("fragmentation").begin_object().key("verdict").value(verdict(map, s, token_bytes));
  w.key("internal_waste_share").value(s.waste_share());
  w.key("internal_waste_bytes").value(s.waste_tokens * token_bytes);
  w.key("internal_waste_bytes_by_block_tokens").begin_object();
  for (const uint32_t size : kBlockSizes)
    w.key(std::to_string(size)).value(waste_of_sequences(map, size) * token_bytes);
  w.end_object().key("sequences").value(map.sequence_tokens.size());
  w.key("cached_idle_bytes").value(s.cached * block_bytes);
  w.key("longest_free_extent").value(s.longest_free).key("free_extents").value(s.free_extents).end_object();
}

void write_step(Writer& w, const engine::StepRecord& r) {
  const auto rows = r.prefill_rows + r.recompute_rows;
  w.begin_object()
      .key("step")
      .value(r.step)
      .key("t_us")
      .value(r.begin_us)
      .key("duration_us")
      .value(r.duration_us);
  w.key("kind").value(r.decode_rows == 0 ? "prefill" : rows == 0 ? "decode" : "mixed");
  w.key("prefill_tokens").value(r.prefill_rows).key("decode_tokens").value(r.decode_rows);
  w.key("draft_tokens").value(r.draft_rows).key("accepted_tokens").value(r.accepted_drafts);
  w.key("drafts").begin_object();
  for (size_t i = 0; i < engine::kDraftSources; ++i) {
    w.key(engine::kDraftSourceNames[i]).begin_object();
    w.key("draft_tokens")
        .value(r.drafts[i].drafted)
        .key("accepted_tokens")
        .value(r.drafts[i].accepted)
        .end_object();
  }
  w.end_object();
  w.key("draft_prompt_tokens").value(r.draft_prompt_rows);
  w.key("recompute_tokens").value(r.recompute_rows);
  w.key("logits_rows").value(r.logits_rows).key("sequences").value(r.sequences);
  w.key("running").value(r.running).key("waiting").value(r.waiting).key("ctx_sum").value(r.context_tokens);
  w.key("weight_bytes").value(r.weight_bytes).key("kv_bytes").value(r.kv_bytes);
  w.key("activation_bytes").value(r.activation_bytes).key("kv_write_bytes").value(r.kv_bytes_written);
  w.key("flops").value(r.flops);
  w.key("kv_free").value(r.blocks_free).key("kv_held").value(r.blocks_held);
  w.key("kv_cached").value(r.blocks_cached).key("predicted_us");
  r.predicted_us > 0 ? w.value(r.predicted_us) : w.null();
  w.key("phases_us").begin_object();
  for (size_t i = 0; i < engine::kPhases; ++i) w.key(engine::kPhaseNames[i]).value(r.phases_us[i]);
  w.end_object().end_object();
}

}  // namespace

PageResult page_accounts(const Desk& desk) {
  if (desk.backend.accounts == nullptr)
    return {.body = {}, .error = ApiError{Code::kNotSupported, "This server keeps no accounts."}};
  const base::Accounts& accounts = *desk.backend.accounts;
  const engine::Stats stats = desk.backend.engine->stats();
  const base::ProcessMemory memory = base::process_memory();
  Writer w;
  w.begin_object().key("accounts").begin_object();
  uint64_t planned = 0, reserved = 0;
  for (size_t i = 0; i < base::kAccountCount; ++i) {
    const auto which = static_cast<base::Account>(i);
    const base::AccountUse use = accounts.use(which);
    planned += use.planned, reserved += use.reserved;
    w.key(base::account_name(which));
    write_account(w, use, which == base::Account::kKv ? stats.blocks_free * stats.block_bytes : 0);
  }
  const auto measured = static_cast<int64_t>(memory.rss_anon + memory.swap);
  w.end_object().key("planned_bytes").value(planned).key("reserved_bytes").value(reserved);
  w.key("measured_rss_anon_bytes")
      .value(memory.rss_anon)
      .key("measured_rss_file_bytes")
      .value(memory.rss_file);
  w.key("measured_swap_bytes").value(memory.swap).key("measured_huge_bytes").value(memory.anon_huge);
  w.key("unaccounted_bytes").value(measured - static_cast<int64_t>(reserved));
  w.key("plan_error_ratio");
  planned > 0 ? w.value(static_cast<double>(measured) / static_cast<double>(planned) - 1) : w.null();
  w.key("cap_bytes").value(accounts.cap_bytes());
  write_allocator(w);
  write_blocks(w, desk.backend.engine->block_map(), desk.backend.engine->info(), stats.block_bytes);
  w.end_object();
  return {.body = w.take(), .error = {}};
}

PageResult page_steps(const Desk& desk, const std::string& query) {
  std::optional<uint64_t> since, last;
  if (auto error = read_query(query, {{"since", &since}, {"last", &last}}))
    return {.body = {}, .error = std::move(error)};
  if (since && last) {
    return {.body = {}, .error = ApiError{Code::kInvalidValue, "since and last exclude each other.", "last"}};
  }
  if (last) {
    const uint64_t newest = desk.backend.engine->steps(UINT64_MAX - 1, 0).last;
    since = newest - std::min({newest, *last, uint64_t{kStepsMax}});
  }
  const engine::StepPage page = desk.backend.engine->steps(since.value_or(0), kStepsMax);
  Writer w;
  w.begin_object().key("first_step").value(page.first).key("last_step").value(page.last);
  w.key("dropped").value(page.dropped).key("now_us").value(base::now_us()).key("steps").begin_array();
  for (const engine::StepRecord& record : page.steps) write_step(w, record);
  w.end_array().end_object();
  return {.body = w.take(), .error = {}};
}

}  // namespace tally::serve
