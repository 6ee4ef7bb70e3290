// Beam search against a second one, written from its description with sequences as plain lists.
#include "sample/beam.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tally::sample {
namespace {

constexpr int kVocab = 7;
constexpr int kEnd = 0;

// Logits after a sequence: random, by its length and its last two tokens.

std::vector<float> logits_after(const std::vector<int>& sequence, uint32_t seed) {
  std::seed_seq mixed{seed, sequence.empty() ? 99u : static_cast<uint32_t>(sequence.back()),
                      static_cast<uint32_t>(sequence.size()),
                      sequence.size() < 2 ? 98u : static_cast<uint32_t>(sequence[sequence.size() - 2])};
  std::mt19937 rng(mixed);
  std::uniform_real_distribution<float> uniform(-3, 3);
  std::vector<float> logits(kVocab);
  for (float& l : logits) l = uniform(rng);
  return logits;
}

std::vector<double> log_softmax(const std::vector<float>& logits) {
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  std::vector<double> out;
  for (const float l : logits) out.push_back(static_cast<double>(l) - std::log(sum));
  return out;
}

struct Found {
  std::vector<int> tokens;
  double cumulative = 0, score = 0;
};

// The best tokens after a sequence, whether they may come or not.
constexpr size_t kTold = 3;
std::vector<int> best_after(const std::vector<int>& sequence, uint32_t seed) {
  const std::vector<float> logits = logits_after(sequence, seed);
  std::vector<int> ids(kVocab);
  for (int id = 0; id < kVocab; ++id) ids[static_cast<size_t>(id)] = id;
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ids.resize(kTold);
  return ids;
}

struct Case {
  uint32_t width, tokens_max, seed;
  float penalty;
  EarlyStop stop;
};

double score_of(const Case& c, double cumulative, size_t length) {
  return cumulative / std::pow(static_cast<double>(length), static_cast<double>(c.penalty));
}

void keep_best(std::vector<Found>& done, const Case& c) {
  std::stable_sort(done.begin(), done.end(),
                   [](const Found& a, const Found& b) { return a.score > b.score; });
  if (done.size() > c.width) done.resize(c.width);
}

bool is_over(const std::vector<Found>& live, const std::vector<Found>& done, const Case& c) {
  if (done.size() < c.width) return false;
  if (c.stop == EarlyStop::kWidth) return true;
  const bool longest = c.stop == EarlyStop::kLongest && c.penalty > 0;
  const size_t length = longest ? c.tokens_max : live[0].tokens.size();
  return score_of(c, live[0].cumulative, length) <= done.back().score;
}

std::vector<Found> reference(const Case& c) {
  std::vector<Found> live(1), done;
  while (true) {
    std::vector<Found> all;
    for (const Found& beam : live) {
      const std::vector<double> next = log_softmax(logits_after(beam.tokens, c.seed));
      for (int t = 0; t < kVocab; ++t) {
        all.push_back(beam);
        all.back().tokens.push_back(t);
        all.back().cumulative += static_cast<double>(static_cast<float>(next[static_cast<size_t>(t)]));
      }
    }
    // In the order of beams and tokens already: a stable sort breaks ties as asked.
    std::stable_sort(all.begin(), all.end(),
                     [](const Found& a, const Found& b) { return a.cumulative > b.cumulative; });
    live.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      Found f = all[i];
      f.score = score_of(c, f.cumulative, f.tokens.size());
      const bool ends = f.tokens.back() == kEnd;
      if (ends && i < 2 * c.width) done.push_back(f);
      if (!ends && live.size() < c.width) live.push_back(f);
    }
    keep_best(done, c);
    if (live[0].tokens.size() == c.tokens_max) {
      done.insert(done.end(), live.begin(), live.end());
      keep_best(done, c);
      return done;
    }
    if (is_over(live, done, c)) return done;
  }
}

