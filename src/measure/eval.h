// What a KV codec costs in quality, scored through the stored cache: a reference with f32 KV and the
// candidates read the same text side by side over the same weights.
//
// The trap: a window scored in one pass over an empty cache never reads a stored value, so that every codec
// looks perfect. Here rows come in passes of at most 64, each row attends to encoded blocks alone, only
// positions behind the first pass are scored, and before any figure is believed two faults have to show:
// noise of 2 bits in the stored values of the reference, and spoilt blocks of each candidate.
#pragma once

#include "base/result.h"
#include "engine/score.h"
#include "measure/eval_stats.h"
#include "measure/run.h"
#include "text/tokenizer.h"

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace tally::measure {

enum class EvalKind : uint8_t {
  kPpl,  // perplexity of each codec
  kKld,  // and what it changes against f32 KV
  kKv,   // and in generated text, questions, and the speed of decode
};

// "eval kld", as it is called.
std::string eval_command(EvalKind kind);

struct EvalOptions {
  EvalKind kind = EvalKind::kKv;
  std::vector<std::string> kv_types;       // candidates; of kKld and kKv f32 is measured besides
  uint32_t context = 2048;                 // tokens of a window of the text, and of the longest question
  uint32_t tokens = 0;                     // of the text; 0: all
  uint32_t prompts = 16, new_tokens = 64;  // of the generated text
  uint32_t questions = 32;                 // of each kind
  uint64_t seed = 1;
  engine::LaneFault candidate_fault, self_test_fault{.noise_bits = 2};  // other than this: tests
};

struct EvalText {
  std::string name, bytes;
};

inline constexpr size_t kDepthParts = 4;

// One codec over the text; without a reference only nll and ppl.
struct TextFigures {
  size_t positions = 0;
  Estimate nll, ppl;  // nats a token; exp
  Estimate kld;       // nats, mean
  double kld_p50 = 0, kld_p99 = 0, kld_max = 0;
  std::array<double, kDepthParts> kld_by_depth{};  // mean in each quarter of the window; NaN: nothing scored
  Estimate ppl_ratio;                              // exp of the mean difference of nll
  Estimate same_top;                               // share of positions with the reference's likeliest token
  double probability_rms = 0;                      // of the change of the right token's probability
};

// Greedy text against the reference's.
struct DivergenceFigures {
  std::vector<uint32_t> first;  // by prompt: tokens before the first difference; all of them: none
  uint32_t tokens = 0;
  double median = 0;
  double never_share = 0;
};

// One kind of question.
struct ProbeFigures {
  std::string name;
  size_t items = 0, right = 0;
  size_t same = 0;                           // answers equal to the reference's, right or not
  size_t only_reference = 0, only_this = 0;  // right answers that the other has not
  double p = 1;                              // McNemar
  struct Cell {
    std::string name;
    size_t items = 0, right = 0;
  };
  std::vector<Cell> cells;  // by length and depth, or by number of digits
};

struct CodecFigures {
  std::string kv_type;
  std::vector<std::string> kv_types;  // in effect, by layer
  uint64_t bytes_per_token = 0;
  TextFigures text;
  DivergenceFigures divergence;
  std::vector<ProbeFigures> probes;
  std::vector<double> decode_rates;  // tokens a second of one sequence, by round
  uint32_t decode_depth = 0;
  engine::LaneReads reads;           // of the text
  std::vector<double> layer_damage;  // Scorer::layer_damage of the first window; of candidates, against f32
};

struct SelfTest {
  Estimate noise_kld;
  double noise_limit = 0;  // what it must exceed: 10 times the widest interval of a candidate's mean
  std::vector<std::string> not_read_back;  // candidates whose logits do not depend on what is stored
};

struct EvalReport {
  EvalOptions options;
  std::string text_name, text_sha256;
  size_t text_tokens = 0;            // scored or not
  std::vector<CodecFigures> codecs;  // the reference first, if there is one
  SelfTest self_test;
  std::vector<std::string> invalid_reasons, warnings;
  bool is_complete = true;  // false: stopped
  double seconds = 0;

  bool has_reference() const { return options.kind != EvalKind::kPpl; }
};

// A layer loses so many times what the others lose in the mean: it stands out.
inline constexpr double kDamageTimes = 5;
// The layers that stand out, ascending.
std::vector<size_t> damaged_layers(std::span<const double> damage);

// Share done and what is done now; false stops what is left.
using EvalProgress = std::function<bool(double share, const std::string& now)>;

// Errors: kBadData (a text too short, with what it has and what is needed; values that are not finite),
// kUnavailable (cap).
base::Result<EvalReport> evaluate(engine::Scorer& scorer, const text::Tokenizer& tokenizer,
                                  const EvalText& text, const EvalOptions& options,
                                  const EvalProgress& go_on);

// The object `results` of run.json and of --json.
nlohmann::json eval_json(const EvalReport& report);
// The whole of it as a run to be stored; `model_path` is the file's, `mode` how its weights were used.
Run eval_run(const EvalReport& report, const engine::Scorer& scorer, const std::string& model_path,
             const std::string& mode);
// Bytes per token against KLD as a self-contained SVG, light and dark. Requires: a reference.
std::string eval_svg(const EvalReport& report, const std::string& title);

}  // namespace tally::measure
