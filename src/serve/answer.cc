#include "serve/answer.h"

#include "base/clock.h"
#include "serve/answer_choice.h"
#include "serve/build_info.h"
#include "serve/refusal.h"

#include <algorithm>

namespace tally::serve {
namespace {

constexpr size_t kPromptTail = 8;  // ids whose last character may be unfinished
// Drawn seeds stay exact in readers whose numbers are doubles.
constexpr uint64_t kDrawnSeedMask = (uint64_t{1} << 53) - 1;

Ended ended_reason(engine::Finish finish) {
  switch (finish) {
    case engine::Finish::kStop:
      return Ended::kStop;
    case engine::Finish::kLength:
      return Ended::kLength;
    case engine::Finish::kCancelled:
      return Ended::kCancel;
    case engine::Finish::kDeadline:
      return Ended::kDeadline;
    case engine::Finish::kShutdown:
      return Ended::kShutdown;
    case engine::Finish::kNonFinite:
    case engine::Finish::kDeadEnd:
    case engine::Finish::kInternal:
      break;
  }
  return Ended::kError;
}

bool is_failure(engine::Finish finish) {
  return finish != engine::Finish::kStop && finish != engine::Finish::kLength;
}

}  // namespace

Answer::Answer(std::shared_ptr<Desk> desk, std::shared_ptr<http::Exchange> exchange, Order order,
               std::unique_ptr<Seat> seat, std::shared_ptr<Workers> workers, Counters& counters)
    : desk_(std::move(desk)),
      exchange_(std::move(exchange)),
      order_(std::move(order)),
      seat_(std::move(seat)),
      counters_(counters),
      lane_(std::make_shared<Lane>(std::move(workers))) {}

Answer::~Answer() = default;

void Answer::start(std::vector<http::Field> fields, std::shared_ptr<void> place) {
  desk_->add(shared_from_this());
  fields_ = std::move(fields);
  if (order_.options.stream) exchange_->promise_stream(fields_);
  exchange_->watch(
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
          self->gone_.store(true);
          self->wake();
        }
      },
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->wake();
      });
  lane_->post([weak = weak_from_this(), place = std::move(place)] {
    if (const auto self = weak.lock(); self && self->submit_all()) self->turn();
  });
}

void Answer::wake() {
  if (turn_posted_.exchange(true)) return;
  lane_->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->turn_posted_.store(false);
    self->turn();
  });
}

bool Answer::submit_all() {
  if (answered_) return false;  // the client has left meanwhile
  const openai::Options& options = order_.options;
  sample::Params params = options.params;
  params.is_seed_drawn = !options.has_seed;
  if (params.is_seed_drawn) params.seed = random_bits() & kDrawnSeedMask;
  // To choose the best among samples, their log-probabilities are needed, asked for or not.
  if (!options.choices.beams && options.choices.best_of > options.choices.n)
    params.logprobs = std::max(params.logprobs, 0);
  for (size_t i = 0; i < order_.prompts.size(); ++i)
    if (!submit(i, params)) return false;
  desk_->choices.observe(options.choices.n);
  if (options.max_tokens > 0) desk_->max_tokens.observe(options.max_tokens);
  return true;
}

bool Answer::submit(size_t prompt_index, const sample::Params& params) {
  const openai::Options& options = order_.options;
  const std::vector<TokenId>& prompt = order_.prompts[prompt_index];
  engine::Request request;
  request.prompt = prompt;
  request.params = params;
  request.constraint = order_.constraint;
  request.max_tokens = options.max_tokens;
  request.prompt_only = options.choices.prompt_only;
  request.prompt_logprobs =
      std::max(options.choices.prompt_logprobs, options.choices.echo ? options.params.logprobs : -1);
  request.choices = options.choices.beams ? options.choices.n : options.choices.best_of;
  if (request.prompt_only) request.choices = 1;  // told as often as asked for
  request.beams = options.choices.beams;
  request.tenant = exchange_->request().tenant;
  request.salt = options.cache_salt;
  request.priority = options.priority;
  request.arrived_us = exchange_->request().arrived_us;
  request.deadline_us = order_.deadline_us;
  request.notify = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  };
  const auto submitted = desk_->backend.engine->submit(std::move(request));
  if (submitted.streams.empty()) return refuse(submitted.refused, prompt.size()), false;
  answer_bytes_ += submitted.answer_bytes;
  for (const auto& stream : submitted.streams) add_choice(prompt_index, stream);
  return true;
}

