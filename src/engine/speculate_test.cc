// Drafts change no token, no logprob and no end (Law 1), whatever is drafted for whom; and they are counted.
#include "engine/speculate_test_support.h"

#include <algorithm>
#include <string>

namespace tally::engine {
namespace {

std::vector<Request> all_kinds() {
  std::vector<Request> out;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    out.push_back(greedy(repeated(5, 30, seed), 60));
    out.push_back(few_tokens(seed, 70, 2 + seed % 2));
  }
  Request penalties = few_tokens(11, 60, 6);
  penalties.params.penalties = {.repetition = 1.3f, .presence = 0.4f, .frequency = 0.2f};
  penalties.params.temperature = 0.9f;
  out.push_back(penalties);
  Request ends = few_tokens(12, 70);
  ends.params.stop_ids = {TokenId{46}};
  ends.params.min_tokens = 25;
  out.push_back(ends);
  Request early = ends;
  early.params.min_tokens = 0, early.params.seed = 5;
  out.push_back(early);
  Request cut = few_tokens(13, 70);
  cut.params.top_p = 0.9f, cut.params.min_p = 0.05f, cut.params.top_k = 2;
  out.push_back(cut);
  Request choices = few_tokens(14, 50);
  choices.choices = 3;
  out.push_back(choices);
  Request beams = greedy(repeated(5, 20, 9), 12);
  beams.params.logprobs = -1;
  beams.beams = BeamSearch{.width = 3};
  beams.choices = 2;
  out.push_back(beams);
  return out;
}

TEST(Speculation, ChangesNoAnswer) {
  const std::vector<Request> requests = all_kinds();
  for (const char* codec : {"int8", "f32", "int4"}) {
    LoadRequest load = speculating();
    load.settings.kv_type = codec;
    const std::vector<Answer> wanted = plain(load, requests);
    for (const uint32_t most : {1u, 2u, 3u, 5u, 8u, 16u}) {
      load.settings.policy.speculate_max = most;
      Hand hand(load);
      const std::vector<Answer> got = hand.run(requests);
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << codec << ' ' << most << ' ' << i;
      const Stats s = hand.engine->stats();
      EXPECT_GT(s.speculation.accepted, 20u) << codec << ' ' << most;
      EXPECT_LT(s.speculation.accepted, s.speculation.drafted) << codec << ' ' << most;
      EXPECT_EQ(s.blocks_held, 0u);
    }
  }
}

// One after the other: what the first left in the prefix cache is what the next would have computed.
TEST(Speculation, ChangesNothingOfWhatIsCached) {
  const std::vector<Request> requests = all_kinds();
  for (const uint32_t pool_blocks : {0u, 24u}) {
    LoadRequest load = speculating(5);
    if (pool_blocks > 0)
      load.settings.kv_pool_bytes =
          uint64_t{pool_blocks} * plan_memory(small_request()).value().kv_bytes_per_token * 16;
    Hand drafts(load);
    load.settings.policy.speculate = "off";
    Hand off(load);
    uint32_t cached = 0;
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < requests.size(); ++i) {
        const std::vector<Answer> got = drafts.run({requests[i]}), wanted = off.run({requests[i]});
        EXPECT_EQ(got, wanted) << pool_blocks << ' ' << round << ' ' << i;
        if (wanted[0].finish != Finish::kLength || requests[i].beams) continue;
        Request next = requests[i];  // a second turn: the answer is a part of the prompt
        next.prompt.insert(next.prompt.end(), wanted[0].ids.begin(), wanted[0].ids.end());
        next.max_tokens = 8;
        const std::vector<Answer> again = drafts.run({next});
        EXPECT_EQ(again, off.run({next})) << pool_blocks << ' ' << round << ' ' << i;
        cached += again[0].receipt.cached_tokens;
      }
    }
    EXPECT_GT(cached, 500u);
    EXPECT_GT(drafts.engine->stats().speculation.accepted, 50u);
  }
}

TEST(Speculation, ChangesNothingWhereBlocksAreShort) {
  LoadRequest load = speculating(16);
  load.settings.kv_pool_bytes = 16 * plan_memory(small_request()).value().kv_bytes_per_token * 16;
  const std::vector<Request> requests = all_kinds();
  const std::vector<Answer> wanted = plain(speculating(), requests);
  Hand hand(load);
  const std::vector<Answer> got = hand.run(requests);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << i;
  EXPECT_GT(hand.engine->stats().preemptions, 0u);
}

