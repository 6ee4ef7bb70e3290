#include "measure/explain_requests.h"

#include "measure/store.h"
#include "measure/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr size_t kWorst = 3;

double milliseconds(const json& receipt, std::string_view stage) {
  return amount_at(receipt, (std::string(stage) + "_ms").c_str());
}

bool has_receipt(const RequestRecord& r) { return r.completed() && r.receipt.is_object(); }

StageTimes stages_of(const RequestRecord& r, double e2e_s) {
  StageTimes out{};
  double sum = 0;
  for (size_t i = 0; i + 1 < kStages; ++i) sum += out[i] = milliseconds(r.receipt, kStageNames[i]) * 1e-3;
  out.back() = std::max(0., e2e_s - sum);
  return out;
}

// From the first row of its prompt to its first token.
Window prefill_of(const RequestRecord& r) {
  const double before_s = (milliseconds(r.receipt, "tokenize") + milliseconds(r.receipt, "queue")) * 1e-3;
  const double first_s = r.events.empty() ? r.end_s : r.events.front().at_s;
  return {std::min(first_s, r.sent_s + before_s), first_s};
}

// Whose prompts were computed in the window.
void find_culprits(std::span<const RequestRecord> requests, WaitedRequest& out) {
  const Window wait{out.wait_begin_s, out.wait_begin_s + out.wait_s};
  for (const RequestRecord& r : requests) {
    if (r.id == out.id || !has_receipt(r)) continue;
    const Window prefill = prefill_of(r);
    const double overlap_s = std::min(wait.to_s, prefill.to_s) - std::max(wait.from_s, prefill.from_s);
    if (overlap_s < 1e-9) continue;
    out.culprits.push_back(
        {r.id, r.class_name, r.prompt_tokens.value_or(r.prompt_tokens_planned), overlap_s});
  }
  out.culprits_all = out.culprits.size();
  std::sort(out.culprits.begin(), out.culprits.end(), [](const Culprit& a, const Culprit& b) {
    return std::pair(-a.overlap_s, a.id) < std::pair(-b.overlap_s, b.id);
  });
  if (out.culprits.size() > kWorst) out.culprits.resize(kWorst);
}

// The wait of a request that is looked for: begin and length.
using WaitOf = std::function<std::optional<Window>(const RequestRecord&)>;

std::optional<Window> first_token_wait(const RequestRecord& r) {
  if (r.events.empty()) return std::nullopt;
  return Window{r.planned_s, r.events.front().at_s};
}

std::optional<Window> largest_gap(const RequestRecord& r) {
  std::optional<Window> out;
  for (size_t i = 1; i < r.events.size(); ++i) {
    const Window gap{r.events[i - 1].at_s, r.events[i].at_s};
    if (!out || gap.length_s() > out->length_s()) out = gap;
  }
  return out;
}

std::optional<Window> whole(const RequestRecord& r) {
  return Window{r.planned_s, r.events.empty() ? r.end_s : r.events.back().at_s};
}

std::vector<WaitedRequest> worst(std::span<const RequestRecord> requests, const WaitOf& wait_of) {
  std::vector<WaitedRequest> out;
  for (const RequestRecord& r : requests) {
    if (!r.completed()) continue;
    const auto wait = wait_of(r);
    if (!wait) continue;
    WaitedRequest w;
    w.id = r.id, w.class_name = r.class_name, w.planned_s = r.planned_s;
    w.wait_begin_s = wait->from_s, w.wait_s = wait->length_s();
    const RequestFigures figures = request_figures(r);
    w.output_tokens = figures.tokens, w.e2e_s = figures.e2e_s.value_or(0);
    w.prompt_tokens = r.prompt_tokens.value_or(r.prompt_tokens_planned);
    if (r.receipt.is_object()) {
      w.stages = stages_of(r, w.e2e_s);
      w.preemptions = count_at(r.receipt, "preemptions");
    }
    out.push_back(std::move(w));
  }
  std::sort(out.begin(), out.end(), [](const WaitedRequest& a, const WaitedRequest& b) {
    return std::pair(-a.wait_s, a.id) < std::pair(-b.wait_s, b.id);
  });
  if (out.size() > kWorst) out.resize(kWorst);
  for (WaitedRequest& w : out) find_culprits(requests, w);
  return out;
}

void add(StageShares& shares, const StageTimes& stages, double e2e_s) {
  ++shares.requests;
  shares.e2e_s += e2e_s;
  for (size_t i = 0; i < kStages; ++i) shares.seconds[i] += stages[i];
}

}  // namespace

RequestsAccount account_requests(std::span<const RequestRecord> requests) {
  RequestsAccount out;
  for (const RequestRecord& r : requests) {
    out.completed += r.completed();
    if (!has_receipt(r)) continue;
    ++out.with_receipt;
    const double e2e_s = request_figures(r).e2e_s.value_or(0);
    const StageTimes stages = stages_of(r, e2e_s);
    add(out.all, stages, e2e_s);
    add(out.by_class[r.class_name], stages, e2e_s);
  }
  out.worst_ttft = worst(requests, first_token_wait);
  out.worst_gap = worst(requests, largest_gap);
  out.slowest = worst(requests, whole);
  return out;
}

void add_engine_steps(RequestsAccount& account, std::span<const json> steps, double zero_us) {
  for (std::vector<WaitedRequest>* list : {&account.worst_ttft, &account.worst_gap, &account.slowest}) {
    for (WaitedRequest& w : *list) {
      StepsMeanwhile& engine = w.engine.emplace();
      for (const json& s : steps) {
        if (!s.is_object()) continue;
        const double begin_s = (amount_at(s, "t_us") - zero_us) * 1e-6,
                     end_s = begin_s + amount_at(s, "duration_us") * 1e-6;
        const double overlap_s =
            std::min(end_s, w.wait_begin_s + w.wait_s) - std::max(begin_s, w.wait_begin_s);
        if (overlap_s < 1e-9) continue;
        const double tokens = amount_at(s, "prefill_tokens") + amount_at(s, "recompute_tokens");
        ++engine.steps, engine.prefill_tokens += static_cast<uint64_t>(std::min(tokens, 0x1p53));
        engine.wall_s += overlap_s;
      }
    }
  }
}

}  // namespace tally::measure