void Answer::add_choice(size_t prompt_index, std::shared_ptr<engine::Stream> stream) {
  const openai::Options& options = order_.options;
  const std::vector<TokenId>& prompt = order_.prompts[prompt_index];
  text::DetokenizerOptions text_options;
  text_options.stop = options.stop;
  text_options.prompt_is_empty = order_.prompt_is_text_only_bos;
  const Reading& reading = order_.reading;
  text_options.spelled = reading.format.spelled();
  text_options.prompt_tail.assign(prompt.end() - static_cast<ptrdiff_t>(std::min(prompt.size(), kPromptTail)),
                                  prompt.end());
  auto choice = std::make_unique<Choice>(text::Detokenizer(*desk_->backend.tokenizer, text_options));
  if (!reading.format.is_plain()) choice->parser.emplace(reading.format, reading.in_thoughts);
  choice->style = {choices_.size(), options.params.logprobs};
  choice->stream = std::move(stream);
  choice->prompt_index = prompt_index;
  choice->prompt_tokens = static_cast<uint32_t>(prompt.size());
  if (options.choices.echo) choice->offset.add(order_.prompt_texts[prompt_index]);
  const uint32_t room = desk_->backend.engine->info().max_model_len - choice->prompt_tokens;
  choice->tokens_max = options.max_tokens > 0 ? std::min(options.max_tokens, room) : room;
  choices_.push_back(std::move(choice));
}

void Answer::refuse(engine::Refused refused, size_t prompt_tokens) {
  cancel_all();
  // Its own prompts can be what fills the room: then it will not fit later either.
  const uint64_t bytes = answer_bytes_ + refused.needed,
                 most = desk_->backend.engine->info().answer_bytes_max;
  if (refused.why == engine::Refusal::kAnswersFull && bytes > most) {
    refused.why = engine::Refusal::kAnswerTooLarge;
    refused.needed = bytes, refused.available = most;
  }
  const ApiError error =
      refusal(refused, desk_->backend.engine->info(),
              {prompt_tokens, order_.options.max_tokens, order_.options.choices.prompt_only});
  counters_.refused[static_cast<size_t>(error.code)].fetch_add(1);
  answered_ = true;
  send_error(error);
  if (all_ended()) leave();
}

// One turn of the lane.
void Answer::turn() {
  if (left_) return;
  turn_us_ = base::now_us();
  if (gone_.load() && !answered_) abandon();
  if (answered_) {
    if (all_ended()) leave();
    return;
  }
  events_.clear();
  no_room_ = false;
  for (const auto& choice : choices_) {
    if (!choice->ended) take_all(*choice);
    if (choice->ended && !choice->stop_matched && is_failure(choice->stream->finish()))
      return fail(choice->stream->finish());
  }
  set_stalled(no_room_);
  pay();
  const bool done = std::all_of(choices_.begin(), choices_.end(), [](const auto& c) { return c->ended; });
  if (done) return complete();
  if (!events_.empty()) exchange_->send(std::move(events_), false);
  events_.clear();
  if (no_room_ && has_room()) wake();  // the socket took all at once: nobody else will tell
}

bool Answer::has_room() const { return exchange_->unsent_bytes() + events_.size() < http::kUnsentBytesMax; }

