// Greedy text: where it leaves the reference's, what it answers, and how fast it comes.
#include "base/check.h"
#include "base/clock.h"
#include "measure/eval_lanes.h"
#include "measure/eval_probes.h"
#include "measure/quantile.h"

#include <algorithm>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using engine::Continuation;
using engine::Lane;
using Ids = std::vector<TokenId>;

// What a lane continues each prompt with, kEvalForks of them at a time, each behind what sequence 0 holds.
Result<std::vector<Ids>> continue_all(EvalBench& bench, Lane& lane, std::span<const Ids> prompts,
                                      uint32_t tokens) {
  std::vector<Ids> out;
  for (size_t begin = 0; begin < prompts.size(); begin += kEvalForks) {
    const auto group = prompts.subspan(begin, std::min<size_t>(kEvalForks, prompts.size() - begin));
    std::vector<Continuation> starts;
    for (uint32_t i = 0; i < group.size(); ++i) {
      const Ids& ids = group[i];
      lane.fork(0, i + 1);
      TALLY_TRY_VOID(bench.feed(lane, i + 1, std::span(ids).first(ids.size() - 1)));
      starts.push_back({i + 1, ids.back()});
    }
    TALLY_TRY(std::vector<Ids> answers, engine::continue_greedily(bench.scorer, lane, starts, tokens, {}));
    std::move(answers.begin(), answers.end(), std::back_inserter(out));
    if (!bench.tick(group.size() * tokens)) return Error{ErrorCode::kInternal, "the evaluation was stopped"};
    for (uint32_t i = 0; i < group.size(); ++i) lane.truncate(i + 1, 0);
  }
  return out;
}

struct Answers {
  std::vector<std::string> given;  // by question, over all documents
};

Result<Answers> answer_all(EvalBench& bench, Lane& lane, const Probe& probe) {
  Answers out;
  for (const Document& document : probe.documents) {
    TALLY_TRY(const Ids read, bench.tokenizer.encode(document.text, true, false));
    std::vector<Ids> questions;
    size_t letters = 0;
    for (const Question& q : document.questions) {
      TALLY_TRY(Ids ids, bench.tokenizer.encode(q.text, false, false));
      questions.push_back(std::move(ids));
      letters = std::max(letters, q.answer.size());
    }
    // A token that does not fit is not read: the document ends a little early, for every codec alike.
    const size_t room = bench.options.context - std::min(bench.options.context, kForkTokens);
    lane.truncate(0, 0);
    TALLY_TRY_VOID(bench.feed(lane, 0, std::span(read).first(std::min(read.size(), room))));
    TALLY_TRY(const std::vector<Ids> texts,
              continue_all(bench, lane, questions, static_cast<uint32_t>(letters) + 2));
    for (const Ids& ids : texts) out.given.push_back(first_word(bench.tokenizer.decode(ids, true)));
  }
  lane.truncate(0, 0);
  return out;
}

ProbeFigures count(const Probe& probe, const Answers& reference, const Answers& own) {
  ProbeFigures f;
  f.name = probe.name;
  size_t at = 0;
  for (const Document& document : probe.documents) {
    for (const Question& q : document.questions) {
      const std::string &theirs = reference.given[at], &ours = own.given[at];
      ++at, ++f.items;
      const bool is_right = ours == q.answer, was_right = theirs == q.answer;
      f.right += is_right, f.same += ours == theirs;
      f.only_reference += was_right && !is_right, f.only_this += is_right && !was_right;
      auto cell =
          std::find_if(f.cells.begin(), f.cells.end(), [&](const auto& c) { return c.name == q.cell; });
      if (cell == f.cells.end()) cell = f.cells.insert(cell, {q.cell, 0, 0});
      ++cell->items, cell->right += is_right;
    }
  }
  f.p = mcnemar_p(f.only_reference, f.only_this);
  return f;
}

double seconds_since(int64_t begin_us) { return static_cast<double>(base::now_us() - begin_us) * 1e-6; }

}  // namespace

Result<void> ask(EvalBench& bench, const Probe& probe) {
  Answers reference;
  for (size_t l = 0; l < bench.lanes.size(); ++l) {
    TALLY_TRY(Answers own, answer_all(bench, *bench.lanes[l].lane, probe));
    if (l == 0) reference = own;
    bench.lanes[l].figures->probes.push_back(count(probe, reference, own));
  }
  return {};
}

Result<void> measure_divergence(EvalBench& bench, std::span<const TokenId> ids) {
  constexpr size_t kPromptTokens = 48;
  const EvalOptions& options = bench.options;
  std::vector<Ids> prompts;
  // Pieces of the text, equally far apart.
  const size_t length = std::min(kPromptTokens, ids.size());
  for (size_t i = 0; i < options.prompts; ++i) {
    const size_t begin = (ids.size() - length) * i / std::max<size_t>(options.prompts - 1, 1);
    Ids& prompt = prompts.emplace_back();
    if (bench.tokenizer.adds_bos() && bench.tokenizer.bos()) prompt.push_back(*bench.tokenizer.bos());
    prompt.insert(prompt.end(), ids.begin() + static_cast<ptrdiff_t>(begin),
                  ids.begin() + static_cast<ptrdiff_t>(begin + length));
  }
  std::vector<Ids> reference;
  for (size_t l = 0; l < bench.lanes.size(); ++l) {
    Lane& lane = *bench.lanes[l].lane;
    lane.truncate(0, 0);
    TALLY_TRY(std::vector<Ids> texts, continue_all(bench, lane, prompts, options.new_tokens));
    DivergenceFigures& f = bench.lanes[l].figures->divergence;
    f.tokens = options.new_tokens;
    if (l == 0) reference = texts;
    std::vector<double> first;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto at =
          std::mismatch(texts[i].begin(), texts[i].end(), reference[i].begin()).first - texts[i].begin();
      f.first.push_back(static_cast<uint32_t>(at));
      first.push_back(static_cast<double>(at));
      f.never_share += static_cast<size_t>(at) == texts[i].size() ? 1 : 0;
    }
    if (first.empty()) continue;
    f.median = median_of(first);
    f.never_share /= static_cast<double>(first.size());
  }
  return {};
}

Result<void> measure_decode(EvalBench& bench, std::span<const TokenId> window) {
  constexpr size_t kRounds = 6, kSteps = 8;
  TALLY_CHECK(window.size() > kSteps, "a window of {} tokens", window.size());
  const size_t depth = window.size() - kSteps;
  for (EvalLane& l : bench.lanes) {
    if (l.lane->length(0) < window.size()) {
      l.lane->truncate(0, 0);
      TALLY_TRY_VOID(bench.feed(*l.lane, 0, window));
    }
    l.figures->decode_depth = static_cast<uint32_t>(depth);
  }
  for (size_t round = 0; round <= kRounds; ++round) {  // the first one warms up
    for (EvalLane& l : bench.lanes) {
      l.lane->truncate(0, static_cast<uint32_t>(depth));
      const int64_t begin = base::now_us();
      for (size_t step = 0; step < kSteps; ++step)
        TALLY_TRY_VOID(bench.feed(*l.lane, 0, window.subspan(depth + step, 1)));
      if (round > 0) l.figures->decode_rates.push_back(kSteps / seconds_since(begin));
    }
  }
  return {};
}

}  // namespace tally::measure
