#include "measure/load_server.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "measure/store.h"
#include "measure/watch_proc.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr size_t kStepPagesMax = 64;  // that are fetched after a block
constexpr int kTieCalls = 5;
constexpr int kStepWaits = 20;        // for the last step
constexpr std::chrono::milliseconds kStepWait{5};
constexpr size_t kWordsMin = 64;      // single tokens; fewer make prompts of a few words over and over

// A JSON object that the server gives under `path`; null: none.
json page_of(Caller& caller, std::string_view path) {
  const auto answer = caller.call({.method = "GET", .path = path, .body = ""});
  if (!answer || answer->status != 200) return nullptr;
  auto page = parse_object(answer->body);
  return page ? std::move(*page) : json(nullptr);
}

// "id" and "owned_by" of the first model, or of the one asked for.
Result<void> choose_model(Caller& caller, const std::string& wanted, const std::string& url,
                          ServerFacts& facts) {
  const auto answer = caller.call({.method = "GET", .path = "/v1/models", .body = ""});
  if (!answer) return answer.error();
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{}: GET /v1/models: {}", base::escape_for_log(url, 80), what)};
  };
  if (answer->status == 401 || answer->status == 403)
    return refuse(fmt::format("HTTP {}: the variable TALLY_API_KEY must hold a key", answer->status));
  if (answer->status != 200) return refuse(fmt::format("HTTP {}", answer->status));
  const auto page = parse_object(answer->body);
  if (!page || !page->contains("data") || !(*page)["data"].is_array()) return refuse("no list of models");
  for (const json& model : (*page)["data"]) {
    if (!model.is_object() || text_at(model, "id").empty()) continue;
    if (!wanted.empty() && text_at(model, "id") != wanted) continue;
    facts.model = text_at(model, "id");
    facts.kind = text_at(model, "owned_by");
    return {};
  }
  if (wanted.empty()) return refuse("no model");
  facts.model = wanted;  // aliases and adapters are not always listed
  return {};
}

// The id of " word"; kNoId: several. Null: the server cannot tell.
std::optional<uint32_t> word_id(Caller& caller, const std::string& model, std::string_view word) {
  const std::string text = fmt::format(" {}", word);
  // vLLM's and tally's keys, and llama.cpp's.
  const json body = {{"model", model},
                     {"prompt", text},
                     {"add_special_tokens", false},
                     {"content", text},
                     {"add_special", false}};
  const auto answer = caller.call({.method = "POST", .path = "/tokenize", .body = line_of(body)});
  if (!answer || answer->status != 200) return std::nullopt;
  const auto page = parse_object(answer->body);
  if (!page || !page->contains("tokens") || !(*page)["tokens"].is_array()) return std::nullopt;
  const json& tokens = (*page)["tokens"];
  const bool is_one =
      tokens.size() == 1 && tokens[0].is_number_unsigned() && tokens[0].get<uint64_t>() < kNoId;
  return is_one ? tokens[0].get<uint32_t>() : kNoId;
}

std::vector<uint32_t> word_ids(Caller& caller, const std::string& model) {
  std::vector<uint32_t> ids;
  for (const std::string_view word : common_words()) {
    const auto id = word_id(caller, model, word);
    if (!id) return {};
    ids.push_back(*id);
  }
  const auto whole =
      static_cast<size_t>(std::count_if(ids.begin(), ids.end(), [](uint32_t id) { return id != kNoId; }));
  return whole >= kWordsMin ? ids : std::vector<uint32_t>();
}

std::string prompt_text(const std::vector<uint32_t>& vocabulary, const PlannedRequest& request) {
  std::string text = request.text;
  for (const uint32_t word : request.words) {
    text += ' ';
    text += common_words()[vocabulary[word]];
  }
  return text;
}

void append_ids(std::string& out, const KnownServer& server, const std::vector<uint32_t>& vocabulary,
                const PlannedRequest& request) {
  out += '[';
  const auto append = [&](uint32_t id) { fmt::format_to(std::back_inserter(out), "{},", id); };
  for (const uint32_t id : request.ids) append(id);
  for (const uint32_t word : request.words) append(server.word_ids[vocabulary[word]]);
  out.back() = ']';
}

}  // namespace

Result<KnownServer> meet_server(const ServerAddress& address, const LoadSpec& spec) {
  KnownServer out;
  TALLY_TRY(out.endpoint, resolve(address.url, spec.api_key));
  out.facts.name = address.name.empty() ? out.endpoint.host : address.name;
  out.facts.host = out.endpoint.host;
  Caller caller(out.endpoint);
  TALLY_TRY_VOID(choose_model(caller, spec.model, address.url, out.facts));
  if (!spec.is_chat) out.word_ids = word_ids(caller, out.facts.model);
  out.facts.takes_ids = !out.word_ids.empty();
  out.facts.settings = page_of(caller, "/v1/settings");
  const ServerMetrics metrics = metrics_of(out);
  out.facts.model_labels = metrics.model, out.facts.build_labels = metrics.build;
  out.has_metrics = metrics.running.has_value();
  out.has_accounts =
      page_of(caller, "/v1/accounts").is_object() && page_of(caller, "/v1/steps?last=1").is_object();
  if (out.endpoint.is_loopback()) out.pid = listener_of(out.endpoint.address.port());
  if (out.pid && !process_times(*out.pid)) out.pid.reset();
  out.facts.is_local = out.pid.has_value();
  return out;
}

