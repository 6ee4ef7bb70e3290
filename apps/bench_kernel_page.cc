#include "bench_kernel_page.h"

#include "bench_lists.h"
#include "bench_machine.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tally::apps {

using nlohmann::json;

json KernelBenchPage::results() const {
  json results = json::array();
  for (const KernelMeasure& m : measures) {
    const Spread time = spread(m.seconds);
    const Roofs::Share share = roofs.share(m.bytes, m.operations, m.operations_roof, time.median);
    results.push_back({{"type", lower(tensor::dtype_info(m.type).name)},
                       {"isa", kernels::isa_name(m.isa)},
                       {"rows", settings.rows},
                       {"k", settings.k},
                       {"tokens", m.tokens},
                       {"threads", roofs.threads()},
                       {"bytes_per_second", m.bytes / time.median},
                       {"bytes_per_second_min", m.bytes / time.max},
                       {"bytes_per_second_max", m.bytes / time.min},
                       {"ops_per_second", m.operations / time.median},
                       {"percent_of_roof", 100 * share.share},
                       {"bound", share.memory ? "bandwidth" : "compute"},
                       {"repetitions", m.seconds.size()},
                       {"seconds", m.seconds}});
  }
  return results;
}

void KernelBenchPage::print_table() const {
  fmt::print("{}", roofs.text());
  if (measures.empty()) return;
  fmt::print("matrix {} x {}, GB/s of packed weights, medians of {}\n", settings.rows, settings.k,
             settings.repetitions);
  fmt::print("{:<8}{:<12}{:>7}{:>9}{:>9}{:>9}{:>9}{:>8}  {}\n", "type", "isa", "tokens", "GB/s", "min", "max",
             "GOP/s", "% roof", "bound");
  for (const KernelMeasure& m : measures) {
    const Spread time = spread(m.seconds);
    const Roofs::Share share = roofs.share(m.bytes, m.operations, m.operations_roof, time.median);
    fmt::print("{:<8}{:<12}{:>7}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.1f}{:>8.1f}  {}\n",
               tensor::dtype_info(m.type).name, kernels::isa_name(m.isa), m.tokens,
               m.bytes / time.median * 1e-9, m.bytes / time.max * 1e-9, m.bytes / time.min * 1e-9,
               m.operations / time.median * 1e-9, 100 * share.share, share.memory ? "bandwidth" : "compute");
  }
  fmt::print(
      "% roof: the time that reading the weights once or computing the products asks for at the roof, "
      "whichever "
      "is longer, over the time it took\n");
}

}  // namespace tally::apps
