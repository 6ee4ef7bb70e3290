// What requests tell of a run: columns, distributions, and where the slowest of them spent their time.
#include "measure/report_parts.h"
#include "measure/store.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr size_t kVertices = 160, kTail = 40;  // of a distribution; the largest values are all kept
constexpr size_t kSlowest = 12;

json number(const std::optional<double>& value) { return value ? json(rounded(*value)) : json(nullptr); }
json count(const std::optional<uint32_t>& value) { return value ? json(*value) : json(nullptr); }

const char* outcome_word(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kIncomplete:
      return "incomplete";
  }
  return "incomplete";
}

// Ranks, from 1, at which a distribution of n values is drawn.
std::set<size_t> vertex_ranks(size_t n) {
  std::set<size_t> ranks;
  for (size_t i = 0; i < kVertices; ++i) ranks.insert(1 + (n - 1) * i / (kVertices - 1));
  for (size_t r = n > kTail ? n - kTail : 1; r <= n; ++r) ranks.insert(r);
  return ranks;
}

// The share of values <= x at each vertex; low and high: the 95 % band of that quantile, by order statistics.
json distribution(std::vector<double> ms, bool has_band) {
  std::sort(ms.begin(), ms.end());
  const size_t n = ms.size();
  json out = {{"n", n}};
  json &x = out["x"] = json::array(), &share = out["share"] = json::array();
  json low = json::array(), high = json::array();
  for (const size_t rank : vertex_ranks(n)) {
    x.push_back(rounded(ms[rank - 1]));
    share.push_back(rounded(static_cast<double>(rank) / static_cast<double>(n)));
    const Ranks ranks = quantile_ranks(n, (static_cast<double>(rank) - .5) / static_cast<double>(n));
    low.push_back(ranks.low ? json(rounded(ms[*ranks.low - 1])) : json(nullptr));
    high.push_back(ranks.high ? json(rounded(ms[*ranks.high - 1])) : json(nullptr));
  }
  if (has_band) out["low"] = std::move(low), out["high"] = std::move(high);
  return out;
}

// Stages of a receipt in the order in which a request goes through them; those that interleave (decode,
// stalled, sample ...) are sums.
constexpr const char* kStages[] = {"tokenize", "queue",  "prefill",    "stalled",
                                   "decode",   "sample", "detokenize", "send"};

json waterfall(const RequestRecord& r, const RequestFigures& figures) {
  const double e2e_ms = figures.e2e_s.value_or(0) * 1e3;
  json stages = json::array();
  const auto put = [&](const char* name, double ms) { stages.push_back({name, rounded(std::max(0., ms))}); };
  put("client", (r.sent_s - r.planned_s) * 1e3);
  double server_ms = 0;
  for (const char* name : kStages) {
    const auto ms = number_at(r.receipt, fmt::format("{}_ms", name).c_str());
    if (ms) put(name, *ms), server_ms += std::max(0., *ms);
  }
  if (server_ms > 0) {
    put("outside", e2e_ms - server_ms - (r.sent_s - r.planned_s) * 1e3);
  } else {  // no receipt: what the client saw
    put("first token", figures.ttft_sent_s.value_or(0) * 1e3);
    put("stream", (figures.e2e_sent_s.value_or(0) - figures.ttft_sent_s.value_or(0)) * 1e3);
  }
  return {{"id", r.id},
          {"class", r.class_name},
          {"at_s", rounded(r.planned_s)},
          {"e2e_ms", rounded(e2e_ms)},
          {"ttft_ms", number(figures.ttft_s ? std::optional(*figures.ttft_s * 1e3) : std::nullopt)},
          {"prompt_tokens", r.prompt_tokens.value_or(r.prompt_tokens_planned)},
          {"output_tokens", figures.tokens},
          {"cached_tokens", count(r.cached_tokens)},
          {"preemptions", number(number_at(r.receipt, "preemptions"))},
          {"stages", std::move(stages)}};
}

}  // namespace

json requests_part(const Run& run) {
  json out = json::object();
  const auto column = [&](const char* name, const std::function<json(const RequestRecord&)>& value) {
    json& values = out[name] = json::array();
    for (const RequestRecord& r : run.requests) values.push_back(value(r));
  };
  std::vector<RequestFigures> figures;
  for (const RequestRecord& r : run.requests) figures.push_back(request_figures(r));
  column("id", [](const RequestRecord& r) { return json(r.id); });
  column("class", [](const RequestRecord& r) { return json(r.class_name); });
  column("status", [](const RequestRecord& r) { return json(outcome_word(r.outcome)); });
  column("error", [](const RequestRecord& r) { return r.error.empty() ? json(nullptr) : json(r.error); });
  column("planned_s", [](const RequestRecord& r) { return json(rounded(r.planned_s)); });
  column("sent_s", [](const RequestRecord& r) { return json(rounded(r.sent_s)); });
  column("first_s", [](const RequestRecord& r) {
    return r.events.empty() ? json(nullptr) : json(rounded(r.events.front().at_s));
  });
  column("end_s", [](const RequestRecord& r) { return json(rounded(r.end_s)); });
  column("queue_s", [](const RequestRecord& r) {
    const auto ms = number_at(r.receipt, "queue_ms");
    return ms ? json(rounded(*ms / 1e3)) : json(nullptr);
  });
  column("prompt_tokens", [](const RequestRecord& r) { return count(r.prompt_tokens); });
  column("output_tokens", [](const RequestRecord& r) { return count(r.output_tokens); });
  column("cached_tokens", [](const RequestRecord& r) { return count(r.cached_tokens); });
  const auto figure = [&](const char* name, std::optional<double> RequestFigures::* field) {
    json& values = out[name] = json::array();
    for (const RequestFigures& f : figures) values.push_back(number(f.*field));
  };
  figure("ttft_s", &RequestFigures::ttft_s), figure("tpot_s", &RequestFigures::tpot_s);
  figure("itl_max_s", &RequestFigures::itl_max_s), figure("e2e_s", &RequestFigures::e2e_s);
  return out;
}

json distributions_part(std::span<const RequestRecord> requests) {
  std::map<std::string, std::map<std::string, std::vector<double>>> values;  // metric, class: ms
  for (const RequestRecord& r : requests) {
    const RequestFigures f = request_figures(r);
    for (const std::string& name : std::set<std::string>{"all", r.class_name}) {
      const auto add = [&](const char* metric, const std::optional<double>& s) {
        if (s) values[metric][name].push_back(*s * 1e3);
      };
      add("ttft", f.ttft_s), add("tpot", f.tpot_s), add("e2e", f.e2e_s);
      for (const double gap : f.chunk_gaps_s) add("itl", gap);
    }
  }
  json out = json::object();
  // Gaps of one request hang together: a band that takes them for independent would lie.
  for (auto& [metric, classes] : values)
    for (auto& [name, ms] : classes) out[metric][name] = distribution(std::move(ms), metric != "itl");
  return out;
}

json slowest_part(const Run& run) {
  std::vector<std::pair<double, const RequestRecord*>> order;
  for (const RequestRecord& r : run.requests)
    if (const auto e2e_s = request_figures(r).e2e_s) order.emplace_back(*e2e_s, &r);
  if (order.empty()) return why("No request completed.");
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  json out = {{"of", order.size()}, {"requests", json::array()}};
  for (size_t i = 0; i < std::min(kSlowest, order.size()); ++i)
    out["requests"].push_back(waterfall(*order[i].second, request_figures(*order[i].second)));
  const RequestRecord& middle = *order[order.size() / 2].second;
  out["median"] = waterfall(middle, request_figures(middle));
  return out;
}

}  // namespace tally::measure
