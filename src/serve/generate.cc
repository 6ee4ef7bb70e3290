#include "serve/generate.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "serve/answer.h"
#include "serve/build_info.h"
#include "serve/openai/output_constraint.h"
#include "serve/refusal.h"

#include <fmt/format.h>

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
    const auto [end, error] =
        std::from_chars(text->data(), text->data() + text->size(), wanted, std::chars_format::fixed);
    if (error != std::errc() || end != text->data() + text->size() || !std::isfinite(wanted) || wanted <= 0 ||
        request.count("x-request-timeout") != 1)
      return ApiError{Code::kInvalidValue,
                      "x-request-timeout must be given once, as a decimal number of seconds above 0, not \"" +
                          echo(*text) + "\".",
                      "x-request-timeout"};
    limit_s = std::min(limit_s, wanted);
  }
  constexpr double kYear = 366.0 * 86400;
  deadline_us = limit_s > kYear ? 0 : request.arrived_us + static_cast<int64_t>(limit_s * 1e6);
  return std::nullopt;
}

// How many may wait for their constraint besides those who wait in the engine.
size_t compile_room(const Backend& backend) {
  if (backend.max_queue == 0) return SIZE_MAX;
  const uint64_t waiting = backend.engine->stats().waiting;
  return waiting < backend.max_queue ? backend.max_queue - waiting : 0;
}

ApiError queue_full(const Backend& backend) {
  return refusal({.why = engine::Refusal::kQueueFull}, backend.engine->info(), {});
}

// Refuses without tokenizing if the queue, or what the key may use, is known to be full.
std::optional<ApiError> judge_room(const Kitchen& kitchen, const http::Request& request) {
  const Backend& backend = kitchen.desk->backend;
  if (auto error = kitchen.desk->judge(request.tenant)) return error;
  if (static_cast<uint64_t>(kitchen.counters.compiling.load()) >= compile_room(backend))
    return queue_full(backend);
  return std::nullopt;
}

openai::AnswerHead make_head(const Desk& desk, bool chat) {
  return {.chat = chat,
          .id = (chat ? "chatcmpl-" : "cmpl-") + random_hex(16),
          .model = desk.settings.model_name,
          .fingerprint = desk.fingerprint,
          .created = base::wall_seconds()};
}

// A request that has been let in.
struct Admitted {
  std::shared_ptr<http::Exchange> exchange;
  Order order;
  std::unique_ptr<Seat> seat;
  std::vector<http::Field> fields;
  std::shared_ptr<void> compile_place;
};

void start(const Kitchen& kitchen, Admitted request) {
  if (request.exchange->gone()) {
    kitchen.counters.ended[static_cast<size_t>(Ended::kDisconnect)].fetch_add(1);
    return;  // nobody is there to be told
  }
  const auto answer =
      std::make_shared<Answer>(kitchen.desk, std::move(request.exchange), std::move(request.order),
                               std::move(request.seat), kitchen.workers, kitchen.counters);
  answer->start(std::move(request.fields), std::move(request.compile_place));
}

ApiError cannot_compile(const base::Error& error, const std::string& param) {
  if (error.code == base::ErrorCode::kUnavailable)
    return {.code = Code::kOverloaded, .message = param + ": " + error.message + '.', .retry_after_s = 1};
  return {Code::kInvalidSchema, param + ": " + error.message + '.', param};
}

// Keeps its seat while it is compiled, though its deadline may have ended it: the work is there.
class ConstrainedRequest final : public CompileWaiter {
 public:
  ConstrainedRequest(const Kitchen& kitchen, Admitted request)
      : kitchen_(kitchen),
        exchange_(request.exchange),
        deadline_us_(request.order.deadline_us),
        request_(std::move(request)) {}

  const std::string& tenant() const override { return exchange_->request().tenant; }
  int64_t deadline_us() const override { return deadline_us_; }
  bool gone() const override { return exchange_->gone(); }

  void compile() override {
    auto compiled = kitchen_.desk->backend.constraints->compile(wanted().spec);
    if (compiled)
      request_.order.constraint = std::move(*compiled);
    else
      error_ = cannot_compile(compiled.error(), wanted().param);
  }

