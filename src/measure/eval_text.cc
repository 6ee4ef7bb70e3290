#include "base/check.h"
#include "measure/eval_lanes.h"
#include "measure/eval_rows.h"
#include "measure/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace tally::measure {
namespace {

using base::Result;
using engine::Lane;

// By scored position, of one lane.
struct Columns {
  std::vector<double> nll, kld, same_top, probability_change;
  void resize(size_t n) { nll.resize(n), kld.resize(n), same_top.resize(n), probability_change.resize(n); }
};

// Rows of one pass that predict a token of the window.
struct PassRows {
  size_t at = 0;                   // index of the first in the columns
  std::span<const TokenId> right;  // what each should have predicted
};

// Scores the rows that the lanes hold since their last feed.
void score_rows(EvalBench& bench, const PassRows& rows, std::vector<Columns>& columns,
                std::vector<ReferenceRow>& references) {
  bench.scorer.pool().parallel_for(rows.right.size(), [&](size_t i, size_t worker) {
    const size_t at = rows.at + i;
    ReferenceRow& reference = references[worker];
    RowScore first;
    for (size_t l = 0; l < bench.lanes.size(); ++l) {
      Columns& c = columns[l];
      const std::span<const float> logits = bench.lanes[l].lane->logits(i);
      RowScore score;
      if (!bench.has_reference) {
        score = score_row(logits, rows.right[i]);
      } else if (l == 0) {
        score = first = reference.set(logits, rows.right[i]);
      } else {
        score = reference.compare(logits, rows.right[i], c.kld[at]);
      }
      c.nll[at] = score.nll;
      c.same_top[at] = score.top == first.top ? 1 : 0;
      c.probability_change[at] = std::exp(-score.nll) - std::exp(-first.nll);
    }
  });
}

void add_reads(engine::LaneReads& sum, const engine::LaneReads& before, const engine::LaneReads& after) {
  sum.positions += after.positions - before.positions;
  sum.earlier_positions += after.earlier_positions - before.earlier_positions;
  sum.bytes += after.bytes - before.bytes;
}

// Feeds a window to every lane from an empty sequence 0, and scores what lies behind the first pass.
Result<void> score_window(EvalBench& bench, std::span<const TokenId> window, std::vector<Columns>& columns,
                          std::vector<size_t>& positions) {
  for (EvalLane& l : bench.lanes) l.lane->truncate(0, 0);
  std::vector<ReferenceRow> references(bench.scorer.pool().threads());
  bool goes_on = true;
  for (size_t begin = 0; goes_on && begin < window.size(); begin += Lane::kRowsMax) {
    const size_t count = std::min<size_t>(Lane::kRowsMax, window.size() - begin);
    const bool is_scored = begin > 0;
    const Lane::Rows rows{0, window.subspan(begin, count), is_scored};
    for (EvalLane& l : bench.lanes) {
      const engine::LaneReads before = l.lane->reads();
      TALLY_TRY_VOID(l.lane->feed({&rows, 1}));
      if (is_scored && l.figures != nullptr) add_reads(l.figures->reads, before, l.lane->reads());
    }
    goes_on = bench.tick(count * bench.lanes.size());
    // The last row of the window predicts what is not there.
    const size_t predicting = std::min(count, window.size() - begin - 1);
    if (!is_scored || predicting == 0) continue;
    const size_t at = positions.size();
    positions.resize(at + predicting);
    std::iota(positions.begin() + static_cast<ptrdiff_t>(at), positions.end(), begin);
    for (Columns& c : columns) c.resize(positions.size());
    score_rows(bench, {at, window.subspan(begin + 1, predicting)}, columns, references);
  }
  return {};
}

Estimate exp_of(const Estimate& e) {
  return {std::exp(e.value), {std::exp(e.interval.low), std::exp(e.interval.high)}};
}

TextFigures figures_of(const Columns& c, const Columns& reference, std::span<const size_t> positions,
                       const EvalOptions& options) {
  TextFigures f;
  f.positions = positions.size();
  f.nll = block_mean(c.nll, kEvalBlock, options.seed);
  f.ppl = exp_of(f.nll);
  f.kld = block_mean(c.kld, kEvalBlock, options.seed);
  std::vector<double> sorted = c.kld;
  std::sort(sorted.begin(), sorted.end());
  f.kld_p50 = quantile(sorted, 0.5), f.kld_p99 = quantile(sorted, 0.99), f.kld_max = sorted.back();
  std::vector<double> change(c.nll.size());
  std::transform(c.nll.begin(), c.nll.end(), reference.nll.begin(), change.begin(), std::minus<>());
  f.ppl_ratio = exp_of(block_mean(change, kEvalBlock, options.seed));
  f.same_top = block_mean(c.same_top, kEvalBlock, options.seed);
  const double squares = std::inner_product(c.probability_change.begin(), c.probability_change.end(),
                                            c.probability_change.begin(), 0.0);
  f.probability_rms = std::sqrt(squares / static_cast<double>(positions.size()));
  std::array<double, kDepthParts> sum{}, count{};
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t part = std::min(kDepthParts - 1, positions[i] * kDepthParts / options.context);
    sum[part] += c.kld[i], ++count[part];
  }
  for (size_t part = 0; part < kDepthParts; ++part)
    f.kld_by_depth[part] =
        count[part] > 0 ? sum[part] / count[part] : std::numeric_limits<double>::quiet_NaN();
  return f;
}