TEST(Speculation, AModelThatDraftsChangesNoAnswer) {
  const std::vector<Request> all = all_kinds();
  std::vector<Request> requests;
  for (const size_t i : {0, 1, 3, 8, 9, 12, 13}) requests.push_back(all.at(i));
  struct Variant {
    const char* name;
    void (*change)(LoadRequest&);
  };
  const Variant variants[] = {
      {"as it is", [](LoadRequest&) {}},
      {"other KV, one draft",
       [](LoadRequest& l) { l.settings.kv_type = "bf16", l.settings.policy.speculate_max = 1; }},
      {"chunks", [](LoadRequest& l) { l.settings.step_tokens = 8; }},
      {"short of blocks",
       [](LoadRequest& l) {
         l.settings.kv_pool_bytes = 16 * plan_memory(small_request()).value().kv_bytes_per_token * 16;
       }},
  };
  for (const Variant& variant : variants) {
    LoadRequest load = drafting();
    variant.change(load);
    const std::vector<Answer> wanted = plain(load, requests);
    Hand hand(load);
    EXPECT_EQ(hand.run(requests), wanted) << variant.name;
    EXPECT_GT(hand.engine->stats().speculation.accepted, 20u) << variant.name;
    EXPECT_EQ(hand.run({requests[0], requests[5]}), plain(load, {requests[0], requests[5]}))
        << variant.name << ", with prefix hits, and seats taken again";
    EXPECT_EQ(hand.engine->stats().blocks_held, 0u) << variant.name;
  }
}

// The same for whoever is not drawn, or gave a seed: rejection sampling is for the others.
TEST(Speculation, RejectionSamplingChangesNoAnswerOfGivenSeeds) {
  const std::vector<Request> all = all_kinds();
  const std::vector<Request> requests = {all.at(0), all.at(1), all.at(8), all.at(12)};
  LoadRequest load = drafting();
  const std::vector<Answer> wanted = plain(load, requests);
  load.settings.policy.rejection_sampling = true;
  EXPECT_EQ(Hand(load).run(requests), wanted);
  Request greedy_one = all.at(0);
  greedy_one.params.is_seed_drawn = true;
  EXPECT_EQ(Hand(load).run({greedy_one}), plain(load, {greedy_one}));
}

// The model drafts for itself and draws as the sequence does, so p is q: its guesses hold.
TEST(Speculation, RejectionSamplingHoldsWhereTheModelsAgree) {
  Request request = greedy(prompt(20, 5), 61);
  request.params.temperature = 1, request.params.seed = 3, request.params.is_seed_drawn = true;
  LoadRequest load = drafting(4);
  load.settings.policy.rejection_sampling = true;
  const Answer first = Hand(load).run({request}).at(0), again = Hand(load).run({request}).at(0);
  EXPECT_EQ(first, again) << "of one seed and the same drafts";
  EXPECT_EQ(first.ids.size(), 61u);
  EXPECT_GT(first.receipt.draft_tokens, 20u);
  EXPECT_GE(first.receipt.accepted_tokens * 10, first.receipt.draft_tokens * 9);
  // Log-probabilities are the model's own, of the rows that verified.
  Request known = request;
  known.prompt.insert(known.prompt.end(), first.ids.begin(), first.ids.end());
  known.prompt_only = true, known.prompt_logprobs = 0, known.max_tokens = 0,
  known.params.is_seed_drawn = false;
  load.settings.policy.speculate = "off", load.settings.policy.draft_model.clear();
  Hand scorer(load);
  const Submitted scored = scorer.engine->submit(known);
  Answer none;
  for (int step = 0; step < 100 && !drain(*scored.streams.at(0), none); ++step) scorer.loop->step();
  for (size_t i = 0; i < first.ids.size(); ++i) {
    sample::Score score;
    ASSERT_TRUE(scored.streams[0]->score(static_cast<uint32_t>(request.prompt.size() + i), score)) << i;
    ASSERT_EQ(first.logprobs[i * 4], score.logprob) << i;  // each with its three best
  }
}

