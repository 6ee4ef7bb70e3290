// The items of an attend stage: all that every row sees, once; long tiles cut, within the memory there is;
// the longest first; and a cut (tile, KV head) ends once.
#include "model/attend_plan.h"

#include "base/pool.h"
#include "model/attend_stage.h"
#include "model/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tally::model {
namespace {

constexpr size_t kRowsMax = 600;
constexpr size_t kPlenty = size_t{1} << 30;
constexpr size_t kStateFloats = 66;

AttendPlan plan_for(size_t threads, size_t states_max) {
  return AttendPlan({.rows = kRowsMax, .threads = threads, .kv_heads = 16, .states = states_max});
}

struct Sequence {
  uint32_t rows, position;
};
std::vector<Segment> segments_of(const std::vector<Sequence>& sequences) {
  std::vector<Segment> segments;
  uint32_t row = 0;
  for (const Sequence& s : sequences) {
    segments.push_back({.row_begin = row, .rows = s.rows, .position = s.position});
    row += s.rows;
  }
  return segments;
}

AttendShape shape_of(uint32_t kv_heads, uint32_t group, uint32_t window = 0) {
  return {.kv_heads = kv_heads, .group = group, .window = window, .state_floats = kStateFloats};
}

std::vector<AttendPiece> own_pieces(const AttendPlan& plan, uint32_t tile, uint32_t share) {
  std::vector<AttendPiece> pieces;
  for (const AttendPiece& p : plan.pieces())
    if (p.share == share && (share != AttendTile::kAlone || p.tile == tile)) pieces.push_back(p);
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.span_begin < b.span_begin; });
  return pieces;
}

void expect_cover(const std::vector<AttendPiece>& pieces, size_t begin, size_t end) {
  for (const AttendPiece& piece : pieces) {
    EXPECT_EQ(piece.span_begin, begin);
    EXPECT_GT(piece.span_end, piece.span_begin);
    EXPECT_GT(piece.work, 0u);
    begin = piece.span_end;
  }
  EXPECT_EQ(begin, end);
}

// Every row in one tile, every span of a tile in one piece of its own or of its share, states apart, the
// longest first.
void expect_sound(const AttendPlan& plan, const std::vector<Segment>& segments, const AttendShape& shape) {
  size_t row = 0, pieces = 0;
  std::vector<std::pair<size_t, size_t>> states;  // begin, end
  const auto take = [&](size_t begin, size_t head_states, size_t floats) {
    EXPECT_EQ(head_states, floats);
    states.push_back({begin, begin + head_states * shape.kv_heads});
  };
  std::vector<size_t> share_pieces;
  for (uint32_t i = 0; i < plan.shares().size(); ++i) {
    const AttendShare& share = plan.shares()[i];
    EXPECT_GT(share.tiles.size(), 1u);
    EXPECT_LE(share.rows * shape.group, kTileQueries);
    const std::vector<AttendPiece> shared = own_pieces(plan, 0, i);
    expect_cover(shared, 0, share.spans);
    pieces += shared.size(), share_pieces.push_back(shared.size());
    take(share.states, share.head_states, share.spans * share.rows * shape.group * kStateFloats);
    uint32_t rows = 0;
    for (const uint32_t t : share.tiles) {
      EXPECT_EQ(plan.tiles()[t].share, i);
      EXPECT_EQ(plan.tiles()[t].share_row, rows);
      EXPECT_GE(plan.tiles()[t].position / kernels::kSpanTokens, share.spans);
      rows += plan.tiles()[t].rows;
    }
    EXPECT_EQ(rows, share.rows);
  }
  for (uint32_t t = 0; t < plan.tiles().size(); ++t) {
    const AttendTile& tile = plan.tiles()[t];
    const Segment& segment = segments.at(tile.segment);
    EXPECT_EQ(tile.row_begin, row);
    EXPECT_EQ(tile.position, segment.position + tile.row_begin - segment.row_begin);
    EXPECT_LE(tile.row_begin + tile.rows, segment.row_begin + segment.rows);
    row += tile.rows;
    kernels::SpanRange spans = kernels::attend_spans(tile.position, tile.rows, shape.window);
    const bool alone = tile.share == AttendTile::kAlone;
    if (!alone) spans.begin = plan.shares()[tile.share].spans;
    const std::vector<AttendPiece> own = own_pieces(plan, t, AttendTile::kAlone);
    EXPECT_EQ(own.size() + (alone ? 0 : share_pieces[tile.share]), tile.pieces);
    expect_cover(own, spans.begin, spans.end);
    pieces += own.size();
    if (tile.pieces > 1)
      take(tile.states, tile.head_states, (spans.end - spans.begin) * tile.rows * shape.group * kStateFloats);
  }
  EXPECT_EQ(row, segments.back().row_begin + segments.back().rows);
  EXPECT_EQ(pieces, plan.pieces().size());
  EXPECT_TRUE(std::is_sorted(plan.pieces().begin(), plan.pieces().end(),
                             [](const auto& a, const auto& b) { return a.work > b.work; }));
  std::sort(states.begin(), states.end());
  for (size_t i = 1; i < states.size(); ++i) EXPECT_LE(states[i - 1].second, states[i].first);
}

