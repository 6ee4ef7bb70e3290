#include "ablate_session.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "interrupt.h"
#include "measure/greedy_answers.h"
#include "measure/snapshot.h"
#include "measure/store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::Run;
using measure::ServerProcess;
using nlohmann::json;

constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kGrace = std::chrono::seconds(5);
constexpr std::string_view kReference = "f32";  // what eval kld measures the others against
constexpr double kReadyTimeoutS = 1800;         // the weights of a large model from a slow disk

std::string own_program() {
  std::error_code ec;
  return std::filesystem::read_symlink("/proc/self/exe", ec).string();
}

std::string span_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  return seconds < 6000 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

// The second time: servers and what else was started end with this process, by the kernel's hand.
[[noreturn]] void leave_at_once() {
  fmt::print(stderr, "\ntally: interrupted again: what was under way is not stored\n");
  std::_Exit(kInterrupted);
}

// The figures of one codec of `eval kld --json`; nothing where they are not there.
std::optional<measure::ArmFacts::Quality> quality_of(const json& codec) {
  const auto number = [&](const char* figure, const char* key) -> std::optional<double> {
    const json::json_pointer at = json::json_pointer("/text") / figure / key;
    return codec.contains(at) && codec[at].is_number() ? std::optional(codec[at].get<double>())
                                                       : std::nullopt;
  };
  const auto kld = number("kld_mean", "value"), low = number("kld_mean", "low"),
             high = number("kld_mean", "high"), top = number("same_top", "value");
  if (!kld || !low || !high || !top) return std::nullopt;
  return measure::ArmFacts::Quality{*kld, *low, *high, *top};
}

}  // namespace

AblateSession::AblateSession(const Invocation& call, const AblatePlan& plan, std::string directory)
    : call_(call),
      plan_(plan),
      directory_(std::move(directory)),
      facts_(plan.design.arms.size()),
      paths_(plan.design.arms.size()),
      onlooker_([this] { look(); }) {}

AblateSession::~AblateSession() {
  is_over_ = true;
  onlooker_.join();
}

Result<void> AblateSession::measure_quality() {
  std::string types;
  for (const std::string& type : plan_.kv_types)
    if (type != kReference) types += (types.empty() ? "" : ",") + type;
  std::vector<std::string> argv{own_program(),         "eval",           "kld",
                                plan_.model,           "--json",         "--kv-type=" + types,
                                "--out=" + directory_, "--label=quality"};
  argv.insert(argv.end(), plan_.eval.begin(), plan_.eval.end());
  say("quality of " + types);
  TALLY_TRY(measure::ChildProcess eval, measure::ChildProcess::start(argv));
  while (!eval.exit_code() && !live_.stop) std::this_thread::sleep_for(kLook);
  if (live_.stop) return eval.stop(kGrace), Result<void>();
  const auto page = measure::parse_object(eval.output());
  if (*eval.exit_code() != 0 || !page)
    return Error{ErrorCode::kUnavailable,
                 fmt::format("eval kld ended with exit code {}: {}", *eval.exit_code(), eval.last_words())};
  const json codecs = page->value(json::json_pointer("/results/codecs"), json::array());
  for (size_t arm = 0; arm < facts_.size(); ++arm) {
    const std::string& type = plan_.design.arms[arm].settings.at("kv-type");
    if (type == kReference) facts_[arm].quality = {.kld = 0, .kld_low = 0, .kld_high = 0, .same_top = 1};
    for (const json& codec : codecs)
      if (type != kReference && measure::text_at(codec, "kv_type") == type)
        facts_[arm].quality = quality_of(codec);
  }
  return {};
}