// Takes what is in the ring: one event for each step with text. The last step's text waits if that step
// surely ends the sequence, until the engine has said so: then it carries the finish_reason.
void Answer::take_all(Choice& choice) {
  const bool streaming = order_.options.stream;
  while (!choice.stop_matched) {
    if (streaming && !has_room()) {
      no_room_ = true;  // the ring is left alone until the socket has taken some; the engine does not notice
      return;
    }
    engine::TokenEvent event;
    if (!choice.stream->next(event)) break;
    if (streaming && event.time_us != choice.last_token_us && choice.piece.says_something())
      emit(choice, nullptr);
    add_token(choice, event);
  }
  for (engine::TokenEvent dropped; choice.stop_matched && choice.stream->next(dropped);) {
  }
  if (choice.stream->ended()) return end_choice(choice);
  const bool surely_last = choice.last_is_end || choice.tokens >= choice.tokens_max || choice.stop_matched;
  if (streaming && !surely_last && choice.piece.says_something()) emit(choice, nullptr);
}

void Answer::add_token(Choice& choice, const engine::TokenEvent& event) {
  const text::Tokenizer& tokenizer = *desk_->backend.tokenizer;
  if (choice.tokens == 0) tell_prompt(choice);
  ++choice.tokens;
  choice.logprob_sum += event.logprob;
  choice.last_token_us = event.time_us;
  choice.last_is_end = event.is_end;
  if (choice.style.logprobs >= 0) {
    openai::LogprobEntry entry;
    entry.token = tokenizer.bytes_with_special(event.id);
    entry.logprob = event.logprob;
    entry.text_offset = choice.offset.count();
    for (size_t i = 0; i < event.top_count; ++i)
      entry.top.emplace_back(tokenizer.bytes_with_special(event.top[i].id), event.top[i].logprob);
    choice.held.push_back(std::move(entry));
  }
  if (event.is_end) {
    const std::vector<TokenId>& own = order_.options.params.stop_ids;
    const auto eog = tokenizer.eog();
    if (std::find(own.begin(), own.end(), event.id) != own.end() &&
        std::find(eog.begin(), eog.end(), event.id) == eog.end())
      choice.piece.stop_reason = event.id;
    return;
  }
  choice.offset.add(tokenizer.bytes(event.id));
  tell(choice, choice.detokenizer.feed(event.id), false);
  if (choice.parser && choice.parser->in_thoughts()) ++choice.reasoning_tokens;
  if (const auto stop = choice.detokenizer.stopped()) {
    choice.stop_matched = true;
    choice.piece.stop_reason = order_.options.stop[*stop];
    choice.stream->cancel();
  }
}

// Logprobs go with the text of their tokens, so that they do not tell what is held back. `all`: at an end
// without a stop string.
void Answer::release_logprobs(Choice& choice, bool all) {
  const size_t until =
      all ? choice.logprobs_released + choice.held.size() : choice.detokenizer.tokens_shown();
  size_t n = 0;
  for (; n < choice.held.size() && choice.logprobs_released < until; ++n, ++choice.logprobs_released)
    choice.piece.logprobs.push_back(std::move(choice.held[n]));
  choice.held.erase(choice.held.begin(), choice.held.begin() + static_cast<ptrdiff_t>(n));
}

void Answer::emit(Choice& choice, const openai::Closing* closing) {
  release_logprobs(choice, choice.ended && !choice.stop_matched);
  openai::ChunkExtras extras;
  extras.is_first = !choice.first_sent;
  if (order_.options.include_tally) extras.tally = {choice.tokens - choice.tokens_sent, choice.last_token_us};
  openai::ChoiceStyle style = choice.style;
  for (size_t copy = 0; copy < copies(); ++copy) {
    style.index = choice.style.index * copies() + copy;
    extras.closing = copy + 1 == copies() ? closing : nullptr;
    events_ += openai::chunk_event(order_.head, style, choice.piece, extras);
  }
  choice.first_sent = true;
  choice.tokens_sent = choice.tokens;
  choice.piece.clear_said();
}

