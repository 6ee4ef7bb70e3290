#include "measure/watch.h"

#include "measure/store.h"
#include "measure/watch_proc.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr uint64_t kTurns = 5;  // samples, in which each page is asked for once
constexpr size_t kPageBytesMax = size_t{8} << 20;

struct Wanted {
  std::string_view name, label;  // label: a part of the text in braces; "": any
  std::optional<double> ServerMetrics::* field;
};
using M = ServerMetrics;
constexpr Wanted kWanted[] = {
    {"vllm:num_requests_running", "", &M::running},
    {"vllm:num_requests_waiting", "", &M::waiting},
    {"vllm:kv_cache_usage_perc", "", &M::kv_usage},
    {"vllm:gpu_cache_usage_perc", "", &M::kv_usage},
    {"vllm:prompt_tokens_total", "", &M::prompt_tokens},
    {"vllm:generation_tokens_total", "", &M::generation_tokens},
    {"vllm:prefix_cache_queries_total", "", &M::prefix_queries},
    {"vllm:prefix_cache_hits_total", "", &M::prefix_hits},
    {"vllm:num_preemptions_total", "", &M::preemptions},
    {"vllm:spec_decode_num_draft_tokens_total", "", &M::draft_tokens},
    {"vllm:spec_decode_num_accepted_tokens_total", "", &M::accepted_tokens},
    {"tally_recomputed_tokens_total", "", &M::recomputed_tokens},
    {"tally_kv_blocks", "state=\"held\"", &M::kv_held},
    {"tally_kv_blocks", "state=\"cached\"", &M::kv_cached},
    {"tally_kv_blocks", "state=\"free\"", &M::kv_free},
    {"tally_kv_block_bytes", "", &M::kv_block_bytes},
    {"tally_kv_internal_waste_bytes", "", &M::kv_waste_bytes},
    {"llamacpp:requests_processing", "", &M::running},
    {"llamacpp:requests_deferred", "", &M::waiting},
    {"llamacpp:kv_cache_usage_ratio", "", &M::kv_usage},
    {"llamacpp:prompt_tokens_total", "", &M::prompt_tokens},
    {"llamacpp:tokens_predicted_total", "", &M::generation_tokens},
};

// A number of the page, which may have an exponent; none of its NaN and infinities.
std::optional<double> parse_value(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  return is_number ? std::optional(value) : std::nullopt;
}

// name="value" pairs of a label list.
json labels_json(std::string_view labels) {
  json out = json::object();
  while (!labels.empty()) {
    const size_t equals = labels.find("=\""), close = labels.find('"', equals + 2);
    if (equals == std::string_view::npos || close == std::string_view::npos) break;
    out[std::string(labels.substr(0, equals))] = std::string(labels.substr(equals + 2, close - equals - 2));
    labels.remove_prefix(close + 1);
    if (labels.starts_with(',')) labels.remove_prefix(1);
  }
  return out;
}

void put(json& out, const char* key, const std::optional<double>& value) {
  if (value) out[key] = *value;
}

}  // namespace

ServerMetrics parse_metrics(std::string_view page) {
  ServerMetrics out;
  while (!page.empty()) {
    const std::string_view line = page.substr(0, page.find('\n'));
    page.remove_prefix(std::min(line.size() + 1, page.size()));
    if (line.empty() || line[0] == '#') continue;
    const std::string_view name = line.substr(0, line.find_first_of("{ "));
    const size_t open = line.find('{'), close = line.rfind('}'), blank = line.rfind(' ');
    if (blank == std::string_view::npos) continue;
    const std::string_view labels = open == name.size() && close != std::string_view::npos && close > open
                                        ? line.substr(open + 1, close - open - 1)
                                        : "";
    if (name == "tally_model_info") out.model = labels_json(labels);
    if (name == "tally_build_info") out.build = labels_json(labels);
    for (const Wanted& wanted : kWanted) {
      if (name != wanted.name || labels.find(wanted.label) == std::string_view::npos) continue;
      if (const auto value = parse_value(line.substr(blank + 1)))
        out.*wanted.field = (out.*wanted.field).value_or(0) + *value;  // several engines add up
    }
  }
  return out;
}

std::optional<double> ServerMetrics::kv_utilisation() const {
  if (!kv_held || !kv_block_bytes || !kv_waste_bytes || *kv_held * *kv_block_bytes <= 0) return std::nullopt;
  return std::clamp(1 - *kv_waste_bytes / (*kv_held * *kv_block_bytes), 0., 1.);
}

