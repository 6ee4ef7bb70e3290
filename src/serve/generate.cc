#include "serve/generate.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "serve/answer.h"
#include "serve/build_info.h"
#include "serve/refusal.h"

#include <charconv>
#include <cmath>

namespace tally::serve {
namespace {

ApiError cannot_encode(const base::Error& error) {
  return {Code::kInvalidValue, "The prompt cannot be tokenized: " + echo(error.message), "prompt"};
}

// From the server's own limit and the client's x-request-timeout (seconds), which can only shorten it. 0:
// none.
std::optional<ApiError> read_deadline(const Desk& desk, const http::Request& request, int64_t& deadline_us) {
  double limit_s =
      desk.settings.request_timeout_ms > 0 ? desk.settings.request_timeout_ms / 1000.0 : INFINITY;
  if (const std::string* text = request.find("x-request-timeout")) {
    double wanted = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), wanted);
    if (error != std::errc() || end != text->data() + text->size() || !std::isfinite(wanted) || wanted <= 0)
      return ApiError{Code::kInvalidValue, "x-request-timeout must be a number of seconds above 0.",
                      "x-request-timeout"};
    limit_s = std::min(limit_s, wanted);
  }
  constexpr double kYear = 366.0 * 86400;
  deadline_us = limit_s > kYear ? 0 : request.arrived_us + static_cast<int64_t>(limit_s * 1e6);
  return std::nullopt;
}

// Refuses without tokenizing if the queue is known to be full.
std::optional<ApiError> judge_queue(const Desk& desk) {
  if (desk.backend.max_queue == 0 || desk.backend.engine->stats().waiting < desk.backend.max_queue)
    return std::nullopt;
  return refusal({.why = engine::Refusal::kQueueFull}, desk.backend.engine->info(), {});
}

openai::AnswerHead make_head(const Desk& desk, bool chat) {
  return {.chat = chat,
          .id = (chat ? "chatcmpl-" : "cmpl-") + random_hex(16),
          .model = desk.settings.model_name,
          .fingerprint = desk.fingerprint,
          .created = base::wall_seconds()};
}

std::optional<ApiError> begin_ready(const Kitchen& kitchen, const std::shared_ptr<http::Exchange>& exchange,
                                    Order order, std::vector<http::Field> fields) {
  const Desk& desk = *kitchen.desk;
  if (auto error = read_deadline(desk, exchange->request(), order.deadline_us)) return error;
  if (auto error = judge_choices(desk.backend.engine->info(), order.options)) return error;
  for (const auto& prompt : order.prompts)
    if (auto error = judge_length(desk.backend.engine->info(), {prompt.size(), order.options.max_tokens}))
      return error;
  if (exchange->gone()) {
    kitchen.counters.ended[static_cast<size_t>(Ended::kDisconnect)].fetch_add(1);
    return std::nullopt;  // nobody is there to be told
  }
  const auto answer =
      std::make_shared<Answer>(kitchen.desk, exchange, std::move(order), kitchen.workers, kitchen.counters);
  if (answer->start(std::move(fields))) return std::nullopt;
  return ApiError{.code = Code::kRateLimit,
                  .message = "This key has as many sequences running and waiting as it may have.",
                  .retry_after_s = 1,
                  .limit = desk.sequences_per_tenant()};
}

ApiError cannot_compile(const base::Error& error, const std::string& param) {
  if (error.code == base::ErrorCode::kUnavailable)
    return {.code = Code::kOverloaded, .message = param + ": " + error.message + '.', .retry_after_s = 1};
  return {Code::kInvalidSchema, param + ": " + error.message + '.', param};
}

// On a thread of its own kind: seconds there keep no answer from its text.
void compile_and_begin(const Kitchen& kitchen, const std::shared_ptr<http::Exchange>& exchange, Order order,
                       std::vector<http::Field> fields) {
  if (exchange->gone()) {
    kitchen.counters.compiling.fetch_sub(1);
    kitchen.counters.ended[static_cast<size_t>(Ended::kDisconnect)].fetch_add(1);
    return;
  }
  const openai::Constrained& wanted = *order.options.constraint;
  const auto compiled = kitchen.desk->backend.constraints->compile(wanted.spec);
  kitchen.counters.compiling.fetch_sub(1);
  if (!compiled) return kitchen.refuse(exchange, cannot_compile(compiled.error(), wanted.param));
  order.constraint = *compiled;
  const auto error = begin_ready(kitchen, exchange, std::move(order), std::move(fields));
  if (error) kitchen.refuse(exchange, *error);
}

