#include "serve/openai/prompt_part.h"

#include "base/check.h"
#include "serve/code_points.h"

#include <algorithm>
#include <string>

namespace tally::serve::openai {

sample::Score PromptPart::score_of(size_t position) const {
  sample::Score score;
  const bool there = stream_->score(static_cast<uint32_t>(position), score);
  TALLY_CHECK(there, "a prompt token without its score", position, ids_.size());
  return score;
}

void PromptPart::fill_scores(EchoPart part, size_t position, LogprobEntry& entry) const {
  const sample::Score score = score_of(position);
  entry.logprob = score.logprob;
  if (part != EchoPart::kTop) return;
  const size_t shown = std::min<size_t>(score.top_count, static_cast<size_t>(wanted_.echoed));
  for (size_t t = 0; t < shown; ++t)
    entry.top.emplace_back(tokenizer_.bytes_with_special(score.top[t].id), score.top[t].logprob);
}

void PromptPart::each_echoed(EchoPart part, const std::function<void(const LogprobEntry&)>& visit) const {
  if (wanted_.echoed < 0) return;
  const bool is_scored = part == EchoPart::kLogprob || part == EchoPart::kTop;
  CodePoints offset;
  bool drops_space = tokenizer_.adds_space_prefix();  // which the text did not have
  for (size_t i = 0; i < ids_.size(); ++i) {
    LogprobEntry entry;
    if (part == EchoPart::kToken || part == EchoPart::kTop)
      entry.token = tokenizer_.bytes_with_special(ids_[i]);
    if (is_scored && i > 0) fill_scores(part, i, entry);
    entry.text_offset = offset.count();
    visit(entry);
    if (part != EchoPart::kOffset) continue;
    std::string_view bytes = tokenizer_.bytes(ids_[i]);
    if (drops_space && !bytes.empty()) {
      drops_space = false;
      if (bytes.front() == ' ') bytes.remove_prefix(1);
    }
    offset.add(bytes);
  }
}

void PromptPart::write_list(Writer& w) const {
  const auto write = [&](TokenId id, float logprob, uint32_t rank) {
    w.key(std::to_string(raw(id))).begin_object().key("logprob").logprob(logprob);
    w.key("rank").value(rank);
    w.key("decoded_token").value(tokenizer_.bytes_with_special(id)).end_object();
  };
  w.begin_array().null();
  for (size_t i = 1; i < ids_.size(); ++i) {
    const sample::Score score = score_of(i);
    w.begin_object();
    write(ids_[i], score.logprob, score.rank);
    const size_t shown = std::min<size_t>(score.top_count, static_cast<size_t>(wanted_.listed));
    for (size_t t = 0; t < shown; ++t)
      if (score.top[t].id != ids_[i])
        write(score.top[t].id, score.top[t].logprob, static_cast<uint32_t>(t + 1));
    w.end_object();
  }
  w.end_array();
}

}  // namespace tally::serve::openai