json ServerMetrics::load_json() const {
  json out = json::object();
  put(out, "running", running), put(out, "waiting", waiting), put(out, "kv_usage", kv_usage);
  put(out, "kv_held", kv_held), put(out, "kv_cached", kv_cached), put(out, "kv_free", kv_free);
  put(out, "kv_utilisation", kv_utilisation());
  return out;
}

json accounts_summary(std::string_view page) {
  const auto parsed = parse_object(page);
  if (!parsed || !parsed->contains("accounts") || !(*parsed)["accounts"].is_object()) return nullptr;
  json out = json::object();
  for (const auto& [name, account] : (*parsed)["accounts"].items()) {
    if (!account.is_object()) continue;
    if (account.contains("reserved_bytes")) out[name] = account["reserved_bytes"];
    if (account.contains("planned_bytes")) out["planned"][name] = account["planned_bytes"];
  }
  for (const char* key : {"planned_bytes", "reserved_bytes", "measured_rss_anon_bytes", "unaccounted_bytes",
                          "cap_bytes"})
    if (const auto at = parsed->find(key); at != parsed->end() && at->is_number_integer()) out[key] = *at;
  return out;
}

uint64_t last_step_of(std::string_view page) {
  constexpr std::string_view kKey = "{\"step\":";
  const size_t at = page.rfind(kKey);
  if (at == std::string_view::npos) return 0;
  uint64_t step = 0;
  std::from_chars(page.data() + at + kKey.size(), page.data() + page.size(), step);
  return step;
}

std::string steps_path(uint64_t since) { return "/v1/steps?since=" + std::to_string(since); }

std::string refusal_of(int status) {
  if (status == 401 || status == 403)
    return fmt::format("HTTP {}: the variable TALLY_API_KEY must hold a key that may administrate", status);
  if (status == 503) return "HTTP 503: the server is loading its model, or is stopping";
  return "";
}

ServerWatch::ServerWatch(boost::asio::io_context& io, const Endpoint& endpoint, const Windows& windows)
    : endpoint_(endpoint), windows_(windows), connection_(Connection::create(io, endpoint)) {
  page_.last_step = windows.last_step;
}

void ServerWatch::sample(double at_s) {
  if (!windows_.pid && !windows_.has_metrics) return;
  MemorySample sample;
  sample.at_s = at_s;
  if (windows_.pid) read_process_memory(*windows_.pid, sample);
  sample.load = std::exchange(page_.load, json());
  sample.accounts = std::exchange(page_.accounts, json());
  samples_.push_back(std::move(sample));
  const uint64_t turn = ticks_++ % kTurns;
  if (turn == 0 && windows_.has_metrics) ask(Asked::kMetrics);
  if (turn == 2 && windows_.has_accounts) ask(Asked::kAccounts);
  if (turn == 3 && windows_.has_accounts) ask(Asked::kSteps);
}

void ServerWatch::ask(Asked what) {
  if (connection_->is_busy()) return;
  const std::string steps = steps_path(page_.last_step);
  const std::string_view path = what == Asked::kMetrics    ? "/metrics"
                                : what == Asked::kAccounts ? "/v1/accounts"
                                                           : std::string_view(steps);
  page_.asked = what;
  request_ = request_bytes(endpoint_, {.method = "GET", .path = path, .body = ""});
  connection_->start(request_, page_, std::chrono::seconds(5));
}

void ServerWatch::stop() { connection_->give_up("stopped"); }

bool ServerWatch::Page::on_body(std::string_view bytes, Instant) {
  if (body.size() + bytes.size() > kPageBytesMax) is_good = false;
  if (is_good) body += bytes;
  return is_good;
}

void ServerWatch::Page::on_end(std::string_view failure, Instant) {
  if (!failure.empty() || !is_good) return;
  if (asked == Asked::kAccounts) {
    accounts = accounts_summary(body);
    return;
  }
  if (asked == Asked::kSteps) {  // parsed when nothing is measured any more
    if (const uint64_t last = last_step_of(body); last > 0) last_step = last, steps.push_back(body);
    return;
  }
  const ServerMetrics metrics = parse_metrics(body);
  load = metrics.load_json();
  if (const auto share = metrics.kv_utilisation()) utilisations.push_back(*share);
  if (metrics.kv_held && metrics.kv_block_bytes)
    kv_peak_bytes =
        std::max(kv_peak_bytes, static_cast<uint64_t>(*metrics.kv_held * *metrics.kv_block_bytes));
}

}  // namespace tally::measure
