// The items of an attend stage: all that every row sees, once; long tiles cut, within the memory there is;
// the longest first; and a cut (tile, KV head) ends once.
#include "model/attend_stage.h"

#include "base/pool.h"
#include "model/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tally::model {
namespace {

constexpr size_t kRowsMax = 600;
constexpr size_t kPlenty = size_t{1} << 30;
constexpr size_t kStateFloats = 66;

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

std::vector<AttendPiece> pieces_of(const AttendPlan& plan, uint32_t tile) {
  std::vector<AttendPiece> pieces;
  for (const AttendPiece& p : plan.pieces())
    if (p.tile == tile) pieces.push_back(p);
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.span_begin < b.span_begin; });
  return pieces;
}

// Every row in one tile, every span of a tile in one piece, states apart, the longest first.
void expect_sound(const AttendPlan& plan, const std::vector<Segment>& segments, const AttendShape& shape) {
  size_t row = 0, states = 0, pieces = 0;
  for (uint32_t t = 0; t < plan.tiles().size(); ++t) {
    const AttendTile& tile = plan.tiles()[t];
    const Segment& segment = segments.at(tile.segment);
    EXPECT_EQ(tile.row_begin, row);
    EXPECT_EQ(tile.position, segment.position + tile.row_begin - segment.row_begin);
    EXPECT_LE(tile.row_begin + tile.rows, segment.row_begin + segment.rows);
    row += tile.rows;
    const kernels::SpanRange spans = kernels::attend_spans(tile.position, tile.rows, shape.window);
    size_t span = spans.begin;
    const std::vector<AttendPiece> own = pieces_of(plan, t);
    EXPECT_EQ(own.size(), tile.pieces);
    for (const AttendPiece& piece : own) {
      EXPECT_EQ(piece.span_begin, span);
      EXPECT_GT(piece.span_end, piece.span_begin);
      EXPECT_GT(piece.work, 0u);
      span = piece.span_end;
    }
    EXPECT_EQ(span, spans.end);
    pieces += own.size();
    if (tile.pieces == 1) continue;
    EXPECT_EQ(tile.states, states);
    EXPECT_EQ(tile.head_states, (spans.end - spans.begin) * tile.rows * shape.group * kStateFloats);
    states += tile.head_states * shape.kv_heads;
  }
  EXPECT_EQ(row, segments.back().row_begin + segments.back().rows);
  EXPECT_EQ(pieces, plan.pieces().size());
  EXPECT_TRUE(std::is_sorted(plan.pieces().begin(), plan.pieces().end(),
                             [](const auto& a, const auto& b) { return a.work > b.work; }));
}

TEST(AttendPlan, CutsOneDeepSequenceForAllThreads) {
  const auto segments = segments_of({{1, 16383}});
  for (const size_t threads : {2u, 4u, 8u, 64u}) {
    AttendPlan plan(kRowsMax, threads, kPlenty);
    plan.prepare(segments, shape_of(1, 4));
    expect_sound(plan, segments, shape_of(1, 4));
    EXPECT_EQ(plan.pieces().size(), std::min<size_t>(4 * threads, 16));
  }
}

