// tally run: one prompt, or a chat in the terminal; the answer streams to stdout.
#include "base/signal_stack.h"
#include "cli.h"
#include "loading.h"
#include "terminal_chat.h"

#include <thread>

namespace tally::apps {

int run_run(const Invocation& call) {
  const auto model = model_argument(call.arguments, 2);
  if (!model) return fail(model.error());
  configure_log(call.settings);
  // A plain prompt needs no template, so one that tally cannot read does no harm then.
  auto text = load_text(*model, call.settings.text("chat-template"), !call.settings.on("raw"));
  if (!text) return fail(text.error());
  engine::LoadRequest request = load_request(call.settings, *model, *text);
  if (const auto drafts = check_draft_model(request, text->tokenizer); !drafts) return fail(drafts.error());
  request.settings.max_seqs = 1, request.settings.max_queue = 1;
  base::Accounts accounts(request.settings.memory_bytes);
  base::Result<std::unique_ptr<engine::Engine>> engine = base::Error{};
  {
    Progress progress("loading");
    request.progress = [&](uint64_t done, uint64_t total) {
      progress.update(done, total);
      return true;
    };
    engine = engine::load_engine(request, accounts);
  }
  if (!engine) return fail(engine.error());
  warn_of_small_pages(accounts);
  std::thread loop([&] {
    base::take_signal_stack();
    (void)(*engine)->run();
  });
  TerminalChat chat(call, *text, **engine, accounts);
  const int code = call.arguments.size() > 1 ? chat.answer(call.arguments[1]) : chat.converse();
  (*engine)->stop(0);
  loop.join();
  return code;
}

}  // namespace tally::apps