  void begin(std::shared_ptr<void> place) override {
    request_.compile_place = std::move(place);
    if (!error_) return start(kitchen_, std::move(request_));
    request_.seat.reset();  // before the client is told, who may ask again at once
    kitchen_.refuse(exchange_, *error_);
  }

  void end(Ended why) override {
    http::Response response = error_response(
        failure(why == Ended::kDeadline ? engine::Finish::kDeadline : engine::Finish::kShutdown));
    response.fields.insert(response.fields.end(), request_.fields.begin(), request_.fields.end());
    exchange_->respond(std::move(response));  // which does nothing if the client has left
  }

 private:
  const openai::Constrained& wanted() const { return *request_.order.options.constraint; }

  const Kitchen kitchen_;
  const std::shared_ptr<http::Exchange> exchange_;
  const int64_t deadline_us_;
  Admitted request_;
  std::optional<ApiError> error_;
};

// All that can be told before a constraint is compiled, a seat among what the key may have included; then
// the answer, or first the compilation.
std::optional<ApiError> begin(const Kitchen& kitchen, const std::shared_ptr<http::Exchange>& exchange,
                              Order order, std::vector<http::Field> fields) {
  const Backend& backend = kitchen.desk->backend;
  const engine::Info& info = backend.engine->info();
  const openai::Options& options = order.options;
  if (auto error = read_deadline(*kitchen.desk, exchange->request(), order.deadline_us)) return error;
  if (auto error = judge_choices(info, options)) return error;
  const openai::Choices& choices = options.choices;
  TenantNeeds needs{.sequences = order.prompts.size() * (choices.prompt_only ? 1 : choices.best_of)};
  for (const auto& prompt : order.prompts) {
    if (auto error = judge_length(info, {prompt.size(), options.max_tokens, choices.prompt_only}))
      return error;
    needs.prompt_tokens += prompt.size();
  }
  if (auto error = judge_scores(options, order.head.chat, needs.prompt_tokens)) return error;
  if (options.constraint && !backend.constraints)
    return ApiError{Code::kNotSupported, "This server does not constrain answers.",
                    options.constraint->param};
  if (options.constraint) order.constraint = backend.constraints->find(options.constraint->spec);
  const bool is_ready = !options.constraint || order.constraint;
  auto seat = std::make_unique<Seat>(kitchen.desk, exchange->request().tenant);
  if (auto error = seat->take(needs)) return error;
  Admitted request{exchange, std::move(order), std::move(seat), std::move(fields), nullptr};
  if (is_ready) return start(kitchen, std::move(request)), std::nullopt;
  const auto waiter = std::make_shared<ConstrainedRequest>(kitchen, std::move(request));
  if (!kitchen.compile_queue.push(waiter, compile_room(backend))) return queue_full(backend);
  return std::nullopt;
}

// Tools are never dropped silently: the template has to show them, and the answer has to be read.
std::optional<ApiError> judge_tools(const Desk& desk, const openai::ToolUse& use) {
  if (!use.is_active()) return std::nullopt;
  if (!desk.chat_shape.shows_tools)
    return ApiError{Code::kInvalidValue,
                    "The chat template of this model does not show tools to it: see --chat-template.",
                    "tools"};
  if (desk.output.tools == text::ToolFormat::kNone && !desk.settings.output.tools)
    return ApiError{Code::kInvalidValue,
                    "How this model writes its calls is not known, so they could not be told from text: see "
                    "--tool-format.",
                    "tools"};
  if (use.is_forced() && desk.output.tools == text::ToolFormat::kNone)
    return ApiError{Code::kInvalidValue,
                    "tool_choice asks for a call, and with --tool-format none there are none.",
                    "tool_choice"};
  return std::nullopt;
}

