#include "measure/explain.h"

#include "base/utf8.h"
#include "measure/client.h"
#include "measure/machine.h"
#include "measure/shown.h"
#include "measure/store.h"
#include "measure/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <thread>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr size_t kPagesMax = 64;  // of steps, at once
constexpr std::chrono::milliseconds kLook{200};

json member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() ? json(nullptr) : *at;
}

// `page`: what /v1/settings says; `labels`: kv_type and weight_type.
ServerView view_of(const json& page, const json& labels) {
  ServerView out;
  const json settings = member(page, "settings");
  for (const auto& [name, entry] : settings.items())
    if (const json value = member(entry, "value"); value.is_string()) out.settings[name] = value;
  out.kv_type = text_at(labels, "kv_type"), out.weight_type = text_at(labels, "weight_type");
  if (out.kv_type.empty() && out.settings.contains("kv-type")) out.kv_type = out.settings["kv-type"];
  out.threads = out.number("threads");
  const json streamed = member(page, "weight_stream");
  out.streamed = {count_at(streamed, "layers"), count_at(streamed, "pass_bytes"),
                  number_at(streamed, "predicted_bytes_per_s").value_or(0)};
  const json tuning = member(page, "tuning");
  for (const json& t : tuning.is_array() ? tuning : json::array()) {
    if (!equal_words(text_at(t, "type"), out.weight_type)) continue;
    for (const json& cost : member(t, "row_cost"))
      if (cost.is_number() && cost.get<double>() > 0) out.row_cost.push_back(cost.get<double>());
  }
  return out;
}

void use_roofs(Explanation& out, Roofs roofs, std::string source) {
  if (roofs.empty()) return;
  if (out.server.threads == 0) out.server.threads = roofs.threads_max();
  out.in_use.bytes_per_s = roofs.read_at(out.server.threads);
  out.in_use.ops_per_s = roofs.operations_at(out.server.threads, out.server.weight_type);
  out.in_use.kernels = roofs.kernels_at(out.server.threads, out.server.weight_type);
  if (roofs.disturbed)
    out.doubts.emplace_back(
        "the roofs were measured while other programs used the CPUs: they may be too low; tally doctor "
        "--roofs measure, on a quiet machine, measures them anew");
  const auto isa = out.server.settings.find("isa");
  if (isa != out.server.settings.end() && isa->second != "best" && !roofs.isa.empty() &&
      isa->second != roofs.isa)
    out.doubts.push_back(fmt::format("the roof of operations is that of {}, the server computes with {}",
                                     roofs.isa, base::escape_for_log(isa->second, 20)));
  if (out.in_use.ops_per_s <= 0)
    out.doubts.emplace_back(
        "no roof of operations is known for this instruction set: only memory is compared");
  out.roofs = std::move(roofs), out.roofs_source = std::move(source);
}

void seek_roofs(Explanation& out, const json& told, bool was_here, const RoofsHere& roofs_here) {
  use_roofs(out, parse_roofs(told), "told by the server");
  if (out.roofs.empty() && was_here)
    if (auto here = roofs_here()) use_roofs(out, std::move(*here), "of this machine");
  if (!out.roofs.empty()) return;
  out.doubts.emplace_back(
      was_here
          ? "the roofs of this machine are not known: nothing can be said of what bounds a pass"
          : "the roofs of the server's machine are not known: nothing can be said of what bounds a pass; "
            "tally doctor on that machine measures them, and servers started later tell them");
}

void note_missing(Explanation& out) {
  if (out.steps.steps.empty())
    out.doubts.emplace_back("no step is known: the server tells none, or did nothing");
  if (out.steps.missing > 0)
    out.doubts.push_back(
        fmt::format("{} steps are not there: the server's log had lost them before they were asked for",
                    out.steps.missing));
}

// Calls of one server.
class Looker {
 public:
  Looker(const WatchRequest& request, const Endpoint& endpoint) : request_(request), caller_(endpoint) {}

  // Null: no such page.
  Result<json> page(const std::string& path) {
    TALLY_TRY(const Answer answer, caller_.call({.method = "GET", .path = path, .body = ""}));
    if (const std::string refusal = refusal_of(answer.status); !refusal.empty())
      return Error{ErrorCode::kUnavailable,
                   fmt::format("{}: GET {}: {}", base::escape_for_log(request_.url, 80), path, refusal)};
    if (answer.status != 200) return json(nullptr);
    auto parsed = parse_object(answer.body);
    return parsed ? std::move(*parsed) : json(nullptr);
  }

  Result<ServerMetrics> metrics() {
    TALLY_TRY(const Answer answer, caller_.call({.method = "GET", .path = "/metrics", .body = ""}));
    return answer.status == 200 ? parse_metrics(answer.body) : ServerMetrics{};
  }

  // Adds what came since the last call. False: the server tells no steps.
  Result<bool> take_steps(std::vector<json>& out) {
    for (size_t i = 0; i < kPagesMax; ++i) {
      TALLY_TRY(json got, page(since_ ? steps_path(*since_) : "/v1/steps"));
      if (!member(got, "steps").is_array()) return false;
      now_us_ = number_at(got, "now_us").value_or(now_us_);
      json& steps = got["steps"];
      if (steps.empty()) return true;
      const uint64_t last = count_at(steps.back(), "step");
      if (since_ && last <= *since_) return true;  // it does not go on
      since_ = last;
      for (json& step : steps) out.push_back(std::move(step));
    }
    return true;
  }

