// The time of a step's bookkeeping: plan and commit of sequences that decode (a block of 64 is taken every
// 64th step), with the prefix cache on; of beams that move between sequences; and of whole prompts that have
// nothing in common with anyone's, with the cache on (full of others) and off.
#include "sched/plan.h"

#include <benchmark/benchmark.h>

namespace tally::sched {
namespace {

constexpr uint32_t kBlockTokens = 64, kLength = 8192, kPrompt = 500;

struct Bench {
  explicit Bench(uint32_t sequences, bool prefix_cache = true)
      : ledger({.blocks = (sequences + 1) * (kLength / kBlockTokens),
                .block_tokens = kBlockTokens,
                .prefix_cache = prefix_cache}),
        scheduler({.seqs_max = sequences,
                   .queue_tokens_max = 1u << 30,
                   .step_tokens = 8192,
                   .model_len_max = kLength},
                  ledger) {
    outcomes.reserve(sequences);
  }

  void submit(uint32_t choices, bool beams, uint32_t new_tokens = kLength - kPrompt) {
    Request request;
    request.seq = SeqId{next};
    next += choices;
    request.choices = choices, request.beams = beams;
    request.arrival = static_cast<Tick>(next);
    for (uint32_t i = 0; i < kPrompt; ++i)
      request.prompt.push_back(TokenId{static_cast<int32_t>(next * 1000 + i)});
    request.max_tokens = new_tokens;
    scheduler.submit(std::move(request));
  }

  void step() {
    const StepPlan& plan = scheduler.plan(++now);
    outcomes.clear();
    for (const PlannedRows& rows : plan.rows) {
      for (uint32_t i = 0; i < rows.outcomes(); ++i)
        outcomes.push_back({.token = TokenId{static_cast<int32_t>(now)}});
    }
    if (move_beams && plan.rows.size() > 1 && plan.rows[0].decode) outcomes.back().from = plan.rows[0].seq;
    if (!plan.rows.empty()) scheduler.commit(outcomes, now);
  }

  kv::Ledger ledger;
  Scheduler scheduler;
  std::vector<Outcome> outcomes;
  uint64_t next = 1;
  Tick now = 0;
  bool move_beams = false;
};

// Measured is the steady state; before a sequence is full, a new bench begins.
void run(benchmark::State& state, uint32_t sequences, uint32_t choices, bool beams) {
  std::unique_ptr<Bench> bench;
  uint32_t steps = 0;
  for (auto _ : state) {
    if (steps == 0) {
      state.PauseTiming();
      bench = std::make_unique<Bench>(sequences);
      bench->move_beams = beams;
      for (uint32_t i = 0; i < sequences / choices; ++i) bench->submit(choices, beams);
      while (bench->scheduler.queue_stats().running < sequences) bench->step();
      for (int i = 0; i < 20; ++i) bench->step();
      steps = 4000;
      state.ResumeTiming();
    }
    bench->step();
    --steps;
  }
}

void decode(benchmark::State& state) { run(state, static_cast<uint32_t>(state.range(0)), 1, false); }
void beams(benchmark::State& state) {
  const auto width = static_cast<uint32_t>(state.range(0));
  run(state, width, width, true);
}
void prompts(benchmark::State& state) {
  Bench bench(16, state.range(0) != 0);
  const auto run_one = [&] {
    while (!bench.scheduler.idle()) bench.step();
  };
  for (uint32_t i = 0; i < bench.ledger.blocks(); ++i) bench.submit(1, false, 1), run_one();
  for (auto _ : state) {
    state.PauseTiming();
    bench.submit(1, false, 1);
    state.ResumeTiming();
    run_one();
  }
}
BENCHMARK(decode)->Arg(1)->Arg(16)->Arg(64)->Arg(256)->Unit(benchmark::kMicrosecond);
BENCHMARK(prompts)->ArgName("prefix_cache")->Arg(1)->Arg(0)->Iterations(5000)->Unit(benchmark::kMicrosecond);
BENCHMARK(beams)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tally::sched