// A forced call is a constraint of the answer.
std::optional<ApiError> force_calls(const openai::ToolUse& use, Order& order) {
  std::optional<openai::Constrained>& constraint = order.options.constraint;
  if (constraint)
    return ApiError{Code::kInvalidValue,
                    "The answer can have one constraint: " + constraint->param + " and tool_choice are two.",
                    "tool_choice"};
  const Reading& reading = order.reading;
  constraint = openai::Constrained{{sample::ConstraintSpec::Kind::kStructuralTag,
                                    openai::call_constraint(use, reading.format, reading.in_thoughts)},
                                   "tool_choice"};
  return std::nullopt;
}

// The vocabulary's spelling of a special token, for templates.
std::string spelled(const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.piece(*id)) : std::string();
}

base::Result<std::vector<text::TextSpan>> render(const Desk& desk, openai::ChatRequest& request) {
  const text::Tokenizer& tokenizer = *desk.backend.tokenizer;
  text::ChatInput input;
  input.messages = std::move(request.messages);
  TALLY_TRY_VOID(text::fit_calls(desk.chat_shape, input.messages));
  if (request.tool_use.is_active()) input.tools = std::move(request.tool_use.shown);
  input.add_generation_prompt = request.add_generation_prompt;
  input.bos_token = spelled(tokenizer, tokenizer.bos());
  input.eos_token = spelled(tokenizer, tokenizer.eos());
  input.extra = std::move(request.template_kwargs);
  input.now_s = base::wall_seconds();
  return desk.backend.chat_template->render(input);
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
  if (auto error = judge_room(kitchen, exchange->request())) return error;
  if (!desk.backend.chat_template)
    return ApiError{Code::kTemplateError, "This model has no chat template.", "messages"};
  if (auto error = judge_tools(desk, request.tool_use)) return error;
  auto spans = render(desk, request);
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
  order.reading.format = request.tool_use.is_active() ? desk.output : desk.output.without_calls();
  order.reading.in_thoughts = text::opens_thoughts(*spans, order.reading.format);
  order.reading.one_call = !request.tool_use.parallel;
  if (auto& constraint = order.options.constraint)
    constraint->spec =
        openai::after_thoughts(constraint->spec, order.reading.format, order.reading.in_thoughts);
  if (request.tool_use.is_forced())
    if (auto error = force_calls(request.tool_use, order)) return error;
  return begin(kitchen, exchange, std::move(order), std::move(fields));
}

namespace {

// The text of a prompt, to be told with each choice. Ids are text once it is known that they fit.
std::optional<ApiError> add_echo(const Desk& desk, const openai::Prompt& prompt,
                                 const openai::Options& options, uint64_t& bytes, Order& order) {
  if (prompt.is_ids) {
    const Length length{prompt.ids.size(), options.max_tokens, options.choices.prompt_only};
    if (auto error = judge_length(desk.backend.engine->info(), length)) return error;
  }
  order.prompt_texts.push_back(prompt.is_ids ? desk.backend.tokenizer->decode(prompt.ids, true)
                                             : prompt.text);
  bytes += order.prompt_texts.back().size() * options.choices.n;
  if (bytes <= openai::kEchoBytesMax) return std::nullopt;
  return ApiError{Code::kInvalidValue,
                  fmt::format("The answer would repeat more than {} bytes of prompts, once for each choice.",
                              openai::kEchoBytesMax),
                  "echo"};
}

}  // namespace

std::optional<ApiError> generate_completion(const Kitchen& kitchen,
                                            const std::shared_ptr<http::Exchange>& exchange,
                                            std::vector<http::Field> fields) {
  const Desk& desk = *kitchen.desk;
  const text::Tokenizer& tokenizer = *desk.backend.tokenizer;
  openai::CompletionRequest request;
  if (auto error = openai::parse_completion(exchange->request().body, tokenizer.vocab_size(), request))
    return error;
  if (auto error = judge_model(desk, request.options.model)) return error;
  if (auto error = judge_room(kitchen, exchange->request())) return error;
  Order order;
  uint64_t echo_bytes = 0;
  for (openai::Prompt& prompt : request.prompts) {
    if (request.options.choices.echo)
      if (auto error = add_echo(desk, prompt, request.options, echo_bytes, order)) return error;
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