  // From now on.
  Result<void> skip_steps() {
    TALLY_TRY(const json got, page("/v1/steps?last=0"));
    since_ = count_at(got, "last_step");
    now_us_ = number_at(got, "now_us").value_or(0);
    return {};
  }

  double now_s() const { return now_us_ * 1e-6; }

 private:
  const WatchRequest& request_;
  Caller caller_;
  std::optional<uint64_t> since_;
  double now_us_ = 0;
};

std::optional<double> since(const std::optional<double>& before, const std::optional<double>& now) {
  return now ? std::optional(*now - before.value_or(0)) : std::nullopt;
}

// Steps, and where they were watched, the window.
Result<std::optional<Window>> watch(Looker& looker, const WatchRequest& request, std::vector<json>& steps) {
  if (request.seconds <= 0) {
    TALLY_TRY_VOID(looker.take_steps(steps));
    return std::optional<Window>();
  }
  TALLY_TRY_VOID(looker.skip_steps());
  const double from_s = looker.now_s();
  const auto end = std::chrono::steady_clock::now() + duration(request.seconds);
  while (std::chrono::steady_clock::now() < end && (!request.go_on || request.go_on())) {
    std::this_thread::sleep_for(std::min<Duration>(kLook, end - std::chrono::steady_clock::now()));
    TALLY_TRY(const bool tells, looker.take_steps(steps));
    if (!tells) return std::optional<Window>();
  }
  return std::optional(Window{from_s, looker.now_s()});
}

}  // namespace

bool ServerView::has(const std::string& setting, const std::string& value) const {
  const auto at = settings.find(setting);
  return at != settings.end() && at->second == value;
}

uint32_t ServerView::number(const std::string& setting) const {
  const auto at = settings.find(setting);
  uint32_t value = 0;
  if (at != settings.end()) std::from_chars(at->second.data(), at->second.data() + at->second.size(), value);
  return value;
}

Result<Explanation> explain_run(const std::string& directory, const RoofsHere& roofs_here) {
  TALLY_TRY(const Run run, load_run(directory));
  Explanation out;
  out.subject = directory;
  const json page = member(run.head, "settings"), machine = member(run.head, "machine");
  const json model = member(run.head, "model"), results = member(run.head, "results");
  out.server = view_of(page, model);
  out.server.model = text_at(model, "path_basename");
  json told = member(page, "roofs");
  if (told.is_null())
    told = {{"bytes_per_s", member(machine, "roof_bytes_per_s")},
            {"ops_per_s", member(machine, "roof_ops_per_s")},
            {"kernel_ops_per_s", member(machine, "roof_kernel_ops_per_s")}};
  const std::string fingerprint = text_at(machine, "fingerprint");
  seek_roofs(out, told, !fingerprint.empty() && fingerprint == text_at(machine_json(), "fingerprint"),
             roofs_here);
  out.steps = account_steps(run.steps, out.in_use);
  out.requests = account_requests(run.requests);
  if (const auto zero_us = number_at(member(run.head, "clock"), "server_us_at_0"))
    add_engine_steps(*out.requests, run.steps, *zero_us);
  out.cap = {number_at(results, "preemptions"), number_at(results, "recomputed_tokens"),
             number_at(results, "refused")};
  note_missing(out);
  if (out.requests->with_receipt < out.requests->completed)
    out.doubts.push_back(fmt::format("{} of {} requests have no receipt: their stages are not known",
                                     out.requests->completed - out.requests->with_receipt,
                                     out.requests->completed));
  const json reasons = member(run.head, "invalid_reasons");
  for (const json& reason : reasons.is_array() ? reasons : json::array())
    if (reason.is_string()) out.doubts.push_back("the run is not valid: " + reason.get<std::string>());
  out.sentences = sentences_of(out);
  return out;
}

Result<Explanation> explain_server(const WatchRequest& request, const RoofsHere& roofs_here) {
  TALLY_TRY(const Endpoint endpoint, resolve(request.url, request.api_key));
  Looker looker(request, endpoint);
  Explanation out;
  out.subject = request.url;
  TALLY_TRY(const json page, looker.page("/v1/settings"));
  TALLY_TRY(const ServerMetrics before, looker.metrics());
  out.server = view_of(page, before.model);
  out.server.model = text_at(before.model, "model");
  // Before the watch: measuring would disturb it.
  seek_roofs(out, member(page, "roofs"), page.is_object() && endpoint.is_loopback(), roofs_here);
  std::vector<json> steps;
  TALLY_TRY(const std::optional<Window> window, watch(looker, request, steps));
  out.steps = account_steps(steps, out.in_use, window);
  ServerMetrics zero = before;
  if (request.seconds <= 0) zero.preemptions.reset(), zero.recomputed_tokens.reset();
  TALLY_TRY(const ServerMetrics after, looker.metrics());
  out.cap = {
      since(zero.preemptions, after.preemptions), since(zero.recomputed_tokens, after.recomputed_tokens), {}};
  if (page.is_null())
    out.doubts.emplace_back(
        "no /v1/settings: this server is no tally, or an old one; what it is set to is not known");
  note_missing(out);
  out.doubts.emplace_back(
      "requests are not known one by one: tally bench load stores their receipts, and tally explain RUN "
      "reads them");
  out.sentences = sentences_of(out);
  return out;
}

}  // namespace tally::measure
