// The figures of an evaluation against known answers, and a whole one on a tiny model: faults that are put
// in have to be found.
#include "measure/eval.h"

#include "gguf/gguf.h"
#include "measure/eval_probes.h"
#include "measure/eval_rows.h"
#include "measure/store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace tally::measure {
namespace {

constexpr const char* kModel = "tests/golden/tiny/tiny-q-q4_0.gguf";

std::vector<float> logits_of(std::initializer_list<double> probabilities, double shift) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p) + shift));
  return out;
}

TEST(EvalRows, DivergenceOfKnownDistributions) {
  const std::vector<float> p = logits_of({.5, .25, .25}, 3), q = logits_of({.25, .5, .25}, -40);
  ReferenceRow row;
  const RowScore own = row.set(p, TokenId{1});
  EXPECT_NEAR(own.nll, std::log(4), 1e-6);
  EXPECT_EQ(own.top, TokenId{0});
  double kld = -1;
  const RowScore other = row.compare(q, TokenId{1}, kld);
  EXPECT_NEAR(kld, .25 * std::log(2), 1e-5);
  EXPECT_NEAR(other.nll, std::log(2), 1e-5);
  EXPECT_EQ(other.top, TokenId{1});
  (void)row.compare(p, TokenId{2}, kld);
  EXPECT_EQ(kld, 0) << "equal bits have no divergence at all";
  EXPECT_EQ(score_row(std::vector<float>{1, 7, 7}, TokenId{0}).top, TokenId{1}) << "of equals the lower id";
  // What a million times smaller is than the rest still counts, and nothing overflows.
  const std::vector<float> wide{80, -80, 0};
  EXPECT_NEAR(score_row(wide, TokenId{1}).nll, 160, 1e-9);
}

TEST(EvalRows, SmallDivergencesAreExact) {
  // KL of N logits moved by e: half the variance of the move under p, to second order.
  std::vector<float> p, q;
  double mean = 0, square = 0, sum = 0;
  for (int i = 0; i < 5000; ++i) {
    const double move = (i % 7 - 3) * 1e-3, logit = (i * 37 % 101) / 20.;
    p.push_back(static_cast<float>(logit)), q.push_back(static_cast<float>(logit + move));
    const double weight = std::exp(logit);
    sum += weight, mean += weight * move, square += weight * move * move;
  }
  ReferenceRow row;
  (void)row.set(p, TokenId{0});
  double kld = 0;
  (void)row.compare(q, TokenId{0}, kld);
  const double expected = (square / sum - mean / sum * mean / sum) / 2;
  EXPECT_NEAR(kld, expected, 0.02 * expected);
}

TEST(EvalStats, BlocksAndMcNemar) {
  const std::vector<double> constant(2000, 2.5);
  const Estimate same = block_mean(constant, 512, 1);
  EXPECT_EQ(same.value, 2.5);
  EXPECT_EQ(same.interval.low, 2.5);
  EXPECT_EQ(same.interval.high, 2.5);
  const std::vector<double> few{0, 1, 0, 1, 1, 0, 1, 0};
  EXPECT_EQ(block_mean(few, 512, 1).value, 0.5);
  EXPECT_GT(block_mean(few, 512, 1).interval.high, 0.7)
      << "a short text is cut smaller, not taken for certain";

  // Values that repeat inside a block are as good as one a block: the interval must not shrink with them.
  std::vector<double> repeated;
  for (int block = 0; block < 64; ++block) repeated.insert(repeated.end(), 100, block % 2);
  const Estimate e = block_mean(repeated, 100, 1), naive = block_mean(repeated, 1, 1);
  EXPECT_NEAR(e.value, 0.5, 1e-12);
  const double half = (e.interval.high - e.interval.low) / 2;
  EXPECT_NEAR(half, 1.96 * .5 / 8, 0.015);
  EXPECT_LT((naive.interval.high - naive.interval.low) / 2, half / 5);
  EXPECT_EQ(block_mean(repeated, 100, 1).interval.low, e.interval.low) << "the seed decides";

  EXPECT_EQ(mcnemar_p(0, 0), 1);
  EXPECT_NEAR(mcnemar_p(5, 0), 2. / 32, 1e-12);
  EXPECT_NEAR(mcnemar_p(3, 7), 2 * (1 + 10 + 45 + 120) / 1024., 1e-12);
  EXPECT_EQ(mcnemar_p(4, 4), 1);
}

// A long text of sentences.
std::string filler() {
  std::string out;
  for (int i = 0; i < 400; ++i) out += "The " + std::to_string(i) + "th sentence of a text that goes on. ";
  return out;
}

