// tally quantize IN OUT TYPE: the same model with another weight type.
#include "base/machine.h"
#include "base/utf8.h"
#include "cli.h"
#include "divergence.h"
#include "interrupt.h"
#include "kernels/kernels.h"
#include "loading.h"
#include "model/quantize.h"
#include "model/spec.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;

base::Error usage(const std::string& what) {
  std::string types;
  for (const model::QuantizeType& type : model::quantize_types()) types += fmt::format(" {}", type.name);
  return {base::ErrorCode::kUsage,
          fmt::format("{}; quantize IN.gguf OUT.gguf TYPE, TYPE one of{}", what, types)};
}

std::string_view type_name(tensor::DType type) { return tensor::dtype_info(type).name; }
struct Outcome {
  const Invocation& call;
  const model::QuantizeReport& report;
  const Divergence* divergence;  // null: not asked for
};

void print_json(const Outcome& o) {
  json tensors = json::array();
  for (const model::QuantizedTensor& t : o.report.tensors) {
    json row = {
        {"name", t.name}, {"from", type_name(t.from)}, {"to", type_name(t.to)}, {"bytes", t.bytes_after}};
    if (o.divergence != nullptr) row["relative_rms"] = t.relative_rms, row["max_error"] = t.max_error;
    tensors.push_back(std::move(row));
  }
  json out = {{"input", o.call.arguments[0]},        {"output", o.call.arguments[1]},
              {"type", o.call.arguments[2]},         {"bytes_before", o.report.bytes_before},
              {"bytes_after", o.report.bytes_after}, {"bits_per_weight", o.report.bits_per_weight},
              {"tensors", std::move(tensors)}};
  if (o.divergence != nullptr) {
    out["check"] = {{"mean_kld", o.divergence->mean_kld},
                    {"top1_agreement", o.divergence->top1_agreement},
                    {"positions", o.divergence->positions},
                    {"prompt", o.divergence->prompt}};
  }
  write_json(out);
}

void print_text(const Outcome& o) {
  if (o.divergence != nullptr) {
    fmt::print("{:<36} {:<5}    {:<5} {:>12} {:>12}\n", "tensor", "from", "to", "error (rms)", "error (max)");
    for (const model::QuantizedTensor& t : o.report.tensors)
      fmt::print("{:<36} {:<5} -> {:<5} {:>10.4f} % {:>12.4g}\n", base::escape_for_log(t.name, 64),
                 type_name(t.from), type_name(t.to), 100 * t.relative_rms, t.max_error);
  }
  std::map<std::string_view, std::pair<size_t, uint64_t>> types;
  for (const model::QuantizedTensor& t : o.report.tensors)
    ++types[type_name(t.to)].first, types[type_name(t.to)].second += t.bytes_after;
  for (const auto& [name, count] : types)
    fmt::print("{:<5} {:>4} tensors {:>14} bytes\n", name, count.first, count.second);
  fmt::print("{}: {} bytes, {:.2f} bits per weight; {} had {} bytes ({:.1f} %)\n",
             base::escape_for_log(o.call.arguments[1]), o.report.bytes_after, o.report.bits_per_weight,
             base::escape_for_log(o.call.arguments[0]), o.report.bytes_before,
             100.0 * static_cast<double>(o.report.bytes_after) / static_cast<double>(o.report.bytes_before));
  if (o.divergence != nullptr) {
    fmt::print(
        "against the source over {} positions of the built-in {}: mean KLD {:.5f} nats, best token agrees "
        "{:.1f} %\n",
        o.divergence->positions, o.divergence->prompt, o.divergence->mean_kld,
        100 * o.divergence->top1_agreement);
  }
}

base::Result<model::QuantizeReport> quantize_file(const Invocation& call, const gguf::File& in,
                                                  const model::QuantizeType& type, size_t threads) {
  base::ThreadPool pool(threads);
  Progress progress("quantizing");
  model::QuantizeOptions options;
  options.type = &type;
  options.allow_requantize = call.settings.on("allow-requantize"),
  options.measure = call.settings.on("check");
  options.progress = [&](uint64_t done, uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  return model::quantize(in, call.arguments[1], kernels::kernel_table(kernels::best_isa()), options, pool);
}

}  // namespace

int run_quantize(const Invocation& call) {
  if (call.arguments.size() != 3)
    return fail(usage(fmt::format("{} arguments instead of 3", call.arguments.size())));
  const model::QuantizeType* type = model::find_quantize_type(call.arguments[2]);
  if (type == nullptr)
    return fail(usage(fmt::format("{}: no such TYPE", base::escape_for_log(call.arguments[2], 64))));
  hold_ending_signals();          // looked for now and then, so that the temporary file is always removed
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write
  const auto in = gguf::File::open(call.arguments[0]);
  if (!in) return fail(in.error());
  const bool check = call.settings.on("check");
  if (check) {  // a model that cannot run is told before the work, not after
    if (const auto spec = model::read_spec(*in); !spec) return fail(spec.error());
  }
  const base::CpuAllowance cpu = base::cpu_allowance();
  const uint64_t asked = call.settings.number("threads");
  const size_t threads = asked == 0 ? cpu.usable : std::min<uint64_t>(asked, cpu.logical);
  const auto report = quantize_file(call, *in, *type, threads);
  if (!report) return interrupted() ? (fail(report.error()), kInterrupted) : fail(report.error());
  base::Result<Divergence> divergence = Divergence{};
  if (check) {
    const auto out = gguf::File::open(call.arguments[1]);
    if (!out) return fail(out.error());
    divergence = measure_divergence(*in, *out, threads, [] { return !interrupted(); });
    if (!divergence)
      return interrupted() ? (fail(divergence.error()), kInterrupted) : fail(divergence.error());
  }
  const Outcome outcome{call, *report, check ? &*divergence : nullptr};
  call.settings.on("json") ? print_json(outcome) : print_text(outcome);
  return 0;
}

}  // namespace tally::apps