ServerMetrics metrics_of(const KnownServer& server) {
  Caller caller(server.endpoint);
  const auto answer = caller.call({.method = "GET", .path = "/metrics", .body = ""});
  return answer && answer->status == 200 ? parse_metrics(answer->body) : ServerMetrics{};
}

Windows windows_of(const KnownServer& server) {
  Windows out{.pid = server.pid,
              .has_metrics = server.has_metrics,
              .has_accounts = server.has_accounts,
              .last_step = 0};
  if (!server.has_accounts) return out;
  Caller caller(server.endpoint);
  const auto answer = caller.call({.method = "GET", .path = "/v1/steps?last=1", .body = ""});
  if (answer && answer->status == 200) out.last_step = last_step_of(answer->body);
  return out;
}

std::optional<ClockTie> tie_clocks(const KnownServer& server) {
  std::optional<ClockTie> best;
  if (!server.has_accounts) return best;
  Caller caller(server.endpoint);
  for (int call = 0; call < kTieCalls; ++call) {
    const int64_t before_us = base::now_us();
    const auto answer = caller.call({.method = "GET", .path = "/v1/steps?last=0", .body = ""});
    const int64_t after_us = base::now_us();
    if (!answer || answer->status != 200) continue;
    const auto page = parse_object(answer->body);
    if (!page || !page->contains("now_us") || !(*page)["now_us"].is_number_integer()) continue;
    const int64_t error_us = (after_us - before_us + 1) / 2;
    if (!best || error_us < best->error_us)
      best = ClockTie{(*page)["now_us"].get<int64_t>() - (before_us + error_us), error_us};
  }
  return best;
}

json accounts_of(const KnownServer& server) {
  if (!server.has_accounts) return nullptr;
  Caller caller(server.endpoint);
  const auto answer = caller.call({.method = "GET", .path = "/v1/accounts", .body = ""});
  return answer && answer->status == 200 ? accounts_summary(answer->body) : json(nullptr);
}

std::vector<json> steps_of(const KnownServer& server, uint64_t since, const std::vector<std::string>& pages) {
  std::vector<json> out;
  const auto take = [&](const std::string& page) {
    auto parsed = parse_object(page);
    if (!parsed || !parsed->contains("steps") || !(*parsed)["steps"].is_array()) return;
    for (json& step : (*parsed)["steps"])
      if (step.is_object()) out.push_back(std::move(step));
    if (const uint64_t last = last_step_of(page); last > 0) since = last;
  };
  for (const std::string& page : pages) take(page);
  if (!server.has_accounts) return out;
  Caller caller(server.endpoint);
  int waits = kStepWaits;
  for (size_t page = 0; page < kStepPagesMax; ++page) {
    const size_t before = out.size();
    const auto answer = caller.call({.method = "GET", .path = steps_path(since), .body = ""});
    if (answer && answer->status == 200) take(answer->body);
    if (out.size() > before) continue;
    // A step is told once it is over, and the last tokens leave before that.
    if (out.empty() || out.back().value("running", json()) == 0 || waits-- == 0) break;
    std::this_thread::sleep_for(kStepWait);
  }
  return out;
}

bool reset_prefix_cache(const KnownServer& server) {
  Caller caller(server.endpoint);
  const auto answer = caller.call({.method = "POST", .path = "/reset_prefix_cache", .body = "{}"});
  return answer && answer->status == 200;
}

std::vector<uint32_t> shared_vocabulary(const std::vector<KnownServer>& servers) {
  std::vector<uint32_t> out, all;
  for (uint32_t word = 0; word < common_words().size(); ++word) {
    all.push_back(word);
    const auto is_whole = [&](const KnownServer& s) {
      return s.word_ids.empty() || s.word_ids[word] != kNoId;
    };
    if (std::all_of(servers.begin(), servers.end(), is_whole)) out.push_back(word);
  }
  return out.size() >= 2 ? out : all;
}

std::string completion_request(const KnownServer& server, const LoadSpec& spec,
                               const std::vector<uint32_t>& vocabulary, const PlannedRequest& request) {
  std::string body = "{";
  if (spec.is_chat) {
    const json messages = {{{"role", "user"}, {"content", prompt_text(vocabulary, request)}}};
    body += "\"messages\":" + line_of(messages);
  } else if (!request.ids.empty() || (server.facts.takes_ids && request.text.empty())) {
    body += "\"prompt\":";
    append_ids(body, server, vocabulary, request);
  } else {
    body += "\"prompt\":" + line_of(prompt_text(vocabulary, request));
  }
  json rest = {{"model", server.facts.model},
               {"max_tokens", request.output_tokens},
               {"min_tokens", request.output_tokens},
               {"ignore_eos", true},
               {"temperature", request.temperature},
               {"cache_salt", request.cache_salt},
               {"stream", spec.is_stream}};
  if (request.temperature > 0) rest["seed"] = request.id;
  if (spec.is_stream) {
    rest["stream_options"] = {{"include_usage", true}};
    if (server.facts.kind == "tally") rest["stream_options"]["include_tally"] = true;  // tokens of each event
  }
  body += ',' + line_of(rest).substr(1);
  const std::string_view path = spec.is_chat ? "/v1/chat/completions" : "/v1/completions";
  return request_bytes(server.endpoint,
                       {.method = "POST", .path = path, .body = body, .is_stream = spec.is_stream});
}

}  // namespace tally::measure