void Answer::end_choice(Choice& choice) {
  choice.ended = true;
  const engine::Finish finish = choice.stream->finish();
  if (choice.stop_matched && finish == engine::Finish::kCancelled) counters_.sequences_stopped.fetch_add(1);
  if (!choice.stop_matched) {
    if (is_failure(finish)) return;
    if (choice.tokens == 0) tell_prompt(choice);
    tell(choice, choice.detokenizer.finish(), false);
  }
  tell(choice, {}, true);
  const bool length = finish == engine::Finish::kLength && !choice.stop_matched;
  const bool called = choice.calls > 0 && !choice.parser->in_call();
  choice.piece.finish_reason = length ? "length" : called ? "tool_calls" : "stop";
  if (!order_.options.stream) return release_logprobs(choice, !choice.stop_matched);
  const bool last = std::all_of(choices_.begin(), choices_.end(), [](const auto& c) { return c->ended; });
  if (last && !order_.options.include_usage) {
    const openai::Closing closing = close_account();
    emit(choice, &closing);
  } else {
    emit(choice, nullptr);
  }
}

void Answer::complete() {
  answered_ = true;
  if (order_.options.stream) {
    if (order_.options.include_usage) events_ += openai::closing_event(order_.head, close_account());
    events_ += "data: [DONE]\n\n";
    exchange_->send(std::move(events_), true);
  } else {
    http::Response response;
    response.fields = fields_;
    response.fields.push_back({"Cache-Control", "no-store"});
    response.body =
        openai::whole_answer(order_.head, order_.options.params.logprobs, take_pieces(), close_account());
    exchange_->respond(std::move(response));
  }
  size_t longest = 0;
  for (const auto& choice : choices_) longest = std::max(longest, choice->tokens);
  desk_->longest.observe(static_cast<double>(longest));
  const Choice& last = *choices_.back();
  reason_ = last.piece.finish_reason == "tool_calls" ? Ended::kToolCalls
            : last.stop_matched                      ? Ended::kStop
                                                     : ended_reason(last.stream->finish());
  leave();
}

void Answer::fail(engine::Finish why) {
  const ApiError error = failure(why);
  cancel_all();
  answered_ = true;
  reason_ = ended_reason(why);
  send_error(error);
  if (all_ended()) leave();
}

void Answer::send_error(const ApiError& error) {
  http::Response response = error_response(error);
  response.fields.insert(response.fields.end(), fields_.begin(), fields_.end());
  exchange_->fail(std::move(response), error_events(error));
}

void Answer::abandon() {
  answered_ = true;
  reason_ = Ended::kDisconnect;
  cancel_all();
}

// Drains the rings of sequences nobody reads any more.
bool Answer::all_ended() {
  bool all = true;
  for (const auto& choice : choices_) {
    for (engine::TokenEvent dropped; choice->stream->next(dropped);) {
    }
    if (choice->ended) continue;
    choice->ended = choice->stream->ended();
    if (choice->ended && choice->stream->finish() == engine::Finish::kCancelled)
      (choice->stop_matched ? counters_.sequences_stopped : counters_.sequences_aborted).fetch_add(1);
    all = all && choice->ended;
  }
  return all;
}

void Answer::cancel_all() {
  for (const auto& choice : choices_)
    if (!choice->ended) choice->stream->cancel();
}

void Answer::set_stalled(bool stalled) {
  if (std::exchange(stalled_, stalled) != stalled) counters_.stalled_writers.fetch_add(stalled ? 1 : -1);
}

void Answer::leave() {
  if (std::exchange(left_, true)) return;
  set_stalled(false);
  pay();
  if (reason_) counters_.ended[static_cast<size_t>(*reason_)].fetch_add(1);
  seat_.reset();
  desk_->remove(this);
}

}  // namespace tally::serve
