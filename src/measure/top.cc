#include "measure/top.h"

#include "base/utf8.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr double kRateWindow_s = 2;
constexpr size_t kStepsKept = 400, kBlocksMax = 4096;
constexpr Duration kPatience = std::chrono::seconds(2);

struct Histogram {
  const char *name, *metric;
};
constexpr Histogram kHistograms[] = {{"TTFT", "vllm:time_to_first_token_seconds"},
                                     {"ITL", "vllm:inter_token_latency_seconds"},
                                     {"E2E", "vllm:e2e_request_latency_seconds"}};

}  // namespace

Buckets parse_buckets(std::string_view page, std::string_view name) {
  Buckets out;
  const std::string wanted = std::string(name) + "_bucket{";
  while (!page.empty()) {
    const std::string_view line = page.substr(0, page.find('\n'));
    page.remove_prefix(std::min(line.size() + 1, page.size()));
    if (!line.starts_with(wanted)) continue;
    constexpr std::string_view kEdge = "le=\"";
    const size_t edge = line.find(kEdge), blank = line.rfind(' ');
    if (edge == std::string_view::npos || blank == std::string_view::npos) continue;
    const std::string_view text =
        line.substr(edge + kEdge.size(), line.find('"', edge + kEdge.size()) - edge - kEdge.size());
    double upper = std::numeric_limits<double>::infinity(), count = 0;
    if (text != "+Inf" && std::from_chars(text.data(), text.data() + text.size(), upper).ec != std::errc())
      continue;
    if (std::from_chars(line.data() + blank + 1, line.data() + line.size(), count).ec != std::errc())
      continue;
    if (!std::isnan(upper) && std::isfinite(count)) out[upper] += count;  // several engines add up
  }
  return out;
}

std::optional<double> bucket_quantile(const Buckets& before, const Buckets& now, double q) {
  if (now.empty()) return std::nullopt;
  const auto came = [&](const Buckets::value_type& bucket) {
    const auto at = before.find(bucket.first);
    return bucket.second - (at == before.end() ? 0 : at->second);
  };
  const double all = came(*now.rbegin()), wanted = q * all;
  if (all <= 0) return std::nullopt;
  double lower = 0, below = 0;
  for (const auto& bucket : now) {
    const double count = came(bucket);
    if (count >= wanted && count > below) {
      if (std::isinf(bucket.first)) return lower;
      return lower + (bucket.first - lower) * (wanted - below) / (count - below);
    }
    lower = bucket.first, below = count;
  }
  return lower;
}

Result<TopWatch> TopWatch::open(const std::string& url, const std::string& api_key) {
  TopWatch out;
  TALLY_TRY(Endpoint endpoint, resolve(url, api_key));
  out.endpoint_ = std::make_unique<Endpoint>(std::move(endpoint));
  out.caller_ = std::make_unique<Caller>(*out.endpoint_);
  out.begin_ = std::chrono::steady_clock::now();
  out.state_.url = url;
  return out;
}

Result<void> TopWatch::look() {
  struct Page {
    const char* path;
    void (TopWatch::*take)(std::string_view);
    uint64_t each;  // so many looks
  };
  constexpr Page kPages[] = {{"/metrics", &TopWatch::take_metrics, 1},
                             {"/v1/steps?last=400", &TopWatch::take_steps, 1},
                             {"/v1/accounts", &TopWatch::take_accounts, 2},
                             {"/v1/blocks", &TopWatch::take_blocks, 2}};
  state_.watched_s = seconds(std::chrono::steady_clock::now() - begin_);
  for (const Page& page : kPages) {
    if (looks_ % page.each != 0) continue;
    const auto answer = caller_->call({.method = "GET", .path = page.path, .body = ""}, kPatience);
    if (!answer) {
      state_.trouble = answer.error().message;
      return answer.error();
    }
    if (const std::string refusal = refusal_of(answer->status); !refusal.empty()) {
      state_.trouble = fmt::format("GET {}: {}", page.path, refusal);
      return Error{ErrorCode::kUnavailable,
                   fmt::format("{}: {}", base::escape_for_log(state_.url, 80), state_.trouble)};
    }
    if (answer->status == 200) (this->*page.take)(answer->body);
  }
  state_.trouble.clear();
  ++looks_;
  return {};
}

void TopWatch::take_metrics(std::string_view page) {
  const ServerMetrics m = parse_metrics(page);
  state_.model = text_at(m.model, "model");
  state_.running = m.running, state_.waiting = m.waiting, state_.kv_usage = m.kv_usage;
  state_.preemptions = m.preemptions;
  state_.quantiles.clear();
  for (const Histogram& h : kHistograms) {
    const Buckets now = parse_buckets(page, h.metric);
    if (now.empty()) continue;
    const Buckets& first = first_.try_emplace(h.name, now).first->second;
    state_.quantiles.push_back({h.name, bucket_quantile(first, now, .5), bucket_quantile(first, now, .9),
                                bucket_quantile(first, now, .99)});
  }
  if (!m.prompt_tokens || !m.generation_tokens) return;
  samples_.push_back({state_.watched_s, *m.prompt_tokens, *m.generation_tokens});
  while (samples_.size() > 2 && samples_[1].at_s <= state_.watched_s - kRateWindow_s) samples_.pop_front();
  const Sample &from = samples_.front(), &to = samples_.back();
  const double took_s = to.at_s - from.at_s;
  if (took_s <= 0) return;
  state_.prefill_per_s = std::max(0., to.prompt - from.prompt) / took_s;
  state_.decode_per_s = std::max(0., to.generated - from.generated) / took_s;
}

void TopWatch::take_accounts(std::string_view page) {
  const auto parsed = parse_object(page);
  if (!parsed || !parsed->contains("accounts") || !(*parsed)["accounts"].is_object()) return;
  state_.accounts.clear();
  for (const auto& [name, account] : (*parsed)["accounts"].items())
    if (account.is_object())
      state_.accounts.push_back({name, amount_at(account, "planned_bytes"),
                                 amount_at(account, "reserved_bytes"), amount_at(account, "used_bytes")});
  state_.measured_bytes = amount_at(*parsed, "measured_rss_anon_bytes"),
  state_.cap_bytes = amount_at(*parsed, "cap_bytes");
}

void TopWatch::take_blocks(std::string_view page) {
  const auto parsed = parse_object(page);
  if (!parsed || !parsed->contains("blocks") || !(*parsed)["blocks"].is_array()) return;
  state_.blocks.clear();
  for (const json& block : (*parsed)["blocks"]) {
    if (state_.blocks.size() == kBlocksMax) break;
    const std::string state = text_at(block, "state");
    const bool is_shared = block.is_object() && amount_at(block, "owners") > 1;
    state_.blocks += state == "free" ? '.' : is_shared ? 's' : state == "cached" ? 'c' : '#';
  }
}

void TopWatch::take_steps(std::string_view page) {
  const auto parsed = parse_object(page);
  if (!parsed || !parsed->contains("steps") || !(*parsed)["steps"].is_array()) return;
  state_.steps.clear();
  for (const json& step : (*parsed)["steps"]) {
    if (!step.is_object() || state_.steps.size() == kStepsKept) continue;
    const bool prefills = amount_at(step, "prefill_tokens") + amount_at(step, "recompute_tokens") > 0;
    const bool decodes = amount_at(step, "decode_tokens") > 0;
    state_.steps.push_back({step_kind(prefills, decodes), amount_at(step, "duration_us") * 1e-6});
  }
}

}  // namespace tally::measure
