#include "plan_page.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using engine::KvOutlook;
using nlohmann::json;

std::string size_text(uint64_t bytes) {
  const auto b = static_cast<double>(bytes);
  return b < 0x1p30 ? fmt::format("{:.1f} MiB", b / 0x1p20) : fmt::format("{:.2f} GiB", b / 0x1p30);
}

json stream_json(const std::optional<engine::StreamOutlook>& s) {
  if (!s) return nullptr;
  json out = {{"layers", s->layers}, {"of_layers", s->of_layers}, {"pass_bytes", s->pass_bytes}};
  out["disk_bytes_per_s"] = s->disk_bytes_per_s > 0 ? json(s->disk_bytes_per_s) : json(nullptr);
  out["passes_per_s"] = s->disk_bytes_per_s > 0 ? json(s->passes_per_s()) : json(nullptr);
  return out;
}

json cells_json(const std::vector<KvOutlook::Cell>& cells) {
  json out = json::array();
  for (const KvOutlook::Cell& c : cells)
    out.push_back(
        {{"max_model_len", c.context}, {"seqs", c.seqs}, {"total_bytes", c.total_bytes}, {"fits", c.fits}});
  return out;
}

}  // namespace

json PlanPage::results() const {
  const engine::MemoryPlan& plan = outlook.plan;
  json accounts = json::array();
  for (const engine::PlanAccount& a : plan.accounts) {
    json parts = json::array();
    for (const engine::PlanPart& p : a.parts)
      parts.push_back({{"name", p.name}, {"bytes", p.bytes}, {"formula", p.formula}});
    accounts.push_back(
        {{"name", base::account_name(a.account)}, {"bytes", a.bytes}, {"parts", std::move(parts)}});
  }
  json codecs = json::array();
  for (const KvOutlook& k : outlook.codecs)
    codecs.push_back({{"kv_type", k.codec},
                      {"bytes_per_token", k.bytes_per_token},
                      {"block_bytes", k.block_bytes},
                      {"break_even_tokens", k.break_even_tokens},
                      {"table", cells_json(k.cells)},
                      {"longest", cells_json(k.longest)},
                      {"most", cells_json(k.most)}});
  const bool fits = !outlook.refusal;
  return {
      {"model", model},
      {"architecture", outlook.architecture},
      {"layers", outlook.layers},
      {"context_length", outlook.context},
      {"total_bytes", plan.total_bytes},
      {"budget_bytes", plan.budget_bytes},
      {"accounts", std::move(accounts)},
      {"kv_bytes_per_token", plan.kv_bytes_per_token},
      {"blocks", plan.blocks},
      {"fits", {{"max_model_len", fits ? plan.max_model_len : 0}, {"max_seqs", fits ? plan.max_seqs : 0}}},
      {"refused", fits ? json(nullptr) : json(outlook.refusal->message)},
      {"kv_types", std::move(codecs)},
      {"weight_stream", stream_json(plan.stream)},
      {"notes", notes}};
}

void PlanPage::print_accounts() const {
  const engine::MemoryPlan& plan = outlook.plan;
  fmt::print("{}: {}, {} layers, context {}\n\n", base::escape_for_log(model), outlook.architecture,
             outlook.layers, outlook.context);
  for (const engine::PlanAccount& a : plan.accounts) {
    fmt::print("{:<18}{:>16} {:>12}\n", base::account_name(a.account), a.bytes, size_text(a.bytes));
    for (const engine::PlanPart& p : a.parts)
      fmt::print("  {:<16}{:>16} {:>12}  {}\n", p.name, p.bytes, size_text(p.bytes), p.formula);
  }
  fmt::print("{:<18}{:>16} {:>12}  of {} ({})\n", "total", plan.total_bytes, size_text(plan.total_bytes),
             plan.budget_bytes, size_text(plan.budget_bytes));
  if (!outlook.refusal) {
    fmt::print("\nfits: {} sequences, the longest of {} tokens, {} tokens in all\n", plan.max_seqs,
               plan.max_model_len, plan.pool_tokens());
  }
  if (plan.stream) fmt::print("weights: {}\n", engine::stream_text(*plan.stream));
}

// Contexts down, sequences across: what all accounts come to; `-` beyond the budget.
void PlanPage::print_codec(const KvOutlook& k) const {
  fmt::print("\n{}: {:g} bytes a token; as many bytes as the weights at {} tokens (context x sequences)\n",
             k.codec, k.bytes_per_token, k.break_even_tokens);
  fmt::print("{:>10}", "context");
  for (const KvOutlook::Cell& c : k.longest) fmt::print("{:>14}", fmt::format("{} seqs", c.seqs));
  fmt::print("{:>16}\n", "most sequences");
  const size_t columns = k.longest.size();
  for (size_t row = 0; row < k.most.size(); ++row) {
    fmt::print("{:>10}", k.most[row].context);
    for (size_t i = 0; i < columns; ++i) {
      const KvOutlook::Cell& c = k.cells[row * columns + i];
      fmt::print("{:>14}", c.fits ? size_text(c.total_bytes) : "-");
    }
    fmt::print("{:>16}\n", k.most[row].seqs);
  }
  fmt::print("{:>10}", "longest");
  for (const KvOutlook::Cell& c : k.longest) fmt::print("{:>14}", c.context);
  fmt::print("\n");
}

void PlanPage::print() const {
  print_accounts();
  fmt::print("\nAll accounts together, every sequence at full length ({} at most):\n",
             size_text(outlook.plan.budget_bytes));
  for (const KvOutlook& codec : outlook.codecs) print_codec(codec);
  for (const std::string& note : notes) fmt::print("\nnote: {}\n", note);
}

}  // namespace tally::apps
