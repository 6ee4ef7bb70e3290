#include "measure/eval.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "measure/eval_lanes.h"
#include "measure/eval_probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr double kNoiseTimes = 10;
constexpr std::string_view kReference = "f32";

// One evaluation at work.
class Evaluation {
 public:
  Evaluation(engine::Scorer& scorer, const text::Tokenizer& tokenizer, const EvalText& text,
             const EvalOptions& options, const EvalProgress& go_on)
      : text_(text),
        go_on_(go_on),
        bench_{scorer, tokenizer, options, {}, options.kind != EvalKind::kPpl, [this](size_t tokens) {
                 return tick(tokens);
               }} {
    report_.options = options;
    report_.text_name = text.name;
    report_.text_sha256 = base::hex(base::sha256(text.bytes));
  }

  Result<EvalReport> run() {
    const int64_t begin = base::now_us();
    TALLY_TRY_VOID(read_text());
    TALLY_TRY_VOID(make_lanes());
    plan();
    const auto worked = work();
    if (!worked && report_.is_complete) return worked.error();
    judge();
    report_.seconds = static_cast<double>(base::now_us() - begin) * 1e-6;
    return std::move(report_);
  }

 private:
  static constexpr double kSelfTestTokens = 700;  // of a lane
  static constexpr double kGenerated = 2;         // tokens of a text that take as long as a generated one

  Result<void> work() {
    if (!step("testing itself")) return {};
    TALLY_TRY(report_.self_test, test_itself(bench_, windows_.front()));
    TALLY_TRY_VOID(score_text());
    TALLY_TRY_VOID(measure_layers());
    if (options().kind == EvalKind::kKv) return generate();
    return {};
  }

  const EvalOptions& options() const { return bench_.options; }

  Result<void> read_text() {
    TALLY_TRY(ids_, bench_.tokenizer.encode(text_.bytes, false, false));
    report_.text_tokens = ids_.size();
    if (options().tokens > 0) ids_.resize(std::min<size_t>(ids_.size(), options().tokens));
    windows_ = cut_windows(bench_.tokenizer, ids_, options().context);
    if (windows_.empty() || windows_.front().size() < kTokensMin) {
      return Error{ErrorCode::kBadData,
                   fmt::format("{}: {} tokens to be scored, at least {} are needed",
                               base::escape_for_log(text_.name), ids_.size(), kTokensMin)};
    }
    return {};
  }

  Result<void> make_lanes() {
    const std::vector<std::string>& wanted = options().kv_types;
    std::vector<std::string> names;
    if (bench_.has_reference) names.emplace_back(kReference);
    for (const std::string& name : wanted)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    report_.codecs.resize(names.size());
    const bool generates = options().kind == EvalKind::kKv;
    const uint64_t of_fork = kForkTokens + uint64_t{options().new_tokens};
    engine::LaneRequest request;
    request.sequences = generates ? 1 + kEvalForks : 1;
    request.pool_tokens = options().context + (generates ? kEvalForks * of_fork : 0);
    for (size_t i = 0; i < names.size(); ++i) {
      request.kv_type = names[i];
      const bool is_reference = bench_.has_reference && i == 0;
      request.fault = is_reference ? engine::LaneFault{} : options().candidate_fault;
      TALLY_TRY(auto lane, bench_.scorer.make_lane(request));
      CodecFigures& figures = report_.codecs[i];
      figures.kv_type = names[i], figures.kv_types = lane->kv_types();
      figures.bytes_per_token = lane->bytes_per_token();
      bench_.lanes.push_back({std::move(lane), &figures});
    }
    return {};
  }

  // What there is to do, in tokens of a lane.
  void plan() {
    all_ = kSelfTestTokens;
    for (const auto& window : windows_) all_ += static_cast<double>(window.size());
    if (bench_.has_reference) all_ += kTokensMin;
    if (options().kind != EvalKind::kKv) return;
    all_ += options().prompts * (kGenerated * options().new_tokens);
    ProbeRequest request;
    request.questions = options().questions, request.seed = options().seed;
    request.filler = text_.bytes, request.context = options().context;
    request.bytes_per_token =
        static_cast<double>(text_.bytes.size()) / static_cast<double>(report_.text_tokens);
    for (auto* make : {make_recall, make_needle, make_tracking, make_arithmetic}) {
      probes_.push_back(make(request));
      all_ += cost(probes_.back(), request.bytes_per_token);
    }
  }

