// What the drafts of a model are worth, beside the formula: speed-up = E(n) / (n c + v(n + 1)) of n drafts,
// where E = 1 + a + ... + a^n of the share a that agrees, c is what a draft and v what a step of so many rows
// costs, in steps of one row, as the engine measures both at start. The drafting model's passes are real, and
// so is their cost; what it says is made to agree with the answer, known from a run without drafts, at a
// chosen rate. Rates by number of drafts: as many as the engine finds best (best), and four at all times.
// Run:
//   speculate_bench MODEL.gguf DRAFT_MODEL.gguf [--benchmark_...]
#include "base/log.h"
#include "base/machine.h"
#include "engine/drafts/choose.h"
#include "engine/hand_test_support.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>

namespace tally::engine {
namespace {

constexpr uint32_t kPromptTokens = 16;  // no more than a step may add: the drafting model takes them at once
constexpr uint32_t kTokens = 65;        // of an answer: a first one, and those whose time counts
constexpr int kRounds = 2, kRuns = 4;   // a round: an answer without drafts, and then so many with them
constexpr uint32_t kBest = 0;           // drafts: as many as are worth it

// Drawn, for the most likely text of a model repeats itself and is copied then.
Request request() {
  Request r = greedy(prompt(kPromptTokens, 1), kTokens);
  r.params.temperature = 1, r.params.seed = 1, r.params.logprobs = -1;
  return r;
}

// What the drafting model is made to say: the answer where a coin of the position falls so, else something
// else.
struct Agreement {
  std::vector<TokenId> answer;
  std::vector<bool> coins;

  void toss(double rate, uint64_t run) {
    std::mt19937_64 random(run);
    std::bernoulli_distribution coin(rate);
    coins.resize(answer.size());
    for (size_t i = 0; i < coins.size(); ++i) coins[i] = coin(random);
  }
  TokenId at(size_t position) const {
    const size_t i = position - kPromptTokens;
    if (i >= answer.size()) return TokenId{0};
    return coins[i] ? answer[i] : TokenId{raw(answer[i]) ^ 1};
  }
};

struct Taken {
  double us = 0;       // from the first token to the last
  uint64_t since = 0;  // steps after this one are its own
  bool is_same = true;
};

class Bed {
 public:
  Bed(std::string model, std::string draft_model)
      : model_(std::move(model)), draft_model_(std::move(draft_model)) {}

  base::Result<void> check() const {
    for (const LoadRequest& load : {plain_load(), drafting_load(kBest)})
      if (const auto plan = plan_memory(load); !plan) return plan.error();
    return {};
  }
  // An engine that drafts so many; kept. Its prices are those of the first steps.
  Hand& drafting(uint32_t drafts) {
    auto& hand = drafting_[drafts];
    if (!hand) {
      hand = std::make_unique<Hand>(drafting_load(drafts));
      if (drafts == kBest) prices_.emplace(hand->loop->drafter()->prices());
      us_per_draft_ = hand->loop->drafter()->us_per_draft();
    }
    return *hand;
  }
  Taken run_plain() {
    if (!plain_)
      plain_ = std::make_unique<Hand>(plain_load()), agreement_->answer = plain_->run({request()})[0].ids;
    return run(*plain_);
  }
  Taken run(Hand& hand) {
    const uint64_t since = hand.engine->steps(0, 0).last;
    const Answer answer = hand.run({request()}).at(0);
    return {static_cast<double>(answer.receipt.last_us - answer.receipt.first_token_us), since,
            answer.ids == agreement_->answer};
  }
  Agreement& agreement() { return *agreement_; }
  double draft_cost() const { return us_per_draft_ / prices_->us(1); }
  double row_cost(uint32_t rows) const { return prices_->us(rows) / prices_->us(1); }

 private:
  LoadRequest plain_load() const {
    LoadRequest load = small_request();
    load.model_path = model_;
    load.settings.memory_bytes = base::memory_allowance();
    load.settings.threads = base::cpu_allowance().usable;
    load.settings.prefix_cache = false;
    return load;
  }
  LoadRequest drafting_load(uint32_t drafts) const {
    LoadRequest load = plain_load();
    load.settings.policy.speculate = "draft", load.settings.policy.draft_model = draft_model_;
    load.draft_sure_enough = 0;
    load.draft_text = [agreement = agreement_](size_t position) { return agreement->at(position); };
    if (drafts == kBest) return load;
    load.settings.policy.speculate_max = drafts;
    load.row_prices_us = {1e9, 1e9};  // beside which no draft costs anything
    return load;
  }

