// tally explain RUN|URL: where the time went, what bounds it, what would help.
#include "cli.h"
#include "explain_page.h"
#include "interrupt.h"
#include "loading.h"
#include "machine_roofs.h"
#include "terminal.h"

#include <fmt/format.h>

#include <cstdio>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

Result<measure::Explanation> explain(const Invocation& call) {
  if (call.arguments.size() != 1)
    return Error{
        ErrorCode::kUsage,
        fmt::format(
            "explain: {} arguments; one is needed: the directory of a stored run, or the URL of a server",
            call.arguments.size())};
  const std::string& subject = call.arguments[0];
  const bool is_url = subject.starts_with("http://") || subject.starts_with("https://");
  const auto seconds = static_cast<double>(call.settings.number("seconds"));
  if (!is_url && seconds > 0)
    return Error{ErrorCode::kUsage, "--seconds: a stored run is not watched; only a URL is"};
  const measure::RoofsHere roofs_here = [&]() -> std::optional<measure::Roofs> {
    auto roofs = machine_roofs(call.settings);
    if (!roofs) return fmt::print(stderr, "tally: warning: {}\n", roofs.error().message), std::nullopt;
    return std::move(*roofs);
  };
  if (!is_url) return measure::explain_run(subject, roofs_here);
  hold_ending_signals();
  measure::WatchRequest request{subject, client_api_key(), seconds, [] { return !interrupted(); }};
  return measure::explain_server(request, roofs_here);
}

}  // namespace

int run_explain(const Invocation& call) {
  const auto explanation = explain(call);
  if (!explanation) return fail(explanation.error());
  if (call.settings.on("json"))
    write_json(measure::explanation_json(*explanation, call.settings.on("steps")));
  else
    fmt::print("{}", explain_page(*explanation, terminal_size().columns));
  return 0;
}

}  // namespace tally::apps