TEST(AttendPlan, CutsOneDeepSequenceForAllThreads) {
  const auto segments = segments_of({{1, 16383}});
  for (const size_t threads : {2u, 4u, 8u, 64u}) {
    AttendPlan plan = plan_for(threads, kPlenty);
    plan.prepare(segments, {}, shape_of(1, 4));
    expect_sound(plan, segments, shape_of(1, 4));
    EXPECT_EQ(plan.pieces().size(), std::min<size_t>(4 * threads, 16));
  }
}

TEST(AttendPlan, LeavesWholeWhatIsEvenAlready) {
  const auto whole = [](const std::vector<Sequence>& sequences, AttendShape shape, size_t threads) {
    const auto segments = segments_of(sequences);
    AttendPlan plan = plan_for(threads, kPlenty);
    plan.prepare(segments, {}, shape);
    expect_sound(plan, segments, shape);
    return plan.pieces().size() == plan.tiles().size();
  };
  EXPECT_TRUE(whole({{1, 16383}}, shape_of(8, 4), 2));
  EXPECT_FALSE(whole({{1, 16383}}, shape_of(8, 4), 3));
  EXPECT_TRUE(whole({{1, 800}}, shape_of(1, 4), 64));  // one span
  EXPECT_TRUE(whole({{1, 9000}}, shape_of(1, 4, 500), 64));
  EXPECT_TRUE(whole(std::vector<Sequence>(16, {1, 5000}), shape_of(2, 4), 8));
}

TEST(AttendPlan, CutsTheDeepSequenceAmongShallowOnes) {
  std::vector<Sequence> sequences(40, {1, 300});
  sequences[7] = {1, 20000};
  const auto segments = segments_of(sequences);
  AttendPlan plan = plan_for(4, kPlenty);
  plan.prepare(segments, {}, shape_of(2, 4));
  expect_sound(plan, segments, shape_of(2, 4));
  for (uint32_t t = 0; t < 40; ++t) EXPECT_EQ(plan.tiles()[t].pieces > 1, t == 7) << t;
  EXPECT_EQ(plan.pieces().front().tile, 7u);
}

TEST(AttendPlan, TakesFewerRowsWhereTilesAreFew) {
  const auto rows = [](uint32_t group, size_t threads) {
    AttendPlan plan = plan_for(threads, kPlenty);
    const auto segments = segments_of({{512, 0}});
    plan.prepare(segments, {}, shape_of(1, group));
    expect_sound(plan, segments, shape_of(1, group));
    return plan.tiles().front().rows;
  };
  EXPECT_EQ(rows(4, 2), 32u);
  EXPECT_EQ(rows(4, 8), 16u);
  EXPECT_EQ(rows(4, 64), 8u);
  EXPECT_EQ(rows(1, 64), 32u);
}

TEST(AttendPlan, WhatDoesNotFitStaysWhole) {
  const auto segments = segments_of({{3, 4095}, {1, 9000}});
  const AttendShape shape = shape_of(1, 2);
  AttendPlan none = plan_for(8, 0);
  none.prepare(segments, {}, shape);
  EXPECT_EQ(none.pieces().size(), 2u);
  const size_t second = 9 * 2 * kStateFloats;
  for (const bool fits : {true, false}) {
    AttendPlan plan = plan_for(8, second - (fits ? 0 : 1));  // too few for the first tile, 5 spans of 6 rows
    plan.prepare(segments, {}, shape);
    expect_sound(plan, segments, shape);
    EXPECT_EQ(plan.tiles()[0].pieces, 1u);
    EXPECT_EQ(plan.tiles()[1].pieces, fits ? 9u : 1u);
  }
}