TEST(EvalProbes, QuestionsHaveTheirAnswers) {
  const std::string prose = filler();
  ProbeRequest request;
  request.questions = 24, request.filler = prose, request.context = 1024;
  const Probe recall = make_recall(request);
  EXPECT_EQ(recall.items(), 24u);
  ASSERT_EQ(recall.documents.size(), 3u);
  std::set<std::string> cells;
  for (const Document& d : recall.documents) {
    for (const Question& q : d.questions) {
      const std::string line = q.text + ' ' + q.answer + ".\n";
      EXPECT_NE(d.text.find(line), std::string::npos) << line;
      EXPECT_EQ(d.text.find(q.text), d.text.rfind(q.text)) << "a key stands there once";
      cells.insert(q.cell);
    }
  }
  EXPECT_EQ(cells.size(), 8u) << "two lengths, four depths";

  const Probe needle = make_needle(request), sums = make_arithmetic(request), chains = make_tracking(request);
  for (const Document& d : needle.documents)
    EXPECT_NE(d.text.find(d.questions[0].text + ' ' + d.questions[0].answer + '.'), std::string::npos);

  for (const Question& q : sums.documents[0].questions) {
    uint64_t a = 0, b = 0;
    char plus = 0, equals = 0;
    std::istringstream(q.text) >> a >> plus >> b >> equals;
    EXPECT_EQ(std::to_string(a + b), q.answer) << q.text;
  }
  for (const Question& q : chains.documents[0].questions) {
    std::map<std::string, std::string> value;
    std::istringstream in(q.text);
    std::string name, word, of;
    while (in >> name && name != "value") {
      in >> word >> of;
      value[name] = value.contains(of) ? value[of] : of;
    }
    in >> word >> name;
    EXPECT_EQ(value[name], q.answer) << q.text;
  }
  request.seed = 2;
  EXPECT_NE(make_recall(request).documents[0].text, recall.documents[0].text);
  EXPECT_EQ(first_word(" 407."), "407");
  EXPECT_EQ(first_word(" .,"), "");
}

class Eval : public ::testing::Test {
 protected:
  void SetUp() override {
    engine::ScoreRequest request;
    request.model_path = kModel;
    request.context = 512;
    request.threads = 2;
    scorer = engine::Scorer::load(request, accounts).value();
    tokenizer.emplace(text::Tokenizer::load(gguf::File::open(kModel).value()).value());
    options.kind = EvalKind::kKld;
    options.kv_types = {"int8", "bf16"};
    options.context = 512, options.tokens = 1200;
    options.prompts = 3, options.new_tokens = 16, options.questions = 8;
  }

  base::Result<EvalReport> evaluate_text() {
    return evaluate(*scorer, *tokenizer, text, options, [](double, const std::string&) { return true; });
  }

  base::Accounts accounts{uint64_t{1} << 30};
  std::unique_ptr<engine::Scorer> scorer;
  std::optional<text::Tokenizer> tokenizer;
  EvalText text{"filler", filler()};
  EvalOptions options;
};

TEST_F(Eval, CodecsComeInTheirOrder) {
  const EvalReport report = evaluate_text().value();
  EXPECT_TRUE(report.invalid_reasons.empty()) << report.invalid_reasons.front();
  ASSERT_EQ(report.codecs.size(), 3u);
  const CodecFigures &f32 = report.codecs[0], &int8 = report.codecs[1], &bf16 = report.codecs[2];
  EXPECT_EQ(f32.kv_type, "f32");
  EXPECT_EQ(f32.text.kld_max, 0);
  EXPECT_EQ(f32.text.same_top.value, 1);
  EXPECT_EQ(f32.text.ppl_ratio.value, 1);
  EXPECT_GT(bf16.text.kld.value, 0);
  EXPECT_GT(int8.text.kld.value, bf16.text.kld.value);
  EXPECT_LT(int8.text.kld.value, report.self_test.noise_kld.value / 20);
  EXPECT_LE(int8.text.kld_p50, int8.text.kld_p99);
  EXPECT_GT(int8.text.ppl.value, 1);
  // Windows of 512 of 1,200 tokens; behind the first 64 of each, all but the last predict one.
  EXPECT_EQ(f32.text.positions, int8.text.positions);
  EXPECT_NEAR(static_cast<double>(f32.text.positions), 1200 - 3 * 65, 4);
  EXPECT_GT(f32.reads.earlier_positions * 10, f32.reads.positions * 8);
  EXPECT_EQ(f32.reads.positions, int8.reads.positions);
  EXPECT_GT(f32.reads.bytes, 2 * int8.reads.bytes);
}

TEST_F(Eval, EveryLayersLossIsItsOwn) {
  const EvalReport report = evaluate_text().value();
  const std::vector<double>&int8 = report.codecs[1].layer_damage, &bf16 = report.codecs[2].layer_damage;
  EXPECT_TRUE(report.codecs[0].layer_damage.empty()) << "f32 is what the others are compared with";
  ASSERT_EQ(int8.size(), report.codecs[1].kv_types.size());
  ASSERT_EQ(bf16.size(), int8.size());
  for (size_t layer = 0; layer < int8.size(); ++layer) {
    EXPECT_GT(bf16[layer], 0) << layer;
    EXPECT_GT(int8[layer], bf16[layer]) << layer;
    EXPECT_LT(int8[layer], 0.03) << layer;
  }
  const nlohmann::json codecs = eval_json(report)["codecs"];
  EXPECT_FALSE(codecs[0].contains("damage_by_layer"));
  EXPECT_EQ(codecs[1]["damage_by_layer"].get<std::vector<double>>(), int8);
  EXPECT_EQ(codecs[1]["damaged_layers"].size(), damaged_layers(int8).size());
}