TEST(Speculation, ChancesOfDraftsArePlannedAndBooked) {
  LoadRequest load = drafting();
  const uint64_t without = plan_memory(load).value().total_bytes;
  load.settings.policy.rejection_sampling = true;
  const MemoryPlan plan = plan_memory(load).value();
  EXPECT_GE(plan.total_bytes, without + 32 * 1024 * 4);
  Hand hand(load);
  for (const PlanPart& part : plan.of(base::Account::kActivations).parts) {
    if (part.name != "draft chances") continue;
    for (const base::AccountPart& got : hand.accounts.use(base::Account::kActivations).parts)
      EXPECT_TRUE(got.name != part.name || got.reserved == part.bytes)
          << got.reserved << " for " << part.bytes;
    return;
  }
  ADD_FAILURE() << "not in the plan";
}

// Four answers begin at once: the model that drafts takes one chunk of the prompt of one of them a step.
TEST(Speculation, PromptsOfTheModelThatDraftsAreTakenInChunks) {
  LoadRequest load = drafting(4);
  load.settings.step_tokens = 32;
  Hand hand(load);
  Request request = greedy(prompt(60, 1), 40);
  request.choices = 4;
  EXPECT_EQ(hand.run({request}), plain(load, {request}));
  uint64_t rows = 0;
  for (const StepRecord& step : hand.engine->steps(0, 1000).steps) {
    EXPECT_LE(step.draft_prompt_rows, 32u) << step.step;
    rows += step.draft_prompt_rows;
  }
  EXPECT_GT(rows, 2 * 60u);  // those of which lookup has nothing to say
  EXPECT_GT(hand.engine->stats().speculation.by[static_cast<size_t>(DraftSource::kModel)].accepted, 0u);
}

// Whoever says what it drafted itself is always right: every step gives all of its tokens.
TEST(Speculation, AModelThatDraftsForItselfIsRight) {
  Hand hand(drafting(4));
  const Answer answer = hand.run({greedy(prompt(20, 5), 61)}).at(0);
  const Receipt& r = answer.receipt;
  EXPECT_EQ(r.generated_tokens, 61u);
  EXPECT_GE(r.accepted_tokens * 10, r.draft_tokens * 9);  // the text repeats itself, and lookup may err
  EXPECT_LE(r.steps, 35u);
}

// As speculate_bench has it agree at a chosen rate: never, and always.
TEST(Speculation, AModelCanBeMadeToSayWhatItDrafts) {
  Request request = greedy(prompt(20, 5), 61);
  request.params.temperature = 1, request.params.seed = 3;
  const Answer wanted = plain(small_request(), {request}).at(0);
  for (const int32_t flip : {1, 0}) {
    LoadRequest load = drafting(4);
    load.draft_text = [&, flip](size_t position) {
      const size_t i = position - request.prompt.size();
      return i < wanted.ids.size() ? TokenId{raw(wanted.ids[i]) ^ flip} : TokenId{0};
    };
    Hand hand(load);
    EXPECT_EQ(hand.run({request}).at(0), wanted);
    const DraftCounts by = hand.engine->stats().speculation.by;
    const DraftCount model = by[static_cast<size_t>(DraftSource::kModel)];
    EXPECT_GT(model.drafted, 10u) << flip;
    EXPECT_EQ(model.accepted, flip == 0 ? model.drafted : 0) << flip;
  }
}

TEST(Speculation, AModelThatDraftsIsPlannedAndBooked) {
  LoadRequest load = drafting();
  const MemoryPlan plan = plan_memory(load).value();
  load.settings.policy.speculate = "off";
  EXPECT_GT(plan.of(base::Account::kWeights).bytes, plan_memory(load).value().of(base::Account::kWeights).bytes);
  Hand hand(drafting());
  for (const PlanAccount& a : plan.accounts) {
    for (const PlanPart& part : a.parts) {
      if (part.name != "packed weights" && part.name != "rope tables" && part.name != "scratch" && part.name != "pool")
        continue;
      uint64_t reserved = 0;
      for (const base::AccountPart& got : hand.accounts.use(a.account).parts)
        if (got.name == part.name) reserved = got.reserved;
      EXPECT_EQ(reserved, part.bytes) << part.name;
    }
  }
}