// Tables where sequence i has the blocks of `trunk[i].first` up to position `trunk[i].second`, then its own.
std::vector<uint32_t> some_tables(std::vector<Segment>& segments,
                                  const std::vector<std::pair<uint32_t, uint32_t>>& trunk) {
  constexpr uint32_t kBlocks = 256;
  std::vector<uint32_t> tables;
  for (uint32_t i = 0; i < segments.size(); ++i) {
    segments[i].table_begin = i * kBlocks;
    for (uint32_t b = 0; b < kBlocks; ++b)
      tables.push_back(trunk[i].first < i && b < trunk[i].second / 64 ? tables[trunk[i].first * kBlocks + b]
                                                                      : i * kBlocks + b);
  }
  return tables;
}

std::vector<std::vector<uint32_t>> shares_of(const AttendPlan& plan) {
  std::vector<std::vector<uint32_t>> shares;
  for (const AttendShare& s : plan.shares()) shares.push_back(s.tiles);
  return shares;
}

TEST(AttendPlan, SharesWholeSpansOfEqualBlocks) {
  using Shares = std::vector<std::vector<uint32_t>>;
  auto segments = segments_of({{1, 5000}, {1, 4100}, {1, 4095}, {1, 6000}, {30, 4100}, {1, 4096}, {1, 4096}});
  const auto tables =
      some_tables(segments, {{0, 0}, {0, 4096}, {0, 4095}, {3, 0}, {0, 4096}, {3, 4096}, {0, 1000}});
  const AttendShape shape = shape_of(2, 4);
  AttendPlan plan = plan_for(1, kPlenty);
  plan.prepare(segments, {tables, 64}, shape);
  expect_sound(plan, segments, shape);
  // 4 spans with sequence 1, 3 with sequence 2: two passes of three saved beat one of four. 30 rows fill two
  // tiles alone, and 1,000 positions are not a span.
  EXPECT_EQ(shares_of(plan), (Shares{{0, 1, 2}, {3, 6}}));
  EXPECT_EQ(plan.shares()[0].spans, 3u);
  EXPECT_EQ(plan.shares()[1].spans, 4u);

  plan.begin_step();
  plan.prepare(segments, {}, shape);
  EXPECT_TRUE(plan.shares().empty());
  for (AttendShape other : {shape_of(2, 4, 700), shape_of(2, 4)}) {
    other.distance_counts = other.window == 0;
    plan.prepare(segments, {tables, 64}, other);
    expect_sound(plan, segments, other);
    EXPECT_TRUE(plan.shares().empty());
  }
}

TEST(AttendPlan, SharesNoMoreThanATileNorThanFits) {
  auto segments = segments_of(std::vector<Sequence>(20, {1, 2100}));
  const auto tables = some_tables(segments, std::vector<std::pair<uint32_t, uint32_t>>(20, {0, 2048}));
  const AttendShape shape = shape_of(1, 4);
  const size_t floats = kStateFloats * 4;
  for (const size_t states : {kPlenty, 8 * 3 * floats, 8 * 3 * floats - 1}) {
    AttendPlan plan = plan_for(1, states);
    plan.prepare(segments, {tables, 64}, shape);
    expect_sound(plan, segments, shape);
    std::vector<size_t> sizes;
    for (const AttendShare& s : plan.shares()) sizes.push_back(s.tiles.size());
    EXPECT_EQ(sizes, states == kPlenty          ? (std::vector<size_t>{8, 8, 4})
                     : states == 8 * 3 * floats ? (std::vector<size_t>{8})
                                                : (std::vector<size_t>{4}));
  }
}

