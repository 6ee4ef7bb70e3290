#include "bench_attention_page.h"

#include "bench_machine.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {

using nlohmann::json;

json AttentionBenchPage::results() const {
  json results = json::array();
  for (const AttentionMeasure& m : measures) {
    const Spread time = spread(m.seconds);
    const Roofs::Share share = roofs.share(m.bytes, m.operations, m.operations_roof, time.median);
    results.push_back({{"phase", m.tokens == 1 ? "decode" : "prefill"},
                       {"form", kAttentionForms[static_cast<size_t>(m.form)]},
                       {"kv_type", tensor::kv_codec_info(m.codec).name},
                       {"isa", kernels::isa_name(m.isa)},
                       {"heads", m.shape.heads},
                       {"kv_heads", m.shape.kv_heads},
                       {"head_dim", m.shape.head_dim},
                       {"context", m.context},
                       {"tokens", m.tokens},
                       {"threads", roofs.threads()},
                       {"ms", time.median * 1e3},
                       {"ms_min", time.min * 1e3},
                       {"ms_max", time.max * 1e3},
                       {"kv_bytes", m.bytes},
                       {"memory_bytes", m.memory_bytes},
                       {"bytes_per_second", m.bytes / time.median},
                       {"ops_per_second", m.operations / time.median},
                       {"percent_of_roof", 100 * share.share},
                       {"bound", share.memory ? "bandwidth" : "compute"},
                       {"repetitions", m.seconds.size()},
                       {"seconds", m.seconds}});
  }
  return results;
}

void AttentionBenchPage::print_table() const {
  fmt::print("{}a layer, medians of {}\n", roofs.text(), settings.repetitions);
  fmt::print("{:<9}{:<8}{:<6}{:<12}{:>11}{:>8}{:>7}{:>10}{:>10}{:>9}{:>9}{:>9}{:>10}{:>8}  {}\n", "form",
             "phase", "kv", "isa", "shape", "context", "tokens", "KV MiB", "peak MiB", "ms", "min", "max",
             "GB/s", "GOP/s", "% roof, bound");
  for (const AttentionMeasure& m : measures) {
    const Spread time = spread(m.seconds);
    const Roofs::Share share = roofs.share(m.bytes, m.operations, m.operations_roof, time.median);
    fmt::print(
        "{:<9}{:<8}{:<6}{:<12}{:>11}{:>8}{:>7}{:>10.2f}{:>10.2f}{:>9.3f}{:>9.3f}{:>9.3f}{:>10}{:>8.1f}  "
        "{:.1f}, {}\n",
        kAttentionForms[static_cast<size_t>(m.form)], m.tokens == 1 ? "decode" : "prefill",
        tensor::kv_codec_info(m.codec).name, kernels::isa_name(m.isa),
        fmt::format("{}/{}/{}", m.shape.heads, m.shape.kv_heads, m.shape.head_dim), m.context, m.tokens,
        m.bytes / 0x1p20, static_cast<double>(m.memory_bytes) / 0x1p20, time.median * 1e3, time.min * 1e3,
        time.max * 1e3, m.tokens == 1 ? fmt::format("{:.2f}", m.bytes / time.median * 1e-9) : "",
        m.operations / time.median * 1e-9, 100 * share.share, share.memory ? "bandwidth" : "compute");
  }
  fmt::print(
      "shape: heads/KV heads/head size; GOP/s: two operations for each product of q k and of p v\n"
      "peak: cache, scratch and score matrix of one layer\n");
}

}  // namespace tally::apps