TEST(EvalLayers, ThoseThatStandOutAreNamed) {
  using Layers = std::vector<size_t>;
  EXPECT_EQ(damaged_layers(std::vector<double>{.01, .01, .06, .01}), Layers{2});
  EXPECT_EQ(damaged_layers(std::vector<double>{.01, .01, .05, .01}), Layers{}) << "5 times is not above it";
  EXPECT_EQ(damaged_layers(std::vector<double>{.6, .1}), Layers{0}) << "a mean with itself would hide it";
  EXPECT_EQ(damaged_layers(std::vector<double>{.01, .6, .01, .01, .01, .01, .01, .01, .01, .01, .01, .9}),
            (Layers{1, 11}));
  EXPECT_EQ(damaged_layers(std::vector<double>{.5}), Layers{});
  EXPECT_EQ(damaged_layers(std::vector<double>{0, 0, 0}), Layers{});
  EXPECT_EQ(damaged_layers(std::vector<double>{}), Layers{});
}

TEST_F(Eval, ACodecThatIsNeverReadBackIsFound) {
  options.candidate_fault.is_never_read_back = true;
  const EvalReport report = evaluate_text().value();
  EXPECT_EQ(report.codecs[1].text.kld_max, 0) << "which looks perfect";
  ASSERT_EQ(report.invalid_reasons.size(), 2u);
  EXPECT_NE(report.invalid_reasons[0].find("int8"), std::string::npos);
  EXPECT_NE(report.invalid_reasons[1].find("bf16"), std::string::npos);
}

TEST_F(Eval, AHarnessThatSeesNoNoiseIsInvalid) {
  options.kv_types = {"bf16"};
  options.self_test_fault.is_never_read_back = true;  // the noise goes where nobody reads
  const EvalReport blind = evaluate_text().value();
  EXPECT_EQ(blind.self_test.noise_kld.value, 0);
  ASSERT_EQ(blind.invalid_reasons.size(), 1u);
  EXPECT_NE(blind.invalid_reasons[0].find("noise"), std::string::npos);
}

TEST_F(Eval, EverythingOfOneModel) {
  options.kind = EvalKind::kKv;
  const EvalReport report = evaluate_text().value();
  for (const CodecFigures& codec : report.codecs) {
    EXPECT_EQ(codec.divergence.first.size(), 3u);
    ASSERT_EQ(codec.probes.size(), 4u);
    EXPECT_EQ(codec.probes[0].items, 8u);
    EXPECT_FALSE(codec.decode_rates.empty());
    EXPECT_EQ(codec.decode_depth, 504u);
  }
  EXPECT_EQ(report.codecs[0].divergence.never_share, 1);
  EXPECT_EQ(report.codecs[0].probes[0].same, 8u);

  const auto directory = std::filesystem::path(::testing::TempDir()) / "tally-eval-runs";
  const std::string path =
      store_run(eval_run(report, *scorer, kModel, "as-served"), directory.string()).value();
  const nlohmann::json head = load_head(path).value();
  EXPECT_EQ(head["results"]["codecs"].size(), 3u);
  EXPECT_EQ(head["model"]["path_basename"], "tiny-q-q4_0.gguf");
  EXPECT_EQ(head["results"]["codecs"][1]["text"]["kld_mean"]["value"], report.codecs[1].text.kld.value);
  std::filesystem::remove_all(directory);

  const std::string svg = eval_svg(report, "a < b & c");
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  for (const char* label : {">f32  0<", ">int8  ", ">bf16  ", "nats per token", "bytes"})
    EXPECT_NE(svg.find(label), std::string::npos) << label;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST_F(Eval, PerplexityAloneHasNoReference) {
  options.kind = EvalKind::kPpl;
  options.kv_types = {"int8"};
  const EvalReport ppl = evaluate_text().value();
  options.kind = EvalKind::kKld;
  const EvalReport kld = evaluate_text().value();
  ASSERT_EQ(ppl.codecs.size(), 1u);
  EXPECT_EQ(ppl.codecs[0].text.nll.value, kld.codecs[1].text.nll.value) << "the same path";
}

TEST_F(Eval, StopsAndRefuses) {
  const auto stopped = evaluate(*scorer, *tokenizer, text, options, [](double share, const std::string& now) {
    EXPECT_LE(share, 1);
    return !now.starts_with("text, window 2");
  });
  ASSERT_TRUE(stopped);
  EXPECT_FALSE(stopped->is_complete);
  EXPECT_GT(stopped->codecs[0].text.positions, 0u);
  EXPECT_LT(stopped->codecs[0].text.positions, 512u);
  EXPECT_FALSE(evaluate(*scorer, *tokenizer, text, options, [](double, const std::string&) { return false; })
                   .value()
                   .is_complete);
  text.bytes = "too short";
  const auto refused = evaluate_text();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::ErrorCode::kBadData);
  EXPECT_NE(refused.error().message.find("filler"), std::string::npos);
}

}  // namespace
}  // namespace tally::measure
