// tally simulate TRACE: the scheduler and other allocators on a virtual clock.
#include "base/utf8.h"
#include "bench_lists.h"
#include "cli.h"
#include "interrupt.h"
#include "loading.h"
#include "simulate_page.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using sched::simulate::Scenario;
using sched::simulate::Scheme;
using sched::simulate::Trace;

constexpr std::string_view kSimulateCommand = "simulate";
constexpr uint64_t kFileBytesMax = uint64_t{4} << 30;
constexpr uint32_t kRequestsDefault = 1000;
constexpr double kRateDefault = 1;

std::string built_in_names() {
  std::string out;
  for (const std::string_view name : sched::simulate::trace_names())
    out += fmt::format("{}{}", out.empty() ? "" : " | ", name);
  return out;
}

Result<std::string> read_file(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) {
    const auto near = base::nearest_name(path, sched::simulate::trace_names());
    return Error{ErrorCode::kNoInput,
                 fmt::format("{}: no such file{}; TRACE is a CSV or JSON lines file, or {}",
                             base::escape_for_log(path), near ? fmt::format("; did you mean {}?", *near) : "",
                             built_in_names())};
  }
  const uint64_t bytes = std::filesystem::file_size(path, ec);
  if (ec || bytes > kFileBytesMax)
    return Error{ErrorCode::kBadData, fmt::format("{}: {} bytes; at most {} are allowed",
                                                  base::escape_for_log(path), bytes, kFileBytesMax)};
  std::ifstream in(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes)))
    return Error{ErrorCode::kNoInput, fmt::format("{}: cannot be read", base::escape_for_log(path))};
  return text;
}

struct Source {
  Trace trace;
  double rate = 0;  // 0: as the file has them
  bool built_in = false;
};

Result<Source> load_trace(const Invocation& call) {
  const base::Settings& s = call.settings;
  const std::string& name = call.arguments[0];
  const auto requests = static_cast<uint32_t>(s.number("requests"));
  Source out;
  out.rate = s.real("rate");
  sched::simulate::TraceShape shape{kRequestsDefault, kRateDefault, s.number("seed")};
  if (requests != 0) shape.requests = requests;
  if (out.rate != 0) shape.rate = out.rate;
  if (std::optional<Trace> built = sched::simulate::build_trace(name, shape)) {
    out.trace = std::move(*built), out.rate = shape.rate, out.built_in = true;
    return out;
  }
  TALLY_TRY(const std::string text, read_file(name));
  auto parsed = sched::simulate::parse_trace(text);
  if (!parsed)
    return Error{parsed.error().code,
                 fmt::format("{}: {}", base::escape_for_log(name), parsed.error().message)};
  out.trace = std::move(*parsed);
  sched::simulate::reshape(out.trace, requests, out.rate);
  return out;
}

// One for each scheme, batching and block size asked for; extents have no block size.
Result<std::vector<SimulatedRun>> list_runs(const base::Settings& s) {
  Scenario scenario;
  scenario.pool_tokens = static_cast<uint32_t>(s.number("pool-tokens"));
  scenario.seqs_max = static_cast<uint32_t>(s.number("max-seqs"));
  scenario.step_tokens = static_cast<uint32_t>(s.number("step-tokens"));
  scenario.model_len_max = static_cast<uint32_t>(s.number("max-model-len"));
  scenario.prefix_cache = s.on("prefix-cache");
  scenario.step_latency = static_cast<Tick>(s.number("step-latency")) * 1000;
  scenario.cost = {.fixed = s.real("cost-fixed"),
                   .weights = s.real("cost-weights"),
                   .row = s.real("cost-row"),
                   .kv_decode = s.real("cost-kv"),
                   .kv_prefill = s.real("cost-kv-prompt")};
  TALLY_TRY(const std::vector<std::string> allocators, word_list(s, kSimulateCommand, "allocator"));
  TALLY_TRY(const std::vector<std::string> batchings, word_list(s, kSimulateCommand, "batching"));
  TALLY_TRY(const std::vector<std::string> blocks, word_list(s, kSimulateCommand, "block-tokens"));
  std::vector<SimulatedRun> runs;
  for (const std::string& allocator : allocators) {
    for (const Scheme scheme : {Scheme::kPaged, Scheme::kReserve, Scheme::kMaxLength, Scheme::kPowerOfTwo})
      if (allocator == scheme_name(scheme)) scenario.scheme = scheme;
    const bool has_blocks = scenario.scheme == Scheme::kPaged || scenario.scheme == Scheme::kReserve;
    for (const std::string& batching : batchings) {
      scenario.batching = batching == "static" ? sched::Batching::kStatic : sched::Batching::kContinuous;
      for (const std::string& block : blocks) {
        scenario.block_tokens = static_cast<uint32_t>(base::parse_uint(block).value_or(64));
        if (has_blocks || &block == &blocks.front()) runs.push_back({scenario, {}});
      }
    }
  }
  return runs;
}

void replay_all(const Trace& trace, std::vector<SimulatedRun>& runs) {
  Progress progress("simulating");
  for (size_t i = 0; i < runs.size() && !interrupted(); ++i) {
    const std::string now = scheme_name(runs[i].scenario.scheme);
    runs[i].report = sched::simulate::replay(trace, runs[i].scenario, [&](uint64_t done) {
      const double share = static_cast<double>(done) / static_cast<double>(trace.requests.size());
      progress.update((static_cast<double>(i) + share) / static_cast<double>(runs.size()), now);
      return !interrupted();
    });
  }
}

}  // namespace

int run_simulate(const Invocation& call) {
  if (call.arguments.size() != 1)
    return fail({ErrorCode::kUsage, fmt::format("{} arguments instead of 1: TRACE, a file or {}",
                                                call.arguments.size(), built_in_names())});
  auto runs = list_runs(call.settings);
  if (!runs) return fail(runs.error());
  hold_ending_signals();
  const auto source = load_trace(call);
  if (!source) return fail(source.error());
  replay_all(source->trace, *runs);
  if (interrupted()) return fail({ErrorCode::kInternal, "interrupted"}), kInterrupted;
  const uint64_t seed = call.settings.number("seed");
  const SimulatePage page{call.arguments[0], source->trace, source->rate, source->built_in ? &seed : nullptr,
                          *runs};
  call.settings.on("json") ? page.print_json() : page.print_table();
  return 0;
}

}  // namespace tally::apps