// The pool, fed as the engine feeds it: rows by rank, each the best tokens of a row of logits.
std::vector<Found> searched(const Case& c) {
  const size_t row_tokens = beam_tokens_of_row(c.width, 1);
  BeamPool pool({c.width, c.penalty, c.stop, c.tokens_max, row_tokens, kTold});
  Scratch scratch(kVocab);
  const Params params;
  const TokenId end{kEnd};
  std::vector<std::vector<int>> beams(1);
  for (bool going = true; going;) {
    std::vector<std::vector<BeamToken>> tokens(beams.size(), std::vector<BeamToken>(row_tokens));
    std::vector<std::vector<TokenLogprob>> best(beams.size(), std::vector<TokenLogprob>(kTold));
    std::vector<BeamRow> rows(beams.size());
    for (size_t r = 0; r < beams.size(); ++r) {
      std::vector<float> logits = logits_after(beams[r], c.seed);
      EXPECT_TRUE(
          read_beam_row(logits, params, {{}, {}, {&end, 1}, {}, 0}, {tokens[r], best[r]}, scratch, rows[r]));
    }
    going = pool.advance(rows);
    std::vector<std::vector<int>> next;
    for (const BeamPool::Live& live : pool.live()) {
      next.push_back(beams[live.parent]);
      next.back().push_back(raw(live.token.id));
    }
    beams = next;
  }
  std::vector<Found> out;
  for (const BeamPool::Hypothesis& h : pool.best()) {
    Found found{{}, h.cumulative, h.score};
    for (const BeamPool::Step& step : pool.way(h)) {
      std::vector<int> told;
      for (const TokenLogprob& one : step.best) told.push_back(raw(one.id));
      EXPECT_EQ(told, best_after(found.tokens, c.seed)) << "seed " << c.seed;
      if (step.best[0].id == step.token.id) {
        EXPECT_EQ(step.best[0].logprob, step.token.logprob);
      }
      found.tokens.push_back(raw(step.token.id));
    }
    out.push_back(found);
  }
  return out;
}

TEST(Beam, EqualsAnIndependentSearch) {
  size_t cut_short = 0;
  for (const EarlyStop stop : {EarlyStop::kPresent, EarlyStop::kWidth, EarlyStop::kLongest}) {
    for (const float penalty : {1.f, 0.f, 2.f, -1.f}) {
      for (uint32_t seed = 0; seed < 60; ++seed) {
        const Case c{1 + seed % 4, 1 + seed % 9, seed, penalty, stop};
        const std::vector<Found> wanted = reference(c), got = searched(c);
        ASSERT_EQ(got.size(), wanted.size()) << seed;
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].tokens, wanted[i].tokens) << "seed " << seed << " rank " << i;
          EXPECT_NEAR(got[i].score, wanted[i].score, 1e-5);
          cut_short += got[i].tokens.size() < c.tokens_max ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(cut_short, 100u);  // end tokens took part
}

TEST(Beam, MaskedTokensTakeNoPart) {
  Scratch scratch(kVocab);
  Params params;
  params.min_tokens = 3;
  const TokenId end{2}, suppressed{1};
  std::vector<float> logits{0, 9, 8, 7, 6, 5, 4};
  std::vector<BeamToken> tokens(kVocab);
  std::vector<TokenLogprob> told(2);
  BeamRow row;
  ASSERT_TRUE(
      read_beam_row(logits, params, {{}, {}, {&end, 1}, {&suppressed, 1}, 0}, {tokens, told}, scratch, row));
  ASSERT_EQ(row.tokens.size(), 5u);
  EXPECT_EQ(row.tokens[0].id, TokenId{3});
  EXPECT_FALSE(row.tokens[0].is_end);
  // Of the raw row: the masked ones keep their share, and are told.
  EXPECT_NEAR(row.tokens[0].logprob,
              7 - std::log(std::exp(0.) + std::exp(9.) + std::exp(8.) + std::exp(7.) + std::exp(6.) +
                           std::exp(5.) + std::exp(4.)),
              1e-5);
  ASSERT_EQ(row.best.size(), 2u);
  EXPECT_EQ(row.best[0].id, suppressed);
  EXPECT_NEAR(row.best[0].logprob - row.tokens[0].logprob, 2, 1e-5);
}

TEST(Beam, RowThatIsNoNumberIsToldApart) {
  Scratch scratch(kVocab);
  std::vector<float> logits(kVocab, 1.f);
  logits[3] = NAN;
  std::vector<BeamToken> tokens(4);
  BeamRow row;
  EXPECT_FALSE(read_beam_row(logits, {}, {}, {tokens, {}}, scratch, row));
  EXPECT_TRUE(row.tokens.empty());
}

// Nothing can go on: every token but the end is masked.
TEST(Beam, OverWhenNothingGoesOn) {
  BeamPool pool({2, 1, EarlyStop::kPresent, 8, 4, 0});
  const BeamToken end{TokenId{0}, -0.1f, true};
  const BeamRow row{{&end, 1}, {}};
  EXPECT_FALSE(pool.advance({&row, 1}));
  ASSERT_EQ(pool.best().size(), 1u);
  EXPECT_TRUE(pool.best()[0].ended);
  EXPECT_EQ(pool.way(pool.best()[0]).size(), 1u);
}

// What is promised for a search holds what it comes to.
TEST(Beam, HoldsWhatWasPromised) {
  const BeamRules rules{4, 1, EarlyStop::kPresent, 100, beam_tokens_of_row(4, 1), 20};
  const uint64_t least = rules.width * rules.tokens_max * (sizeof(BeamToken) + 20 * sizeof(TokenLogprob));
  EXPECT_GT(BeamPool::bytes(rules), least);
  EXPECT_LT(BeamPool::bytes(rules), 3 * least / 2);
}

}  // namespace
}  // namespace tally::sample