TEST(Speculation, TakesFewerStepsAndTellsIt) {
  Hand hand(speculating(8));
  const Answer answer = hand.run({few_tokens(3, 80, 2)}).at(0);
  const Stats s = hand.engine->stats();
  const Receipt& r = answer.receipt;
  EXPECT_EQ(answer.ids.size(), 80u);
  EXPECT_EQ(r.generated_tokens, 80u);
  EXPECT_EQ(r.accepted_tokens, s.speculation.accepted);
  EXPECT_EQ(r.draft_tokens, s.speculation.drafted);
  EXPECT_EQ(r.steps + r.accepted_tokens, 80u);  // each step gives one token, and those accepted
  EXPECT_EQ(s.generation_tokens, 80u);
  EXPECT_EQ(s.rows_decode, 79u - r.accepted_tokens);
  EXPECT_EQ(s.rows_draft, r.draft_tokens);
  EXPECT_GT(s.speculation.rounds, 0u);
  uint64_t at_places = 0;
  for (size_t i = 0; i + 1 < s.speculation.accepted_at.size(); ++i) {
    EXPECT_GE(s.speculation.accepted_at[i], s.speculation.accepted_at[i + 1]);
    at_places += s.speculation.accepted_at[i];
  }
  EXPECT_EQ(at_places, s.speculation.accepted);
  EXPECT_EQ(s.speculation.accepted_at[8], 0u);
  EXPECT_NE(s.speculation.ratio, 1);
  // Every token after the first is one gap between tokens, of no time where they came together.
  uint64_t gaps = 0;
  for (const uint64_t count : s.inter_token.counts) gaps += count;
  EXPECT_EQ(gaps, 79u);
  EXPECT_NEAR(s.inter_token.sum, static_cast<double>(r.last_us - r.first_token_us) * 1e-6, 1e-3);
  uint64_t drafts = 0, accepted = 0;
  for (const StepRecord& step : hand.engine->steps(0, 1000).steps)
    drafts += step.draft_rows, accepted += step.accepted_drafts;
  EXPECT_EQ(drafts, r.draft_tokens);
  EXPECT_EQ(accepted, r.accepted_tokens);
  DraftCounts by{};
  for (const StepRecord& step : hand.engine->steps(0, 1000).steps)
    for (size_t i = 0; i < kDraftSources; ++i)
      by[i].drafted += step.drafts[i].drafted, by[i].accepted += step.drafts[i].accepted;
  for (size_t i = 0; i < kDraftSources; ++i) {
    const bool is_lookup = i == static_cast<size_t>(DraftSource::kLookup);
    EXPECT_EQ(by[i].drafted, is_lookup ? r.draft_tokens : 0);
    EXPECT_EQ(by[i].accepted, is_lookup ? r.accepted_tokens : 0);
    EXPECT_EQ(s.speculation.by[i].drafted, by[i].drafted);
    EXPECT_EQ(s.speculation.by[i].accepted, by[i].accepted);
  }
}

TEST(Speculation, NothingIsDraftedThatDoesNotPay) {
  LoadRequest load = speculating(8);
  load.row_prices_us = {100, 10'000};
  Hand hand(load);
  hand.run({few_tokens(3, 80, 2)});
  EXPECT_EQ(hand.engine->stats().speculation.drafted, 0u);
  EXPECT_LE(hand.engine->stats().speculation.ratio, 1);  // less the time of looking
  EXPECT_GT(hand.engine->stats().speculation.ratio, 0.5);
}

TEST(Speculation, MeasuresWhatRowsCost) {
  LoadRequest load = speculating(8);
  load.row_prices_us.clear();
  const std::vector<Answer> wanted = plain(load, {few_tokens(3, 80, 2)});
  EXPECT_EQ(Hand(load).run({few_tokens(3, 80, 2)}), wanted);
}

TEST(Speculation, IsPlannedAndBooked) {
  LoadRequest load = speculating();
  const MemoryPlan with = plan_memory(load).value();
  uint64_t planned = 0;
  for (const PlanPart& part : with.of(base::Account::kRuntime).parts) {
    if (part.name != "drafts") continue;
    planned = part.bytes;
    EXPECT_EQ(part.formula, "8 sequences x 128 tokens x 16 bytes");
  }
  EXPECT_EQ(planned, base::Accounts::arena_bytes(8 * 128 * 16));
  Hand hand(load);
  uint64_t reserved = 0;
  for (const base::AccountPart& part : hand.accounts.use(base::Account::kRuntime).parts)
    if (part.name == "drafts") reserved = part.reserved;
  EXPECT_EQ(reserved, planned);
  load.settings.policy.speculate = "off";
  EXPECT_LT(plan_memory(load).value().total_bytes, with.total_bytes);
}

}  // namespace
}  // namespace tally::engine
