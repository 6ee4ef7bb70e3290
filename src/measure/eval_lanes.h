// The lanes of an evaluation: the reference and the candidates, fed alike.
#pragma once

#include "measure/eval.h"

#include <memory>
#include <span>
#include <vector>

namespace tally::measure {

// One of the codecs that are measured.
struct EvalLane {
  std::unique_ptr<engine::Lane> lane;
  CodecFigures* figures = nullptr;
};

// What every part of an evaluation works on. The reference is the first lane, if has_reference.
struct EvalBench {
  engine::Scorer& scorer;
  const text::Tokenizer& tokenizer;
  const EvalOptions& options;
  std::vector<EvalLane> lanes;
  bool has_reference = false;
  std::function<bool(size_t tokens)> tick;  // so many more were fed to a lane; false: stop

  // Appends tokens to a sequence of a lane in passes of at most Lane::kRowsMax rows; logits: of the last.
  // Errors: as Lane::feed; kInternal when stopped.
  base::Result<void> feed(engine::Lane& lane, uint32_t sequence, std::span<const TokenId> ids) const {
    for (size_t begin = 0; begin < ids.size(); begin += engine::Lane::kRowsMax) {
      const size_t count = std::min<size_t>(engine::Lane::kRowsMax, ids.size() - begin);
      const engine::Lane::Rows rows{sequence, ids.subspan(begin, count), false};
      TALLY_TRY_VOID(lane.feed({&rows, 1}));
      if (!tick(count)) return base::Error{base::ErrorCode::kInternal, "the evaluation was stopped"};
    }
    return {};
  }
};

// Of a text: what makes the noise of the self-test show.
inline constexpr size_t kTokensMin = 256;
// Sequences beside sequence 0, which holds a window or a document.
inline constexpr uint32_t kEvalForks = 16;
// Tokens that each of them may add, beside the generated ones.
inline constexpr uint32_t kForkTokens = 128;

// ---- eval_text.cc
// -------------------------------------------------------------------------------------------

// Windows of a text, each at most `context` tokens with its BOS.
std::vector<std::vector<TokenId>> cut_windows(const text::Tokenizer& tokenizer, std::span<const TokenId> ids,
                                              uint32_t context);
// Scores windows over all lanes into their figures, as far as it is not stopped. `between(done)` is called
// after each window and may stop it, too.
base::Result<void> score_windows(EvalBench& bench, std::span<const std::vector<TokenId>> windows,
                                 const std::function<base::Result<bool>(size_t done)>& between);
// Noise in the reference's stored values, over the first window; and each candidate's spoilt blocks.
base::Result<SelfTest> test_itself(EvalBench& bench, std::span<const TokenId> window);

// ---- eval_generate.cc
// ---------------------------------------------------------------------------------------

// Greedy text behind pieces of the windows.
base::Result<void> measure_divergence(EvalBench& bench, std::span<const TokenId> ids);
// Decode of one sequence behind the first tokens of a window, lane after lane in rounds.
base::Result<void> measure_decode(EvalBench& bench, std::span<const TokenId> window);

}  // namespace tally::measure