Result<Run> AblateSession::run(size_t arm, uint32_t round) {
  if (begin_us_ == 0) begin_us_ = base::now_us();
  const bool is_again = running_ == std::pair(arm, round);
  if (running_ && !is_again) ++runs_done_;
  running_ = {arm, round};
  const measure::Arm& what = plan_.design.arms[arm];
  const std::string name = base::escape_for_log(what.name, 64);
  say(fmt::format("round {} of {}, {}{}", round + 1, plan_.rounds, name, is_again ? ", again" : ""));
  const auto explain = [&](const Error& error) {
    return Error{error.code, fmt::format("arm '{}': {}", name, error.message)};
  };
  const measure::ServerStart how{own_program(), plan_.model, flag_arguments(what.flags), kReadyTimeoutS};
  auto server = ServerProcess::start(how, [&] { return !live_.stop; });
  if (!server) return live_.stop ? Result<Run>(Run{}) : explain(server.error());
  auto run = run_against(*server, arm, round);
  if (auto stopped = server->stop(); !stopped && !live_.stop) return explain(stopped.error());
  if (!run) return live_.stop ? Result<Run>(Run{}) : explain(run.error());
  return run;
}

Result<Run> AblateSession::run_against(ServerProcess& server, size_t arm, uint32_t round) {
  measure::LoadSpec spec = plan_.load.spec;
  spec.servers = {{"", server.url()}};
  TALLY_TRY(const auto bench, measure::LoadBench::open(spec));
  bench->warm_up(0, live_);
  if (live_.stop) return Run{};
  is_loading_ = true;
  Run run = bench->run(0, plan_.load.levels.front(), round, live_).run;
  is_loading_ = false;
  if (!live_.stop && facts_[arm].answers.empty()) TALLY_TRY_VOID(learn(server, arm));
  const std::string& name = plan_.design.arms[arm].name;
  note_call(run, call_, "ablate", fmt::format("{}-r{}-{}", plan_.label, round + 1, name));
  run.head["ablate"] = {{"arm", name}, {"round", round}};
  TALLY_TRY(std::string path, measure::store_run(run, directory_));
  paths_[arm].push_back(std::move(path));
  run.steps.clear(), run.memory.clear();  // they are stored, and what they say stands in `results`
  return run;
}

Result<void> AblateSession::learn(const ServerProcess& server, size_t arm) {
  measure::ArmFacts& facts = facts_[arm];
  TALLY_TRY(facts.answers, measure::greedy_answers(server.url(), plan_.load.spec.api_key));
  TALLY_TRY(const json page, measure::take_snapshot(server.url(), plan_.load.spec.api_key));
  const auto number = [&](const char* path) -> std::optional<uint64_t> {
    const json::json_pointer at(path);
    return page.contains(at) && page[at].is_number_unsigned() ? std::optional(page[at].get<uint64_t>())
                                                              : std::nullopt;
  };
  facts.planned_bytes = number("/accounts/planned_bytes");
  const auto bytes = number("/accounts/blocks/block_bytes"), tokens = number("/accounts/blocks/block_tokens");
  if (bytes && tokens && *tokens > 0) facts.kv_bytes_per_token = *bytes / *tokens;
  return {};
}

void AblateSession::on_round(uint32_t round) {
  const double seconds = static_cast<double>(base::now_us() - begin_us_) * 1e-6;
  if (round != 0 || plan_.rounds == 1) return;
  // Over the bar that a terminal shows.
  fmt::print(stderr, "{}tally: a round takes {}: about {} for the {} that are left\n",
             ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "", span_text(seconds),
             span_text(seconds * (plan_.rounds - 1)), plan_.rounds - 1);
}

void AblateSession::say(std::string now) {
  const std::lock_guard lock(mutex_);
  now_ = std::move(now);
}

void AblateSession::look() {
  Progress progress("ablate");
  bool came_before = false;
  while (!is_over_) {
    std::this_thread::sleep_for(kLook);
    const bool came = take_interrupt();
    if (came && !came_before) {  // those that are sent together may fall into two looks
      if (live_.stop) leave_at_once();
      live_.stop = true;
    }
    came_before = came;
    const uint32_t total = live_.total;
    const double part = is_loading_ && total > 0 ? static_cast<double>(live_.ended) / total : 0;
    const std::lock_guard lock(mutex_);
    progress.update((static_cast<double>(runs_done_) + part) / static_cast<double>(plan_.runs()), now_);
  }
}

}  // namespace tally::apps
