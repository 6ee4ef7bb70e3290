#include "measure/server_process.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr auto kLook = std::chrono::milliseconds(10), kGrace = std::chrono::milliseconds(30'000);
constexpr std::string_view kListening = "listening on ";

// "http://127.0.0.1:40123" of the line that tells where it listens; "" until it is there.
std::string address_in(const std::string& output) {
  const size_t from = output.find(kListening), end = output.find('\n', from);
  if (from == std::string::npos || end == std::string::npos) return "";
  return output.substr(from + kListening.size(), end - from - kListening.size());
}

bool is_ready(const Endpoint& endpoint) {
  const auto answer = Caller(endpoint).call({.path = "/readyz", .body = {}}, std::chrono::seconds(2));
  return answer && answer->status == 200;
}

}  // namespace

Result<ServerProcess> ServerProcess::start(const ServerStart& how, const std::function<bool()>& go_on) {
  std::vector<std::string> argv{how.program, "serve", how.model, "--port", "0"};
  argv.insert(argv.end(), how.flags.begin(), how.flags.end());
  TALLY_TRY(ChildProcess child, ChildProcess::start(argv));
  ServerProcess out(std::move(child));
  Endpoint endpoint;
  for (const Instant end = std::chrono::steady_clock::now() + duration(how.timeout_s);;) {
    if (const auto code = out.child_.exit_code())
      return Error{ErrorCode::kUnavailable,
                   fmt::format("the server ended with exit code {} before it was ready: {}", *code,
                               out.child_.last_words())};
    if (out.url_.empty() && !(out.url_ = address_in(out.child_.output())).empty()) {
      TALLY_TRY(endpoint, resolve(out.url_, ""));  // probes need no key
    }
    if (!out.url_.empty() && is_ready(endpoint)) return out;
    if (!go_on()) return Error{ErrorCode::kInternal, "interrupted"};
    if (std::chrono::steady_clock::now() > end)
      return Error{ErrorCode::kUnavailable, fmt::format("the server was not ready within {:g} s: {}",
                                                        how.timeout_s, out.child_.last_words())};
    std::this_thread::sleep_for(kLook);
  }
}

Result<void> ServerProcess::stop() {
  const bool ended_before = child_.exit_code().has_value();
  const int code = child_.stop(kGrace);
  if (!ended_before && code == 0) return {};
  return Error{ErrorCode::kUnavailable,
               fmt::format("the server ended{} with exit code {}: {}", ended_before ? " by itself" : "", code,
                           child_.last_words())};
}

}  // namespace tally::measure
