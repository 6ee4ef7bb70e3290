#include "bench_engine_page.h"

#include "base/utf8.h"
#include "bench_machine.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;

Spread rate(const EngineMeasure& m) {
  std::vector<double> rates;
  for (const double s : m.seconds) rates.push_back(static_cast<double>(m.tokens()) / s);
  return spread(rates);
}

// Bytes a second that the median repetition read: packed weights once a pass, keys and values once a token.
double bytes_per_second(const EngineMeasure& m) {
  return static_cast<double>(m.bytes) / spread(m.seconds).median;
}

json result_json(const EngineMeasure& m) {
  const Spread r = rate(m);
  const double all = m.linear_s + m.attention_s + m.head_s + m.other_s + m.pick_s;
  json row = {{"phase", m.is_prefill() ? "prefill" : "decode"},
              {"prompt", m.prompt},
              {"decode", m.decode},
              {"batch", m.batch},
              {"depth", m.depth},
              {"depth_blocks", depth_blocks_name(m.depth_blocks)},
              {"kv_type", tensor::kv_codec_info(m.codec).name},
              {"threads", m.threads},
              {"tokens_per_second", r.median},
              {"tokens_per_second_min", r.min},
              {"tokens_per_second_max", r.max},
              {"repetitions", m.seconds.size()},
              {"seconds", m.seconds},
              {"time_shares",
               {{"linear", m.linear_s / all},
                {"attention", m.attention_s / all},
                {"head", m.head_s / all},
                {"other", m.other_s / all},
                {"pick", m.pick_s / all}}}};
  if (!m.is_prefill()) row["bytes_read"] = m.bytes, row["bytes_per_second"] = bytes_per_second(m);
  return row;
}

}  // namespace

nlohmann::json EngineBenchPage::json() const {
  auto results = nlohmann::json::array();
  for (const EngineMeasure& m : report.measures) results.push_back(result_json(m));
  return {{"machine", machine_json(kernels::isa_name(settings.isa))},
          {"model",
           {{"path_basename", report.file_name},
            {"arch", report.architecture},
            {"weight_type", report.weight_type},
            {"weight_bytes", report.weight_bytes},
            {"load_seconds", report.load_s},
            {"huge_page_share", report.huge_share}}},
          {"settings",
           {{"step_tokens", settings.step_tokens},
            {"block_tokens", settings.block_tokens},
            {"attention", settings.standard_attention ? "standard" : "paged"}}},
          {"warnings", warnings},
          {"results", std::move(results)}};
}

void EngineBenchPage::print_table() const {
  fmt::print("{}: {}, {:.1f} MiB of packed weights a pass, {}\n", base::escape_for_log(report.file_name),
             report.architecture, static_cast<double>(report.weight_bytes) / 0x1p20,
             kernels::isa_name(settings.isa));
  fmt::print("{:<8}{:>7}{:>7}{:>6}{:>7}{:>9}{:>6}{:>8}{:>12}{:>10}{:>10}{:>4}{:>9}\n", "phase", "prompt",
             "decode", "batch", "depth", "of", "kv", "threads", "tokens/s", "min", "max", "n", "GB/s");
  for (const EngineMeasure& m : report.measures) {
    const Spread r = rate(m);
    fmt::print("{:<8}{:>7}{:>7}{:>6}{:>7}{:>9}{:>6}{:>8}{:>12.2f}{:>10.2f}{:>10.2f}{:>4}{:>9}\n",
               m.is_prefill() ? "prefill" : "decode", m.prompt, m.decode, m.batch, m.depth,
               depth_blocks_name(m.depth_blocks), tensor::kv_codec_info(m.codec).name, m.threads, r.median,
               r.min, r.max, m.seconds.size(),
               m.is_prefill() ? "" : fmt::format("{:.1f}", bytes_per_second(m) * 1e-9));
  }
  fmt::print(
      "tokens/s: median of n, of all sequences together; GB/s: packed weights once a pass, keys and values "
      "once a "
      "token\n");
}

}  // namespace tally::apps
