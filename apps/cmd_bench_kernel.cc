// tally bench kernel: every linear kernel this CPU can run, against the roofs of the machine.
#include "bench_bed.h"
#include "bench_kernel.h"
#include "bench_kernel_page.h"
#include "bench_lists.h"
#include "bench_store.h"
#include "cli.h"
#include "interrupt.h"
#include "loading.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr std::string_view kKernelCommand = "bench-kernel";

Result<KernelBenchSettings> kernel_settings(const base::Settings& s) {
  KernelBenchSettings out;
  TALLY_TRY(out.isas, isa_list(s, kKernelCommand));
  out.scalar_at_one_token = s.text("isa").empty();
  TALLY_TRY(const std::vector<std::string> types, word_list(s, kKernelCommand, "type"));
  for (const kernels::LinearFormat& format : kernels::kernel_table(kernels::Isa::kScalar).linear) {
    const std::string name = lower(tensor::dtype_info(format.type).name);
    if (types.empty() || std::find(types.begin(), types.end(), name) != types.end())
      out.types.push_back(format.type);
  }
  TALLY_TRY(out.tokens, number_list(s, kKernelCommand, "tokens"));
  out.rows = static_cast<uint32_t>(s.number("rows")), out.k = static_cast<uint32_t>(s.number("k"));
  out.repetitions = static_cast<uint32_t>(s.number("repetitions"));
  if (out.k % 256 != 0)
    return Error{ErrorCode::kUsage,
                 fmt::format("--k: '{}' is not allowed; allowed: multiples of 256", out.k)};
  const uint64_t matrix = uint64_t{out.rows} * out.k * sizeof(float);
  if (matrix > bench_working_bytes()) {
    return Error{ErrorCode::kUsage, fmt::format("--rows {} with --k {}: {} bytes of F32; allowed: {} at most",
                                                out.rows, out.k, matrix, bench_working_bytes())};
  }
  return out;
}

}  // namespace

int run_bench_kernel(const Invocation& call) {
  if (!call.arguments.empty()) return fail(no_argument(call.arguments[0]));
  const base::Settings& s = call.settings;
  const auto settings = kernel_settings(s);
  if (!settings) return fail(settings.error());
  const auto made = BenchBed::make(s);
  if (!made) return fail(made.error());
  BenchBed& bed = **made;
  std::vector<KernelMeasure> measures;
  if (!s.on("roof")) {
    Progress progress("measuring");
    measures = bench_kernels(*settings, bed.memory(), bed.pool(), bed.roofs(),
                             [&](double share, const std::string& now) {
                               progress.update(share, now);
                               return !interrupted();
                             });
  }
  const KernelBenchPage page{*settings, measures, bed.roofs()};
  if (const auto told =
          tell_bench(call, "bench kernel", bed.page(page.results()), [&] { page.print_table(); });
      !told)
    return fail(told.error());
  return bed.finish();
}

}  // namespace tally::apps