  static double cost(const Probe& probe, double bytes_per_token) {
    double tokens = 0;
    for (const Document& d : probe.documents) tokens += static_cast<double>(d.text.size()) / bytes_per_token;
    constexpr double kOfQuestion = 40;
    return tokens + static_cast<double>(probe.items()) * kOfQuestion;
  }

  bool step(const std::string& now) {
    now_ = now;
    return tick(0);
  }

  bool tick(size_t tokens) {
    done_ += static_cast<double>(tokens) / static_cast<double>(bench_.lanes.size());
    report_.is_complete = report_.is_complete && go_on_(std::min(1.0, done_ / all_), now_);
    return report_.is_complete;
  }

  Result<void> score_text() {
    const auto between = [&](size_t done) -> Result<bool> {
      if (done == 1 && options().kind == EvalKind::kKv && report_.is_complete) {
        TALLY_TRY_VOID(measure_decode(bench_, windows_.front()));
      }
      if (done == windows_.size()) return report_.is_complete;
      return step(fmt::format("text, window {} of {}", done + 1, windows_.size()));
    };
    step(fmt::format("text, window 1 of {}", windows_.size()));
    return score_windows(bench_, windows_, between);
  }

  Result<void> measure_layers() {
    if (!bench_.has_reference || !step("attention of each layer")) return {};
    const std::span<const TokenId> tokens = std::span(windows_.front()).first(kTokensMin);
    for (size_t i = 1; i < report_.codecs.size(); ++i) {
      CodecFigures& codec = report_.codecs[i];
      TALLY_TRY(codec.layer_damage, bench_.scorer.layer_damage(codec.kv_type, tokens));
      if (!tick(tokens.size())) return {};
    }
    return {};
  }

  Result<void> generate() {
    if (!step("generated text")) return {};
    TALLY_TRY_VOID(measure_divergence(bench_, ids_));
    for (const Probe& probe : probes_) {
      if (probe.items() == 0) continue;
      if (!step(probe.name)) return {};
      TALLY_TRY_VOID(ask(bench_, probe));
    }
    return {};
  }

  void judge() {
    SelfTest& test = report_.self_test;
    for (const std::string& name : test.not_read_back) {
      report_.invalid_reasons.push_back(fmt::format(
          "{}: logits stay the same when the stored blocks are spoilt: the cache is not read back", name));
    }
    if (report_.has_reference() && report_.codecs.front().text.positions > 0) {
      for (const CodecFigures& codec : report_.codecs) {
        const Interval& mean = codec.text.kld.interval;
        test.noise_limit = std::max(test.noise_limit, kNoiseTimes * (mean.high - mean.low));
      }
      if (test.noise_kld.value <= test.noise_limit) {
        report_.invalid_reasons.push_back(fmt::format(
            "noise of 2 bits in the stored values moves KLD by {:.3g}, more than {:.3g} are needed ({:.0f} "
            "intervals of a codec's mean): a bad codec would not show here",
            test.noise_kld.value, test.noise_limit, kNoiseTimes));
      }
    }
    for (const ProbeFigures& probe : report_.codecs.front().probes) {
      constexpr double kRightMin = 0.2;
      if (static_cast<double>(probe.right) >= kRightMin * static_cast<double>(probe.items)) continue;
      report_.warnings.push_back(
          fmt::format("{}: {} is right on {} of {}: this model cannot do it, only answers the same as its "
                      "own say something",
                      probe.name, report_.codecs.front().kv_type, probe.right, probe.items));
    }
    if (!report_.is_complete) report_.warnings.push_back("interrupted: figures are of what was done");
  }

  const EvalText& text_;
  const EvalProgress& go_on_;
  EvalReport report_;
  EvalBench bench_;  // its lanes point into report_
  std::vector<TokenId> ids_;
  std::vector<std::vector<TokenId>> windows_;
  std::vector<Probe> probes_;
  std::string now_;
  double all_ = 1, done_ = 0;
};

}  // namespace

std::vector<size_t> damaged_layers(std::span<const double> damage) {
  std::vector<size_t> out;
  const double sum = std::accumulate(damage.begin(), damage.end(), 0.0);
  for (size_t layer = 0; layer < damage.size() && damage.size() > 1; ++layer) {
    const double of_others = (sum - damage[layer]) / static_cast<double>(damage.size() - 1);
    if (damage[layer] > kDamageTimes * of_others) out.push_back(layer);
  }
  return out;
}

Result<EvalReport> evaluate(engine::Scorer& scorer, const text::Tokenizer& tokenizer, const EvalText& text,
                            const EvalOptions& options, const EvalProgress& go_on) {
  return Evaluation(scorer, tokenizer, text, options, go_on).run();
}

}  // namespace tally::measure