// True if logits of the last rows of a window change when what is stored before them does.
Result<bool> reads_back(EvalBench& bench, Lane& lane, std::span<const TokenId> window) {
  constexpr size_t kRows = 8;
  const size_t kept = window.size() - kRows;
  const Lane::Rows last{0, window.subspan(kept), true};
  lane.truncate(0, 0);
  TALLY_TRY_VOID(bench.feed(lane, 0, window.first(kept)));
  TALLY_TRY_VOID(lane.feed({&last, 1}));
  std::vector<std::vector<float>> sound;
  for (size_t i = 0; i < kRows; ++i) sound.emplace_back(lane.logits(i).begin(), lane.logits(i).end());
  lane.truncate(0, static_cast<uint32_t>(kept));
  lane.spoil(0);
  TALLY_TRY_VOID(lane.feed({&last, 1}));
  bool is_changed = false;
  for (size_t i = 0; i < kRows; ++i)
    is_changed |= std::memcmp(sound[i].data(), lane.logits(i).data(), sound[i].size() * sizeof(float)) != 0;
  lane.truncate(0, 0);
  return is_changed;
}

}  // namespace

std::vector<std::vector<TokenId>> cut_windows(const text::Tokenizer& tokenizer, std::span<const TokenId> ids,
                                              uint32_t context) {
  constexpr size_t kWorthwhile = 2 * Lane::kRowsMax;
  const bool begins = tokenizer.adds_bos() && tokenizer.bos();
  const size_t body = context - (begins ? 1 : 0);
  std::vector<std::vector<TokenId>> out;
  for (size_t at = 0; at < ids.size(); at += body) {
    const auto part = ids.subspan(at, std::min(body, ids.size() - at));
    if (part.size() < kWorthwhile) break;
    std::vector<TokenId>& window = out.emplace_back();
    if (begins) window.push_back(*tokenizer.bos());
    window.insert(window.end(), part.begin(), part.end());
  }
  return out;
}

Result<void> score_windows(EvalBench& bench, std::span<const std::vector<TokenId>> windows,
                           const std::function<Result<bool>(size_t done)>& between) {
  std::vector<Columns> columns(bench.lanes.size());
  std::vector<size_t> positions;
  bool more = true;
  for (size_t done = 0; more && done < windows.size();) {
    TALLY_TRY_VOID(score_window(bench, windows[done], columns, positions));
    TALLY_TRY(more, between(++done));
  }
  if (positions.empty()) return {};
  for (size_t l = 0; l < bench.lanes.size(); ++l)
    bench.lanes[l].figures->text = figures_of(columns[l], columns[0], positions, bench.options);
  return {};
}

Result<SelfTest> test_itself(EvalBench& bench, std::span<const TokenId> window) {
  constexpr size_t kTokens = 512, kSpoiltTokens = 160, kNoiseBlock = 16;
  const auto part = window.first(std::min(window.size(), kTokens));
  SelfTest out;
  for (EvalLane& l : bench.lanes) {
    TALLY_TRY(const bool reads, reads_back(bench, *l.lane, part.first(std::min(part.size(), kSpoiltTokens))));
    if (!reads) out.not_read_back.push_back(l.figures->kv_type);
  }
  if (!bench.has_reference) return out;
  TALLY_TRY(auto noisy, bench.scorer.make_lane({"f32", 1, part.size(), bench.options.self_test_fault}));
  // The noisy lane takes the candidates' place for one window.
  EvalBench pair{bench.scorer, bench.tokenizer, bench.options, {}, true, bench.tick};
  pair.lanes.push_back({std::move(bench.lanes[0].lane), nullptr});
  pair.lanes.push_back({std::move(noisy), nullptr});
  std::vector<Columns> columns(2);
  std::vector<size_t> positions;
  const auto scored = score_window(pair, part, columns, positions);
  bench.lanes[0].lane = std::move(pair.lanes[0].lane);
  if (!scored) return scored.error();
  if (!positions.empty()) out.noise_kld = block_mean(columns[1].kld, kNoiseBlock, bench.options.seed);
  return out;
}

}  // namespace tally::measure
