// tally eval ppl|kld|kv MODEL: what KV codecs cost in quality.
#include "base/machine.h"
#include "base/utf8.h"
#include "bench_load_settings.h"
#include "cli.h"
#include "eval_page.h"
#include "eval_settings.h"
#include "interrupt.h"
#include "loading.h"
#include "measure/eval.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <cstdio>

namespace tally::apps {
namespace {

using base::Result;
using measure::EvalKind;
using measure::EvalReport;

Result<std::unique_ptr<engine::Scorer>> load_scorer(const EvalPlan& plan, base::Accounts& accounts) {
  engine::ScoreRequest request = plan.score;
  Progress progress("loading");
  request.progress = [&](uint64_t done, uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  return engine::Scorer::load(request, accounts);
}

Result<int> evaluate(const Invocation& call, EvalKind kind) {
  TALLY_TRY(const std::string model, model_argument(call.arguments, 1));
  TALLY_TRY(const EvalPlan plan, eval_plan(call, kind, model));
  TALLY_TRY(const ModelText text, load_text(model, "", false));
  base::Accounts accounts(plan.memory_bytes);
  TALLY_TRY(const auto scorer, load_scorer(plan, accounts));
  Result<EvalReport> report = base::Error{};
  {
    Progress progress("evaluating");
    report = measure::evaluate(*scorer, text.tokenizer, plan.text, plan.options,
                               [&](double share, const std::string& now) {
                                 progress.update(share, now);
                                 return !interrupted();
                               });
  }
  if (!report) return report.error();
  measure::Run run = measure::eval_run(*report, *scorer, model, plan.mode);
  note_call(run, call, measure::eval_command(kind), call.settings.text("label"));
  TALLY_TRY(const std::string saved, measure::store_run(run, call.settings.text("out")));
  if (!plan.svg.empty() && report->is_complete) {
    const std::string title =
        fmt::format("KV codecs on {}, {}", run.head["model"]["path_basename"].get<std::string>(), plan.mode);
    TALLY_TRY_VOID(measure::replace_file(plan.svg, measure::eval_svg(*report, title)));
  }
  const EvalPage page{*report, run, saved, plan.mode};
  call.settings.on("json") ? page.print_json() : page.print_table();
  if (!report->is_complete) return fail({base::ErrorCode::kInternal, "interrupted"}), kInterrupted;
  for (const std::string& reason : report->invalid_reasons)
    fmt::print(stderr, "tally: INVALID: {}\n", reason);
  return report->invalid_reasons.empty() ? 0 : static_cast<int>(base::ErrorCode::kInternal);
}

int run_eval(const Invocation& call, EvalKind kind) {
  hold_ending_signals();
  const auto code = evaluate(call, kind);
  if (code) return *code;
  fail(code.error());
  return interrupted() ? kInterrupted : static_cast<int>(code.error().code);
}

}  // namespace

int run_eval_ppl(const Invocation& call) { return run_eval(call, EvalKind::kPpl); }
int run_eval_kld(const Invocation& call) { return run_eval(call, EvalKind::kKld); }
int run_eval_kv(const Invocation& call) { return run_eval(call, EvalKind::kKv); }

}  // namespace tally::apps
