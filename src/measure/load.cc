#include "measure/load.h"

#include "base/utf8.h"
#include "measure/arrival.h"
#include "measure/audit.h"
#include "measure/generator.h"
#include "measure/load_head.h"
#include "measure/load_server.h"
#include "measure/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;
constexpr uint64_t kWarmUpSeed = 0x77a2;  // added to the seed: nothing of what follows is warm
constexpr uint32_t kWarmUpRequests = 4;

Result<std::string> read_workload_file(const std::string& path) {
  std::error_code ec;
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    return Error{code, fmt::format("--workload {}: {}", base::escape_for_log(path, 80), what)};
  };
  if (!std::filesystem::is_regular_file(path, ec))
    return refuse(ErrorCode::kNoInput,
                  "no such file; allowed: mix, random, shared-prefix, multi-turn, or a file of JSON lines");
  const uint64_t bytes = std::filesystem::file_size(path, ec);
  if (ec || bytes > kFileBytesMax)
    return refuse(ErrorCode::kBadData, fmt::format("{} bytes, at most {} are allowed", bytes, kFileBytesMax));
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes)))
    return refuse(ErrorCode::kNoInput, "cannot be read");
  return text;
}

// Instants of the requests that follow none.
std::vector<double> arrivals_of(const Workload& workload, const LoadSpec& spec, const Level& level,
                                uint32_t repetition) {
  std::vector<double> times;
  for (const PlannedRequest& r : workload.requests)
    if (!r.follows) times.push_back(r.at_s);
  if (spec.arrival.kind == Arrival::kTrace) {
    const double length_s = times.back();
    const double stretch =
        level.value > 0 && length_s > 0 ? static_cast<double>(times.size()) / level.value / length_s : 1;
    for (double& time : times) time *= stretch;
    return times;
  }
  const uint64_t seed = spec.workload.seed + (uint64_t{repetition} << 32);
  return arrival_times(spec.arrival, times.size(), level.value, seed);
}

}  // namespace

std::string Level::text() const {
  if (is_open && value <= 0) return "as traced";
  return is_open ? fmt::format("{:g} requests/s", value)
                 : fmt::format("{:g} {}", value, value == 1 ? "user" : "users");
}

struct LoadBench::State {
  LoadSpec spec;
  std::vector<KnownServer> servers;
  std::vector<ServerFacts> facts;
  std::vector<uint32_t> vocabulary;
  std::string file;
  std::vector<std::string> notes;

  BlockTrace send(const KnownServer& known, const Workload& workload, const Level& level,
                  std::vector<double> arrivals_s, const Windows& windows, LoadLive& live) const {
    const BlockSpec block{
        .endpoint = known.endpoint,
        .workload = workload,
        .bytes_of = [&](const PlannedRequest& r) { return completion_request(known, spec, vocabulary, r); },
        .users = level.is_open ? 0 : static_cast<uint32_t>(level.value),
        .arrivals_s = std::move(arrivals_s),
        .in_flight_max = spec.in_flight_max,
        .timeout_s = spec.timeout_s,
        .is_stream = spec.is_stream,
        .windows = windows};
    return run_block(block, live);
  }

  Workload workload(const WorkloadSpec& wanted, uint32_t repetition) const {
    auto built = build_workload(wanted, repetition, static_cast<uint32_t>(vocabulary.size()), file);
    TALLY_CHECK(built.has_value(), "a workload that was good");
    return std::move(*built);
  }

  Surroundings surroundings(const KnownServer& server) const {
    Surroundings out;
    if (server.has_metrics) out.metrics = metrics_of(server);
    out.machine = machine_times();
    if (server.pid) out.server = process_times(*server.pid);
    out.clock_offset_s = clock_offset_s();
    return out;
  }
};

LoadBench::LoadBench(std::unique_ptr<State> state) : state_(std::move(state)) {}
LoadBench::~LoadBench() = default;
const std::vector<ServerFacts>& LoadBench::servers() const { return state_->facts; }
const std::vector<std::string>& LoadBench::notes() const { return state_->notes; }