TEST(AttendPlan, LeavesWholeWhatIsEvenAlready) {
  const auto whole = [](const std::vector<Sequence>& sequences, AttendShape shape, size_t threads) {
    const auto segments = segments_of(sequences);
    AttendPlan plan(kRowsMax, threads, kPlenty);
    plan.prepare(segments, shape);
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
  AttendPlan plan(kRowsMax, 4, kPlenty);
  plan.prepare(segments, shape_of(2, 4));
  expect_sound(plan, segments, shape_of(2, 4));
  for (uint32_t t = 0; t < 40; ++t) EXPECT_EQ(plan.tiles()[t].pieces > 1, t == 7) << t;
  EXPECT_EQ(plan.pieces().front().tile, 7u);
}

TEST(AttendPlan, TakesFewerRowsWhereTilesAreFew) {
  const auto rows = [](uint32_t group, size_t threads) {
    AttendPlan plan(kRowsMax, threads, kPlenty);
    const auto segments = segments_of({{512, 0}});
    plan.prepare(segments, shape_of(1, group));
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
  AttendPlan none(kRowsMax, 8, 0);
  none.prepare(segments, shape);
  EXPECT_EQ(none.pieces().size(), 2u);
  const size_t second = 9 * 2 * kStateFloats;
  for (const bool fits : {true, false}) {
    AttendPlan plan(kRowsMax, 8, second - (fits ? 0 : 1));  // too few for the first tile, 5 spans of 6 rows
    plan.prepare(segments, shape);
    expect_sound(plan, segments, shape);
    EXPECT_EQ(plan.tiles()[0].pieces, 1u);
    EXPECT_EQ(plan.tiles()[1].pieces, fits ? 9u : 1u);
  }
}

TEST(AttendPlan, AnyStepIsSoundAndAllocatesNothing) {
  std::mt19937 rng(1);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
  for (const size_t threads : {1u, 2u, 5u, 16u, 64u}) {
    const size_t states_max = threads == 16 ? 40000 : kPlenty;
    AttendPlan plan(kRowsMax, threads, states_max);
    const size_t tiles = plan.tiles().capacity(), pieces = plan.pieces().capacity();
    for (int i = 0; i < 200; ++i) {
      std::vector<Sequence> sequences;
      for (uint32_t rows = 0; rows < kRowsMax && sequences.size() < 1 + below(300);) {
        const uint32_t n = std::min<uint32_t>(below(4) == 0 ? 1 + below(200) : 1, kRowsMax - rows);
        sequences.push_back({n, below(below(3) == 0 ? 130000 : 3000)});
        rows += n;
      }
      const auto segments = segments_of(sequences);
      plan.begin_step();
      for (const uint32_t window : {0u, 700u, 3000u}) {
        const AttendShape shape = shape_of(1 + below(9), 1 + below(8), window);
        plan.prepare(segments, shape);
        expect_sound(plan, segments, shape);
        size_t states = 0;
        for (const AttendTile& tile : plan.tiles()) states += tile.head_states * shape.kv_heads;
        EXPECT_LE(states, states_max);
      }
    }
    EXPECT_EQ(plan.tiles().capacity(), tiles);
    EXPECT_EQ(plan.pieces().capacity(), pieces);
  }
}

// Both for a plan that was just made and for one that serves again.
TEST(AttendPlan, EveryCutTileAndHeadEndsOnce) {
  const auto segments = segments_of({{1, 16383}, {2, 9000}});
  const AttendShape shape = shape_of(2, 2);
  AttendPlan plan(kRowsMax, 8, kPlenty);
  base::ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    plan.prepare(segments, shape);
    std::vector<std::atomic<int>> ends(plan.tiles().size() * shape.kv_heads);
    pool.parallel_for(plan.pieces().size() * shape.kv_heads, [&](size_t item, size_t) {
      const AttendPiece& piece = plan.pieces()[item / shape.kv_heads];
      const AttendTile& tile = plan.tiles()[piece.tile];
      ASSERT_GT(tile.pieces, 1u);
      if (plan.end_piece(tile, item % shape.kv_heads))
        ++ends[piece.tile * shape.kv_heads + item % shape.kv_heads];
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
  EXPECT_EQ(attend_states_max(program, limits, 8), 32 * row);
  EXPECT_EQ(attend_states_max(program, limits, 1), 0u);
  program.attention[0].kv_heads = 8;
  EXPECT_EQ(attend_states_max(program, limits, 2), 0u);
  EXPECT_EQ(attend_states_max(program, limits, 3), 32 * row);
  limits.context_max = 1024;
  EXPECT_EQ(attend_states_max(program, limits, 8), 0u);
  limits.context_max = 10000, limits.standard_attention = true;
  EXPECT_EQ(attend_states_max(program, limits, 8), 0u);
  limits.standard_attention = false, program.attention[0].window = 512;
  EXPECT_EQ(attend_states_max(program, limits, 8), 32 * 2 * 8 * kStateFloats);
  program.attention.push_back(layer);
  EXPECT_EQ(attend_states_max(program, limits, 8), 32 * row);
  limits.context_max = 1u << 20;
  EXPECT_EQ(attend_states_max(program, limits, 8), size_t{4} << 20);
}

}  // namespace
}  // namespace tally::model