TEST(AttendPlan, AnyStepIsSoundAndAllocatesNothing) {
  std::mt19937 rng(1);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
  for (const size_t threads : {1u, 2u, 5u, 16u, 64u}) {
    const size_t states_max = threads == 16 ? 40000 : kPlenty;
    AttendPlan plan = plan_for(threads, states_max);
    const size_t tiles = plan.tiles().capacity(), pieces = plan.pieces().capacity();
    size_t shares = 0;
    for (int i = 0; i < 200; ++i) {
      std::vector<Sequence> sequences;
      for (uint32_t rows = 0; rows < kRowsMax && sequences.size() < 1 + below(300);) {
        const uint32_t n = std::min<uint32_t>(below(4) == 0 ? 1 + below(200) : 1, kRowsMax - rows);
        sequences.push_back({n, below(below(3) == 0 ? 130000 : 3000)});
        rows += n;
      }
      auto segments = segments_of(sequences);
      std::vector<std::pair<uint32_t, uint32_t>> trunk;
      for (const Sequence& s : sequences)
        trunk.push_back({below(1 + static_cast<uint32_t>(trunk.size())), std::min(s.position, below(16384))});
      const auto tables = some_tables(segments, trunk);
      plan.begin_step();
      for (const uint32_t window : {0u, 700u, 3000u}) {
        const AttendShape shape = shape_of(1 + below(9), 1 + below(8), window);
        plan.prepare(segments, {tables, 64}, shape);
        expect_sound(plan, segments, shape);
        size_t states = 0;
        for (const AttendTile& tile : plan.tiles()) states += tile.head_states * shape.kv_heads;
        for (const AttendShare& share : plan.shares()) states += share.head_states * shape.kv_heads;
        EXPECT_LE(states, states_max);
        shares += plan.shares().size();
      }
    }
    EXPECT_GT(shares, 100u);
    EXPECT_EQ(plan.tiles().capacity(), tiles);
    EXPECT_EQ(plan.pieces().capacity(), pieces);
  }
}

// Both for a plan that was just made and for one that serves again.
TEST(AttendPlan, EveryCutTileAndHeadEndsOnce) {
  auto segments = segments_of({{1, 16383}, {2, 9000}, {1, 10000}});
  const auto tables = some_tables(segments, {{0, 0}, {0, 6000}, {2, 0}});
  const AttendShape shape = shape_of(2, 2);
  AttendPlan plan = plan_for(8, kPlenty);
  base::ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    plan.prepare(segments, {tables, 64}, shape);
    ASSERT_EQ(plan.shares().size(), 1u);
    std::vector<std::atomic<int>> ends(plan.tiles().size() * shape.kv_heads);
    pool.parallel_for(plan.pieces().size() * shape.kv_heads, [&](size_t item, size_t) {
      const AttendPiece& piece = plan.pieces()[item / shape.kv_heads];
      const size_t head = item % shape.kv_heads;
      const auto end = [&](uint32_t t) {
        ASSERT_GT(plan.tiles()[t].pieces, 1u);
        if (plan.end_piece(plan.tiles()[t], head)) ++ends[t * shape.kv_heads + head];
      };
      if (piece.share == AttendTile::kAlone) return end(piece.tile);
      for (const uint32_t t : plan.shares()[piece.share].tiles) end(t);
    });
    for (const std::atomic<int>& n : ends) EXPECT_EQ(n, 1);
  }
}

TEST(AttendStates, AreBookedWhereAStepMayCut) {
  Program program;
  program.value_dim = 64;
  LayerAttention layer;
  layer.heads = 8, layer.kv_heads = 2;
  program.attention = {layer};
  StepLimits limits;
  limits.context_max = 10000;
  const size_t row = 10 * 8 * kStateFloats;
  for (const size_t threads : {1u, 2u, 8u}) EXPECT_EQ(attend_states_max(program, limits, threads), 32 * row);
  program.attention[0].alibi.resize(8);  // nothing to share: only to cut
  EXPECT_EQ(attend_states_max(program, limits, 8), 32 * row);
  EXPECT_EQ(attend_states_max(program, limits, 1), 0u);
  program.attention[0].kv_heads = 8;
  EXPECT_EQ(attend_states_max(program, limits, 2), 0u);
  EXPECT_EQ(attend_states_max(program, limits, 3), 32 * row);
  program.attention[0].alibi.clear();
  EXPECT_EQ(attend_states_max(program, limits, 2), 32 * row);
  limits.context_max = 1024;
  EXPECT_EQ(attend_states_max(program, limits, 8), 0u);
  limits.context_max = 10000, limits.standard_attention = true;
  EXPECT_EQ(attend_states_max(program, limits, 8), 0u);
  limits.standard_attention = false, program.attention[0].window = 512;
  EXPECT_EQ(attend_states_max(program, limits, 8), 32 * 2 * 8 * kStateFloats);
  EXPECT_EQ(attend_states_max(program, limits, 1), 0u);
  program.attention.push_back(layer);
  EXPECT_EQ(attend_states_max(program, limits, 8), 32 * row);
  limits.context_max = 1u << 20;
  EXPECT_EQ(attend_states_max(program, limits, 8), size_t{4} << 20);
}

}  // namespace
}  // namespace tally::model