  std::string model_, draft_model_;
  std::shared_ptr<Agreement> agreement_ = std::make_shared<Agreement>();
  std::unique_ptr<Hand> plain_;
  std::map<uint32_t, std::unique_ptr<Hand>> drafting_;
  std::optional<RowPrices> prices_;
  double us_per_draft_ = 0;
};

// Drafts of a run, and what became of them.
struct Seen {
  std::vector<uint32_t> drafts;  // by step
  uint64_t accepted = 0, tested = 0, copied = 0;

  void add(const Hand& hand, uint64_t since) {
    for (const StepRecord& step : hand.engine->steps(since, StepLog::kKept).steps) {
      if (step.decode_rows == 0) continue;
      drafts.push_back(static_cast<uint32_t>(step.draft_rows));
      accepted += step.accepted_drafts;
      tested += step.accepted_drafts + (step.accepted_drafts < step.draft_rows ? 1 : 0);
      copied += step.draft_rows - step.drafts[static_cast<size_t>(DraftSource::kModel)].drafted;
    }
  }
  double agreed() const {
    return static_cast<double>(accepted) / static_cast<double>(std::max<uint64_t>(1, tested));
  }
  double mean() const {
    double sum = 0;
    for (const uint32_t n : drafts) sum += n;
    return sum / static_cast<double>(drafts.size());
  }
};

struct Expected {
  double tokens = 0, cost = 0;  // cost: in steps of one row
};
Expected formula(const Seen& seen, const Bed& bed) {
  double tokens = 0, cost = 0;
  for (const uint32_t n : seen.drafts) {
    tokens += expected_tokens(seen.agreed(), n);
    cost += n * bed.draft_cost() + bed.row_cost(n + 1);
  }
  return {tokens, cost};
}

void drafts(benchmark::State& state, Bed& bed) {
  const auto percent = static_cast<uint64_t>(state.range(0));
  bed.drafting(kBest);  // whose prices hold for all
  Hand& hand = bed.drafting(static_cast<uint32_t>(state.range(1)));
  double plain_us = 0, drafting_us = 0;  // of as many answers
  Seen seen;
  uint64_t run = 0;
  for (auto _ : state) {
    const Taken plain = bed.run_plain();
    plain_us += kRuns * plain.us;
    double round_us = 0;
    for (int i = 0; i < kRuns; ++i) {
      bed.agreement().toss(static_cast<double>(percent) / 100, percent * 1000 + ++run);
      const Taken taken = bed.run(hand);
      if (!plain.is_same || !taken.is_same) {
        state.SkipWithError("the answer is another one");
        return;
      }
      round_us += taken.us;
      seen.add(hand, taken.since);
    }
    drafting_us += round_us;
    state.SetIterationTime(round_us * 1e-6);
  }
  const Expected expected = formula(seen, bed);
  const double speed_up = plain_us / drafting_us, steps = static_cast<double>(seen.drafts.size());
  const double tokens = static_cast<double>(seen.accepted) + steps;
  state.counters["agreed"] = seen.agreed(), state.counters["drafts"] = seen.mean();
  state.counters["copied"] = static_cast<double>(seen.copied);
  state.counters["c"] = bed.draft_cost();
  state.counters["v2"] = bed.row_cost(2), state.counters["v5"] = bed.row_cost(5);
  state.counters["formula"] = expected.tokens / expected.cost, state.counters["speed-up"] = speed_up;
  state.counters["ratio"] = speed_up * expected.cost / expected.tokens;
  // Where the ratio comes from: what was seen over what the formula says, of both sides of its fraction.
  state.counters["ratio E"] = tokens / expected.tokens;
  state.counters["ratio cost"] = tokens / speed_up / expected.cost;
}

}  // namespace
}  // namespace tally::engine

int main(int argc, char** argv) {
  constexpr int kUsage = 64, kBadData = 65;  // sysexits
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    tally::base::log_error(
        "speculate_bench MODEL.gguf DRAFT_MODEL.gguf: {} arguments were given, 2 are needed", argc - 1);
    return kUsage;
  }
  tally::engine::Bed bed(argv[1], argv[2]);
  if (const auto checked = bed.check(); !checked) {
    tally::base::log_error("{}", checked.error().message);
    return kBadData;
  }
  const auto run = [&bed](benchmark::State& state) { tally::engine::drafts(state, bed); };
  benchmark::RegisterBenchmark("drafts", run)
      ->ArgNames({"agree", "drafts"})
      ->ArgsProduct({{30, 50, 70, 90}, {tally::engine::kBest, 4}})
      ->UseManualTime()
      ->Iterations(tally::engine::kRounds)
      ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