Result<std::unique_ptr<LoadBench>> LoadBench::open(LoadSpec spec) {
  auto state = std::make_unique<State>();
  state->spec = std::move(spec);
  const WorkloadSpec& wanted = state->spec.workload;
  if (!is_built_in(wanted.name)) {
    TALLY_TRY(state->file, read_workload_file(wanted.name));
  }
  TALLY_TRY(const Workload sample,
            build_workload(wanted, 0, static_cast<uint32_t>(common_words().size()), state->file));
  if (state->spec.arrival.kind == Arrival::kTrace && !sample.has_times)
    return Error{ErrorCode::kUsage, "--arrival trace: every line of --workload FILE must have at_s"};
  for (const ServerAddress& address : state->spec.servers) {
    TALLY_TRY(KnownServer server, meet_server(address, state->spec));
    state->facts.push_back(server.facts);
    if (!server.facts.takes_ids && !state->spec.is_chat)
      state->notes.push_back(fmt::format(
          "{}: no /tokenize that tells ids: prompts are words, and as long as the server counts them",
          server.facts.name));
    if (!state->spec.keeps_cache && !measure::reset_prefix_cache(server))
      state->notes.push_back(fmt::format(
          "{}: no POST /reset_prefix_cache: what it keeps of earlier runs of this seed can be found again",
          server.facts.name));
    state->servers.push_back(std::move(server));
  }
  if (state->spec.is_chat)
    state->notes.push_back(
        "chat: the server's template adds tokens, so prompts are as long as it counts them");
  state->vocabulary = shared_vocabulary(state->servers);
  std::unique_ptr<LoadBench> bench(new LoadBench(std::move(state)));
  return bench;
}

void LoadBench::warm_up(size_t server, LoadLive& live) {
  WorkloadSpec wanted = state_->spec.workload;
  wanted.seed += kWarmUpSeed;
  wanted.requests = wanted.requests > 0 ? std::min(wanted.requests, kWarmUpRequests) : kWarmUpRequests;
  const KnownServer& known = state_->servers[server];
  state_->send(known, state_->workload(wanted, 0), {.is_open = false, .value = 2}, {}, windows_of(known),
               live);
}

LoadBlock LoadBench::run(size_t server, const Level& level, uint32_t repetition, LoadLive& live) {
  const KnownServer& known = state_->servers[server];
  const LoadSpec& spec = state_->spec;
  const Workload workload = state_->workload(spec.workload, repetition);
  std::vector<double> arrivals_s;
  if (level.is_open) arrivals_s = arrivals_of(workload, spec, level, repetition);
  if (!spec.keeps_cache) measure::reset_prefix_cache(known);

  LoadBlock out{
      .server = server, .level = level, .repetition = repetition, .run = {}, .figures = {}, .by_class = {}};
  const std::string started = wall_clock();
  const Surroundings before = state_->surroundings(known);
  const std::optional<ClockTie> tie = tie_clocks(known);
  const Windows windows = windows_of(known);
  BlockTrace trace = state_->send(known, workload, level, std::move(arrivals_s), windows, live);
  const Surroundings after = state_->surroundings(known);
  // The shortest run has its accounts too.
  if (!trace.memory.empty() && trace.memory.back().accounts.is_null())
    trace.memory.back().accounts = accounts_of(known);

  const Slo* slo = spec.has_slo() ? &spec.slo : nullptr;
  out.figures = figures_of(trace.requests, slo);
  out.by_class = figures_by_class(trace.requests, slo);
  const bool has_exact_lengths = known.facts.takes_ids && !spec.is_chat && is_built_in(spec.workload.name);
  const Audit verdict = audit({.trace = trace,
                               .figures = out.figures,
                               .before = before,
                               .after = after,
                               .cpus = machine_cpus(),
                               .has_exact_lengths = has_exact_lengths,
                               .shares_prefixes = workload.shares_prefixes || spec.keeps_cache,
                               .is_local = known.facts.is_local});
  out.run.requests = std::move(trace.requests);
  out.run.memory = std::move(trace.memory);
  out.run.steps = steps_of(known, windows.last_step, trace.step_pages);
  out.run.head = head_of(
      {spec, known, workload, out, verdict, started, trace.is_stopped, trace.start_us, tie});
  return out;
}

std::vector<RequestRecord> join_blocks(const std::vector<const LoadBlock*>& blocks) {
  std::vector<const std::vector<RequestRecord>*> runs;
  for (const LoadBlock* block : blocks) runs.push_back(&block->run.requests);
  return join_requests(runs);
}

std::vector<size_t> server_order(size_t servers, uint32_t repetition) {
  std::vector<size_t> order(servers);
  for (size_t i = 0; i < servers; ++i) order[i] = repetition % 2 == 0 ? i : servers - 1 - i;
  return order;
}

}  // namespace tally::measure
