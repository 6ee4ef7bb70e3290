// Law 1 over the whole matrix: drafts of every length, of both kinds of proposers, for one sequence and for
// four, with every codec, computed and found in the prefix cache, greedy and drawn. A part of it each time;
// with TALLY_LONG in the environment all of it, over a thousand prompts.
#include "engine/speculate_test_support.h"
#include "kv/view.h"

#include <cstdlib>
#include <string_view>

namespace tally::engine {
namespace {

#ifdef TALLY_INSTRUMENTED
constexpr bool kMayBeLong = false;  // the same code, many times slower
#else
constexpr bool kMayBeLong = true;
#endif

bool is_long() {
  const char* const value = std::getenv("TALLY_LONG");
  return kMayBeLong && value != nullptr && std::string_view(value) == "1";
}

struct Cell {
  size_t codec = 0;
  uint32_t most = 0, batch = 0;
  bool is_cached = false, by_model = false;
};

// Those of one codec; of the short form each length once, with one codec.
std::vector<Cell> cells_of(size_t codec) {
  std::vector<Cell> out;
  for (uint32_t most = 1; most <= kDraftsMax; ++most) {
    for (const uint32_t batch : {1u, 4u}) {
      for (const bool is_cached : {false, true}) {
        const Cell cell{codec, most, batch, is_cached, (codec + most + (is_cached ? 1 : 0)) % 2 == 0};
        const bool is_short =
            (codec + most) % std::size(tensor::kKvCodecs) == 0 && is_cached == (most / 2 % 2 == 0);
        if (is_short || is_long()) out.push_back(cell);
      }
    }
  }
  return out;
}

// Prompts that repeat themselves; every other answer is drawn from a few tokens.
Request numbered(uint32_t n) {
  if (n % 2 == 1) return few_tokens(n, 40, 2 + n % 3);
  return greedy(repeated(3 + n % 9, 20 + n % 13, n), 40);
}

struct Tally {
  uint64_t prompts = 0, drafted = 0, accepted = 0;
};

// Whatever runs beside it, and whatever of its prompt is known already, each answers as alone and without
// drafts.
void expect_equal(const Cell& cell, const LoadRequest& codec, Hand& off, const std::vector<Request>& requests,
                  Tally& tally) {
  LoadRequest load = cell.by_model ? drafting(cell.most) : speculating(cell.most);
  load.settings.kv_type = codec.settings.kv_type;
  load.settings.prefix_cache = cell.is_cached;
  Hand on(load);
  for (size_t at = 0; at < requests.size(); at += cell.batch) {
    const std::vector<Request> together(requests.begin() + static_cast<ptrdiff_t>(at),
                                        requests.begin() + static_cast<ptrdiff_t>(at + cell.batch));
    if (cell.is_cached) {
      for (Request before : together) before.max_tokens = 1, on.run({before});
    }
    const std::vector<Answer> got = on.run(together);
    for (size_t i = 0; i < together.size(); ++i) {
      const Answer wanted = off.run({together[i]}).at(0);
      EXPECT_EQ(got[i], wanted) << "prompt " << tally.prompts + i;
      EXPECT_EQ(got[i].receipt.cached_tokens > 0, cell.is_cached);
      EXPECT_EQ(wanted.receipt.cached_tokens, 0u);
    }
    tally.prompts += together.size();
  }
  const Stats stats = on.engine->stats();
  EXPECT_GT(stats.speculation.accepted, 0u);
  EXPECT_EQ(stats.blocks_held, 0u);
  tally.drafted += stats.speculation.drafted, tally.accepted += stats.speculation.accepted;
}

TEST(SpeculationMatrix, EveryAnswerIsThatOfARunWithoutDrafts) {
  Tally tally;
  const uint32_t prompts = is_long() ? 8 : 4;  // of a cell
  for (size_t codec = 0; codec < std::size(tensor::kKvCodecs); ++codec) {
    LoadRequest load = small_request();
    load.settings.kv_type = tensor::kKvCodecs[codec].name;
    load.settings.prefix_cache = false;
    Hand off(load);
    for (const Cell& cell : cells_of(codec)) {
      SCOPED_TRACE(testing::Message()
                   << load.settings.kv_type << ", " << cell.most << " drafts, " << cell.batch << " at once"
                   << (cell.is_cached ? ", cached" : "") << (cell.by_model ? ", by a model" : ""));
      std::vector<Request> requests;
      for (uint32_t i = 0; i < prompts; ++i)
        requests.push_back(numbered(static_cast<uint32_t>(tally.prompts) + i));
      expect_equal(cell, load, off, requests, tally);
    }
  }
  EXPECT_GE(tally.prompts, is_long() ? 1000u : 2 * kDraftsMax * prompts);
  EXPECT_LT(tally.accepted, tally.drafted) << "all were right: nothing was ever taken back";
}

}  // namespace
}  // namespace tally::engine
