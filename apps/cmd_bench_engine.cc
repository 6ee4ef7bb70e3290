// tally bench engine: tokens a second of the engine without HTTP.
#include "base/machine.h"
#include "bench_engine.h"
#include "bench_engine_page.h"
#include "bench_lists.h"
#include "bench_machine.h"
#include "bench_store.h"
#include "cli.h"
#include "interrupt.h"
#include "loading.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

namespace tally::apps {
namespace {

using base::Result;

constexpr std::string_view kEngineCommand = "bench-engine";

Result<EngineBenchSettings> engine_settings(const base::Settings& s) {
  EngineBenchSettings out;
  TALLY_TRY(out.prompts, number_list(s, kEngineCommand, "prompt"));
  TALLY_TRY(out.decodes, number_list(s, kEngineCommand, "decode"));
  TALLY_TRY(out.batches, number_list(s, kEngineCommand, "batch"));
  TALLY_TRY(out.depths, number_list(s, kEngineCommand, "depth"));
  TALLY_TRY(const std::vector<std::string> codecs, word_list(s, kEngineCommand, "kv-type"));
  for (const std::string& name : codecs)
    for (const tensor::KvCodecInfo& info : tensor::kKvCodecs)
      if (name == info.name) out.codecs.push_back(info.codec);
  TALLY_TRY(out.threads, number_list(s, kEngineCommand, "threads"));
  if (out.threads.empty()) out.threads = {0};
  TALLY_TRY(const std::vector<std::string> blocks, word_list(s, kEngineCommand, "depth-blocks"));
  out.depth_blocks.clear();
  for (const std::string& name : blocks)
    for (const DepthBlocks b : {DepthBlocks::kOwn, DepthBlocks::kApart, DepthBlocks::kTogether})
      if (name == depth_blocks_name(b)) out.depth_blocks.push_back(b);
  for (uint32_t& threads : out.threads) threads = usable_threads(threads);
  out.repetitions = static_cast<uint32_t>(s.number("repetitions"));
  out.step_tokens = static_cast<uint32_t>(s.number("step-tokens"));
  out.block_tokens = static_cast<uint32_t>(base::parse_uint(s.text("block-tokens")).value_or(64));
  out.memory_bytes = s.number("memory");
  if (out.memory_bytes == 0) out.memory_bytes = base::memory_allowance() / 10 * 9;
  out.standard_attention = s.text("attention") == "standard", out.tune = s.on("tune");
  const std::string& isa = s.text("isa");
  out.isa = isa == "best" ? kernels::best_isa() : *kernels::find_isa(isa);
  if (!kernels::host_has(out.isa)) {
    return base::Error{base::ErrorCode::kConfig,
                       fmt::format("--isa {}: this CPU has {}", isa, kernels::host_isas())};
  }
  return out;
}

}  // namespace

int run_bench_engine(const Invocation& call) {
  const auto model = model_argument(call.arguments, 1);
  if (!model) return fail(model.error());
  auto settings = engine_settings(call.settings);
  if (!settings) return fail(settings.error());
  hold_ending_signals();
  const MachineWatch watch;
  Progress loading("loading");
  std::optional<Progress> measuring;  // begins when the model is there
  const auto report = bench_engine(
      *model, *settings,
      [&](uint64_t done, uint64_t total) {
        loading.update(done, total);
        return !interrupted();
      },
      [&](const EngineMeasure& next, double share) {
        if (!measuring) measuring.emplace("measuring");
        measuring->update(share, fmt::format("{} batch {} depth {}", next.is_prefill() ? "prefill" : "decode",
                                             next.batch, next.depth));
      });
  measuring.reset();
  if (!report) return interrupted() ? (fail(report.error()), kInterrupted) : fail(report.error());
  std::vector<std::string> warnings = watch.warnings();
  if (report->huge_share < 0.9) {
    warnings.push_back(
        fmt::format("only {:.0f} % of weights and KV cache lie in huge pages (90 % are wanted): see "
                    "/sys/kernel/mm/transparent_hugepage/enabled, and free memory",
                    100 * report->huge_share));
  }
  const EngineBenchPage page{*settings, *report, warnings};
  if (const auto told = tell_bench(call, "bench engine", page.json(), [&] { page.print_table(); }); !told)
    return fail(told.error());
  for (const std::string& warning : warnings) fmt::print(stderr, "tally: warning: {}\n", warning);
  return 0;
}

}  // namespace tally::apps