std::optional<ApiError> begin(const Kitchen& kitchen, const std::shared_ptr<http::Exchange>& exchange,
                              Order order, std::vector<http::Field> fields) {
  const Backend& backend = kitchen.desk->backend;
  if (!order.options.constraint) return begin_ready(kitchen, exchange, std::move(order), std::move(fields));
  if (!backend.constraints)
    return ApiError{Code::kNotSupported, "This server does not constrain answers.",
                    order.options.constraint->param};
  order.constraint = backend.constraints->find(order.options.constraint->spec);
  if (order.constraint) return begin_ready(kitchen, exchange, std::move(order), std::move(fields));
  const int64_t before = kitchen.counters.compiling.fetch_add(1);
  if (backend.max_queue > 0 && before >= int64_t{backend.max_queue}) {
    kitchen.counters.compiling.fetch_sub(1);
    return refusal({.why = engine::Refusal::kQueueFull}, backend.engine->info(), {});
  }
  kitchen.compilers->post(
      [kitchen, exchange, order = std::move(order), fields = std::move(fields)]() mutable {
        compile_and_begin(kitchen, exchange, std::move(order), std::move(fields));
      });
  return std::nullopt;
}

// The vocabulary's spelling of a special token, for templates.
std::string spelled(const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.piece(*id)) : std::string();
}

}  // namespace

std::optional<ApiError> judge_model(const Desk& desk, const std::string& model) {
  if (model == desk.settings.model_name) return std::nullopt;
  return ApiError{Code::kModelNotFound, "The model \"" + echo(model) + "\" does not exist.", "model"};
}

std::optional<ApiError> generate_chat(const Kitchen& kitchen, const std::shared_ptr<http::Exchange>& exchange,
                                      std::vector<http::Field> fields) {
  const Desk& desk = *kitchen.desk;
  const text::Tokenizer& tokenizer = *desk.backend.tokenizer;
  openai::ChatRequest request;
  if (auto error = openai::parse_chat(exchange->request().body, tokenizer.vocab_size(), request))
    return error;
  if (auto error = judge_model(desk, request.options.model)) return error;
  if (auto error = judge_queue(desk)) return error;
  if (!desk.backend.chat_template)
    return ApiError{Code::kTemplateError, "This model has no chat template.", "messages"};
  text::ChatInput input;
  input.messages = std::move(request.messages);
  input.add_generation_prompt = request.add_generation_prompt;
  input.bos_token = spelled(tokenizer, tokenizer.bos());
  input.eos_token = spelled(tokenizer, tokenizer.eos());
  input.extra = std::move(request.template_kwargs);
  input.now_s = base::wall_seconds();
  auto spans = desk.backend.chat_template->render(input);
  if (!spans)
    return ApiError{Code::kTemplateError,
                    "The chat template refused: " + base::escape_for_log(spans.error().message), "messages"};
  auto ids = tokenizer.encode_spans(*spans, true);
  if (!ids) return cannot_encode(ids.error());
  if (ids->empty())
    return ApiError{Code::kTemplateError, "The chat template made an empty prompt.", "messages"};
  Order order;
  order.head = make_head(desk, true);
  order.options = std::move(request.options);
  order.prompts.push_back(std::move(*ids));
  return begin(kitchen, exchange, std::move(order), std::move(fields));
}

std::optional<ApiError> generate_completion(const Kitchen& kitchen,
                                            const std::shared_ptr<http::Exchange>& exchange,
                                            std::vector<http::Field> fields) {
  const Desk& desk = *kitchen.desk;
  const text::Tokenizer& tokenizer = *desk.backend.tokenizer;
  openai::CompletionRequest request;
  if (auto error = openai::parse_completion(exchange->request().body, tokenizer.vocab_size(), request))
    return error;
  if (auto error = judge_model(desk, request.options.model)) return error;
  if (auto error = judge_queue(desk)) return error;
  Order order;
  for (openai::Prompt& prompt : request.prompts) {
    if (prompt.is_ids) {
      order.prompts.push_back(std::move(prompt.ids));
      continue;
    }
    if (prompt.text.empty() && !tokenizer.adds_bos())
      return ApiError{Code::kInvalidValue,
                      "An empty prompt needs a tokenizer that adds a first token, and this one does not.",
                      "prompt"};
    if (prompt.text.empty()) {
      order.prompts.push_back({*tokenizer.bos()});
      order.prompt_is_text_only_bos = request.prompts.size() == 1;
      continue;
    }
    auto ids = tokenizer.encode(prompt.text, true, false);
    if (!ids) return cannot_encode(ids.error());
    order.prompts.push_back(std::move(*ids));
  }
  order.head = make_head(desk, false);
  order.options = std::move(request.options);
  return begin(kitchen, exchange, std::move(order), std::move(fields));
}

}  // namespace tally::serve
