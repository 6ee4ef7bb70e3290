#pragma once
// One chat or text completion while it lives: its sequences in the engine on one side, its exchange on the
// other.
//
// Life: start() submits every prompt. The engine's notify posts a turn to the answer's lane; each turn takes
// what is in the rings, makes text, and sends. It ends by a complete answer, by a failure, or by the client's
// leaving, in which case it waits until its cancelled sequences have ended. Whatever happens it leaves the
// desk, and gives its seat back, exactly once. Threads: wake() from any; everything else runs on the lane.

#include "engine/engine.h"
#include "serve/desk.h"
#include "serve/openai/requests.h"
#include "serve/openai/shapes.h"
#include "text/detokenizer.h"
#include "text/output.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tally::serve {

// How the text of an answer is taken apart.
struct Reading {
  text::OutputFormat format;
  bool in_thoughts = false;  // the prompt ends inside them
  bool one_call = false;     // the answer ends after its first call
};

// A request made ready for the engine.
struct Order {
  openai::AnswerHead head;
  openai::Options options;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::string> prompt_texts;  // of the prompts, where they are echoed
  Reading reading;
  std::shared_ptr<const sample::Constraint> constraint;  // of options.constraint
  bool prompt_is_text_only_bos = false;                  // a continuation of nothing
  int64_t deadline_us = 0;
};

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(std::shared_ptr<Desk> desk, std::shared_ptr<http::Exchange> exchange, Order order,
         std::unique_ptr<Seat> seat, std::shared_ptr<Workers> workers, Counters& counters);
  ~Answer();

  // Submits; on a refusal answers at once. `fields` go on the answer, whatever it will be. `place` is held
  // until then: CompileWaiter's, if it was one.
  void start(std::vector<http::Field> fields, std::shared_ptr<void> place);
  // There is something new. Any thread; does not block.
  void wake();

 private:
  struct Choice;

  bool submit_all();
  bool submit(size_t prompt_index, const sample::Params& params);
  void add_choice(size_t prompt_index, std::shared_ptr<engine::Stream> stream);
  void refuse(engine::Refused refused, size_t prompt_tokens);
  void turn();
  void take_all(Choice& choice);
  void tell_prompt(Choice& choice);
  void add_token(Choice& choice, const engine::TokenEvent& event);
  void tell(Choice& choice, const std::string& text, bool is_last);
  void tell_event(Choice& choice, text::OutputEvent event);
  void release_logprobs(Choice& choice, bool all);
  void emit(Choice& choice, const openai::Closing* closing);
  void end_choice(Choice& choice);
  size_t copies() const;
  bool has_room() const;
  std::vector<openai::Piece> take_pieces();
  openai::Closing close_account();
  void complete();
  void fail(engine::Finish why);
  void send_error(const ApiError& error);
  void abandon();
  bool all_ended();
  void cancel_all();
  void leave();
  void set_stalled(bool stalled);
  uint64_t computed_tokens() const;
  void pay();

  const std::shared_ptr<Desk> desk_;
  const std::shared_ptr<http::Exchange> exchange_;
  const Order order_;
  std::unique_ptr<Seat> seat_;  // until it leaves
  Counters& counters_;
  const std::shared_ptr<Lane> lane_;
  std::vector<http::Field> fields_;
  std::atomic<bool> turn_posted_{false}, gone_{false};
  std::vector<std::unique_ptr<Choice>> choices_;
  uint64_t answer_bytes_ = 0;  // that the engine keeps for the prompts taken so far
  std::string events_;         // of this turn
  int64_t turn_us_ = 0;
  bool answered_ = false;        // the client has, or will get, all it will ever get
  std::optional<Ended> reason_;  // none: refused at the door
  bool left_ = false, stalled_ = false, no_room_ = false;
};

}  // namespace tally::serve
