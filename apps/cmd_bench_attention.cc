// tally bench attention: the attention forms this CPU can run, in time and memory.
#include "base/utf8.h"
#include "bench_attention.h"
#include "bench_attention_page.h"
#include "bench_bed.h"
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

constexpr std::string_view kAttentionCommand = "bench-attention";

Result<AttentionShape> parse_shape(const std::string& text) {
  const size_t first = text.find('/'),
               second = first == std::string::npos ? first : text.find('/', first + 1);
  if (second != std::string::npos) {
    const auto heads = base::parse_uint(text.substr(0, first));
    const auto kv_heads = base::parse_uint(text.substr(first + 1, second - first - 1));
    const auto dim = base::parse_uint(text.substr(second + 1));
    if (heads && kv_heads && dim && *kv_heads >= 1 && *heads <= 1024 && *heads >= *kv_heads &&
        *heads % *kv_heads == 0 && *dim >= 8 && *dim <= 512 && *dim % 2 == 0) {
      return AttentionShape{static_cast<uint32_t>(*heads), static_cast<uint32_t>(*kv_heads),
                            static_cast<uint32_t>(*dim)};
    }
  }
  return Error{
      ErrorCode::kUsage,
      fmt::format(
          "--shape: '{}' is not allowed; allowed: heads/KV heads/head size separated by commas, heads a "
          "multiple of KV heads and at most 1024, head size even and 8..512",
          base::escape_for_log(text, 64))};
}

Result<AttentionBenchSettings> read_settings(const base::Settings& s) {
  AttentionBenchSettings out;
  TALLY_TRY(out.isas, isa_list(s, kAttentionCommand));
  // Minutes, unless asked for.
  if (s.text("isa").empty() && out.isas.size() > 1) std::erase(out.isas, kernels::Isa::kScalar);
  TALLY_TRY(const std::vector<std::string> codecs, word_list(s, kAttentionCommand, "kv-type"));
  for (const std::string& name : codecs)
    for (const tensor::KvCodecInfo& info : tensor::kKvCodecs)
      if (name == info.name) out.codecs.push_back(info.codec);
  TALLY_TRY(const std::vector<std::string> forms, word_list(s, kAttentionCommand, "form"));
  out.forms.clear();
  for (const std::string& name : forms)
    out.forms.push_back(name == kAttentionForms[0] ? AttentionForm::kPaged : AttentionForm::kStandard);
  TALLY_TRY(out.contexts, number_list(s, kAttentionCommand, "context"));
  for (const std::string& text : s.list("shape")) {
    TALLY_TRY(const AttentionShape shape, parse_shape(text));
    out.shapes.push_back(shape);
  }
  if (out.shapes.empty()) return parse_shape(s.text("shape")).error();
  out.prefill = static_cast<uint32_t>(s.number("prefill"));
  out.repetitions = static_cast<uint32_t>(s.number("repetitions"));
  out.block_tokens = static_cast<uint32_t>(base::parse_uint(s.text("block-tokens")).value_or(64));
  return out;
}

}  // namespace

int run_bench_attention(const Invocation& call) {
  if (!call.arguments.empty()) return fail(no_argument(call.arguments[0]));
  const base::Settings& s = call.settings;
  const auto settings = read_settings(s);
  if (!settings) return fail(settings.error());
  const auto made = BenchBed::make(s);
  if (!made) return fail(made.error());
  BenchBed& bed = **made;
  base::Result<std::vector<AttentionMeasure>> measures = std::vector<AttentionMeasure>{};
  {
    Progress progress("measuring");
    measures = bench_attention(*settings, bed.accounts(), bed.pool(), bed.roofs(),
                               [&](double share, const std::string& now) {
                                 progress.update(share, now);
                                 return !interrupted();
                               });
  }
  if (!measures) return fail(measures.error());
  const AttentionBenchPage page{*settings, *measures, bed.roofs()};
  if (const auto told =
          tell_bench(call, "bench attention", bed.page(page.results()), [&] { page.print_table(); });
      !told)
    return fail(told.error());
  return bed.finish();
}

}  // namespace tally::apps
