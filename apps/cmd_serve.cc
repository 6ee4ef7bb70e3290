// tally serve: reads the header and plans, binds, loads while probes are answered, serves until drained.
#include "base/log.h"
#include "cli.h"
#include "loading.h"
#include "server_settings.h"
#include "session.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace tally::apps {

int run_serve(const Invocation& call) {
  const auto model = model_argument(call.arguments, 1);
  if (!model) return fail(model.error());
  configure_log(call.settings);
  block_ending_signals();
  bound_allocator();

  auto text = load_text(*model, call.settings.text("chat-template"), true);
  if (!text) return fail(text.error());
  engine::LoadRequest request = load_request(call.settings, *model, *text);
  if (const auto drafts = check_draft_model(request, text->tokenizer); !drafts) return fail(drafts.error());
  plan_constraints(request, text->tokenizer);
  request.roofs = known_step_roofs(call.settings, request.settings.threads, text->weight_type);
  const auto plan = engine::plan_memory(request);
  if (!plan) return fail(plan.error());
  const auto settings = server_settings(call.settings, *model, std::getenv("TALLY_API_KEY"));
  if (!settings) return fail(settings.error());
  const auto server = serve::Server::bind(*settings);
  if (!server) return fail(server.error());
  fmt::print("listening on http://{}:{}\n", settings->host, (*server)->port());
  std::fflush(stdout);
  base::log_info("plan: {}, of {:.1f} GiB", engine::plan_table(*plan),
                 static_cast<double>(plan->budget_bytes) / 0x1p30);
  return Session(**server, std::move(request), *text).run();
}

}  // namespace tally::apps
