#include "serve/openai/logprobs.h"

#include "base/utf8.h"
#include "serve/openai/prompt_part.h"

#include <algorithm>
#include <functional>

namespace tally::serve::openai {
namespace {

void write_bytes(Writer& w, const std::string& bytes) {
  w.key("bytes").begin_array();
  for (char c : bytes) w.value(static_cast<unsigned>(static_cast<unsigned char>(c)));
  w.end_array();
}

// The top k and the token itself; two ids with equal text: the larger value stays, so entries are merged
// before they are written.
void write_top_dictionary(Writer& w, const LogprobEntry& entry) {
  if (!entry.logprob) return void(w.null());
  std::vector<std::pair<std::string, float>> merged;
  const auto add = [&merged](const std::string& token, float logprob) {
    const std::string text = base::utf8_replace_invalid(token);
    for (auto& [known, value] : merged)
      if (known == text) return void(value = std::max(value, logprob));
    merged.emplace_back(text, logprob);
  };
  for (const auto& [token, logprob] : entry.top) add(token, logprob);
  add(entry.token, *entry.logprob);
  w.begin_object();
  for (const auto& [text, logprob] : merged) w.key(text).logprob(logprob);
  w.end_object();
}

}  // namespace

void write_chat_logprobs(Writer& w, const std::vector<LogprobEntry>& entries) {
  w.begin_object().key("content").begin_array();
  for (const LogprobEntry& entry : entries) {
    w.begin_object().key("token").value(entry.token).key("logprob").logprob(*entry.logprob);
    write_bytes(w, entry.token);
    w.key("top_logprobs").begin_array();
    for (const auto& [token, logprob] : entry.top) {
      w.begin_object().key("token").value(token).key("logprob").logprob(logprob);
      write_bytes(w, token);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().key("refusal").null().end_object();
}

void write_completion_logprobs(Writer& w, const PromptPart* prompt,
                               const std::vector<LogprobEntry>& entries) {
  const auto list = [&](const char* name, EchoPart part,
                        const std::function<void(const LogprobEntry&)>& write) {
    w.key(name).begin_array();
    if (prompt) prompt->each_echoed(part, write);
    for (const LogprobEntry& entry : entries) write(entry);
    w.end_array();
  };
  w.begin_object();
  list("tokens", EchoPart::kToken, [&](const LogprobEntry& e) { w.value(e.token); });
  list("token_logprobs", EchoPart::kLogprob,
       [&](const LogprobEntry& e) { e.logprob ? w.logprob(*e.logprob) : w.null(); });
  list("top_logprobs", EchoPart::kTop, [&](const LogprobEntry& e) { write_top_dictionary(w, e); });
  list("text_offset", EchoPart::kOffset, [&](const LogprobEntry& e) { w.value(e.text_offset); });
  w.end_object();
}

}  // namespace tally::serve::openai
