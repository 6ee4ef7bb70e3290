#include "terminal_chat.h"

#include "base/clock.h"
#include "text/detokenizer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <random>

namespace tally::apps {
namespace {

using base::Result;

void print_receipt(const engine::Receipt& r, int64_t end_us, const base::Accounts& accounts) {
  const double total = static_cast<double>(end_us - r.arrived_us) * 1e-6;
  const auto rate = [](double n, double s) { return s > 0 ? n / s : 0; };
  fmt::print(stderr, "\nreceipt\n");
  fmt::print(stderr, "  prompt     {:>6} tokens, {} from the prefix cache; {:.1f} ms, {:.1f} tokens/s\n",
             r.prompt_tokens, r.cached_tokens, r.prefill_s * 1e3,
             rate(r.prompt_tokens - r.cached_tokens, r.prefill_s));
  fmt::print(stderr, "  generated  {:>6} tokens, {:.1f} ms, {:.1f} tokens/s\n", r.generated_tokens,
             r.decode_s * 1e3, rate(r.generated_tokens > 0 ? r.generated_tokens - 1 : 0, r.decode_s));
  fmt::print(stderr,
             "  time       total {:.1f} ms = queue {:.1f} + prefill {:.1f} + decode {:.1f} + sample {:.1f} + "
             "stalled {:.1f} + rest {:.1f}\n",
             total * 1e3, r.queue_s * 1e3, r.prefill_s * 1e3, r.decode_s * 1e3, r.sample_s * 1e3,
             r.stalled_s * 1e3,
             (total - r.queue_s - r.prefill_s - r.decode_s - r.sample_s - r.stalled_s) * 1e3);
  fmt::print(stderr, "  first token after {:.1f} ms, seed {}\n",
             static_cast<double>(r.first_token_us - r.arrived_us) * 1e-3, r.seed);
  fmt::print(stderr, "  kv         {} blocks, {:.2f} MiB; weights read {:.1f} MiB in {} steps\n", r.kv_blocks,
             static_cast<double>(r.kv_bytes) / 0x1p20, static_cast<double>(r.weight_bytes_read) / 0x1p20,
             r.steps);
  for (size_t a = 0; a < base::kAccountCount; ++a) {
    const auto account = static_cast<base::Account>(a);
    const base::AccountUse use = accounts.use(account);
    fmt::print(stderr, "  {:<11} {:>9.1f} MiB reserved, {:.1f} planned\n", base::account_name(account),
               static_cast<double>(use.reserved) / 0x1p20, static_cast<double>(use.planned) / 0x1p20);
  }
  const base::ProcessMemory memory = base::process_memory();
  fmt::print(stderr, "  measured    {:>9.1f} MiB anonymous, {:.1f} MiB of it huge pages\n",
             static_cast<double>(memory.rss_anon) / 0x1p20, static_cast<double>(memory.anon_huge) / 0x1p20);
}

}  // namespace

void TerminalChat::Bell::ring() {
  const std::lock_guard lock(mutex);
  on = true;
  rung.notify_one();
}

void TerminalChat::Bell::wait() {
  std::unique_lock lock(mutex);
  rung.wait(lock, [&] { return on; });
  on = false;
}

TerminalChat::TerminalChat(const Invocation& call, const ModelText& text, engine::Engine& engine,
                           const base::Accounts& accounts)
    : settings_(call.settings),
      text_(text),
      engine_(engine),
      accounts_(accounts),
      raw_(call.settings.on("raw") || !text.chat_template) {
  if (!settings_.text("system").empty()) add("system", settings_.text("system"));
}

int TerminalChat::answer(const std::string& prompt) {
  const int64_t arrived = base::now_us();
  add("user", prompt);
  const auto ids = encode(prompt);
  if (!ids) return fail(ids.error());
  engine::Request request;
  request.prompt = *ids;
  request.params = params();
  request.max_tokens = static_cast<uint32_t>(settings_.number("max-tokens"));
  request.arrived_us = arrived;
  request.notify = [this] { bell_.ring(); };
  const engine::Submitted submitted = engine_.submit(std::move(request));
  if (submitted.streams.empty()) {
    return fail({base::ErrorCode::kBadData,
                 fmt::format("the prompt does not fit: {} needed, {} available (tokens, or KV blocks)",
                             submitted.refused.needed, submitted.refused.available)});
  }
  engine::Stream& reply = *submitted.streams.front();
  add("assistant", stream(reply, *ids));
  if (settings_.on("receipt")) print_receipt(reply.receipt(), base::now_us(), accounts_);
  const engine::Finish finish = reply.finish();
  if (finish == engine::Finish::kStop || finish == engine::Finish::kLength) return 0;
  return fail({base::ErrorCode::kInternal,
               "the answer was cut off: the model gave no finite logits, or the engine failed"});
}

std::string TerminalChat::stream(engine::Stream& answer, const std::vector<TokenId>& prompt) {
  text::DetokenizerOptions options;
  options.prompt_tail.assign(prompt.end() - static_cast<std::ptrdiff_t>(std::min<size_t>(4, prompt.size())),
                             prompt.end());
  text::Detokenizer detokenizer(text_.tokenizer, options);
  std::string said;
  const auto show = [&](const std::string& piece) {
    said += piece;
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  while (!answer.ended()) {
    engine::TokenEvent event;
    while (answer.next(event)) {
      if (!event.is_end) show(detokenizer.feed(event.id));
    }
    if (!answer.ended()) bell_.wait();
  }
  show(detokenizer.finish());
  fmt::print("\n");
  std::fflush(stdout);
  return said;
}

int TerminalChat::converse() {
  if (::isatty(STDIN_FILENO) != 1) {
    const std::string prompt((std::istreambuf_iterator<char>(std::cin)), {});
    return prompt.empty() ? fail({base::ErrorCode::kUsage, "PROMPT is missing and stdin is empty"})
                          : answer(prompt);
  }
  for (std::string line;;) {
    fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line)) return 0;
    if (line.empty()) continue;
    if (const int code = answer(line); code != 0) return code;
  }
}

void TerminalChat::add(const char* role, const std::string& content) {
  messages_.push_back(text::ValueObject{{"role", role}, {"content", content}});
}

Result<std::vector<TokenId>> TerminalChat::encode(const std::string& prompt) const {
  if (raw_) return text_.tokenizer.encode(prompt, true, false);
  text::ChatInput input;
  input.messages = messages_;
  input.now_s = base::wall_seconds();
  const auto piece = [&](std::optional<TokenId> id) {
    return id ? std::string(text_.tokenizer.piece(*id)) : "";
  };
  input.bos_token = piece(text_.tokenizer.bos()), input.eos_token = piece(text_.tokenizer.eos());
  TALLY_TRY(const std::vector<text::TextSpan> spans, text_.chat_template->render(input));
  return text_.tokenizer.encode_spans(spans, true);
}

sample::Params TerminalChat::params() const {
  sample::Params p;
  p.temperature = static_cast<float>(settings_.real("temperature"));
  p.top_p = static_cast<float>(settings_.real("top-p"));
  p.top_k = static_cast<int32_t>(settings_.number("top-k"));
  p.seed = settings_.text("seed").empty() ? std::random_device{}() : settings_.number("seed");
  return p;
}

}  // namespace tally::apps
