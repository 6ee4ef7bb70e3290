#pragma once
// A conversation in the terminal: prompts in, streamed answers on stdout, receipts on stderr.

#include "base/accounts.h"
#include "cli.h"
#include "engine/engine.h"
#include "loading.h"

#include <condition_variable>
#include <mutex>
#include <string>

namespace tally::apps {

class TerminalChat {
 public:
  // All of them outlive the chat; `engine` runs on another thread.
  TerminalChat(const Invocation& call, const ModelText& text, engine::Engine& engine,
               const base::Accounts& accounts);

  // Streams the answer to `prompt`; it joins the history. Returns an exit code.
  int answer(const std::string& prompt);
  // Prompts from stdin: line by line on a terminal, a pipe is one prompt. Returns an exit code.
  int converse();

 private:
  // Wakes the reading thread when the engine has something new.
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    bool on = false;
    void ring();
    void wait();
  };
  void add(const char* role, const std::string& content);
  base::Result<std::vector<TokenId>> encode(const std::string& prompt) const;
  sample::Params params() const;
  std::string stream(engine::Stream& answer, const std::vector<TokenId>& prompt);

  const base::Settings& settings_;
  const ModelText& text_;
  engine::Engine& engine_;
  const base::Accounts& accounts_;
  const bool raw_;
  text::ValueList messages_;
  Bell bell_;
};

}  // namespace tally::apps
