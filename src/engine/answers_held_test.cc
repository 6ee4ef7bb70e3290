// What answers hold: planned, promised at the door, booked as it is written, and given back when it has been
// read.
#include "engine/hand_test_support.h"
#include "engine/stream.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tally::engine {
namespace {

struct AnswerBed : Hand {
  explicit AnswerBed(const LoadRequest& request) : Hand(request) {}

  base::AccountPart part() const {
    for (const base::AccountPart& p : accounts.use(base::Account::kRuntime).parts)
      if (p.name == kStreamPart) return p;
    return {};
  }
  uint64_t booked() const { return part().reserved; }
  // Without reading anything, until nothing is left to do.
  void run_dry() {
    for (int step = 0; step < 10'000 && loop->step(); ++step) {
    }
  }
};

using Streams = std::vector<std::shared_ptr<Stream>>;

LoadRequest narrow() {
  LoadRequest request = small_request();
  request.settings.max_model_len = 256;
  request.settings.max_seqs = 4, request.settings.max_queue = 12;
  return request;
}

// As many alternatives as there can be, of the prompt's tokens too.
Request talkative(uint32_t choices, uint32_t tokens) {
  Request r = greedy(prompt(100, 7), tokens);
  r.params.logprobs = r.prompt_logprobs = sample::kLogprobsMax;
  r.params.ignore_eos = true;
  r.choices = choices;
  return r;
}

// Submits until there is no room, and then smaller ones.
Streams fill(AnswerBed& bed) {
  Streams streams;
  for (uint32_t tokens = 150; tokens > 0; tokens /= 2) {
    for (;;) {
      const Submitted s = bed.engine->submit(talkative(tokens > 100 ? 2 : 1, tokens));
      if (s.streams.empty()) {
        EXPECT_EQ(s.refused.why, Refusal::kAnswersFull);
        EXPECT_GT(s.refused.needed, s.refused.available);
        break;
      }
      streams.insert(streams.end(), s.streams.begin(), s.streams.end());
      bed.loop->step();
    }
  }
  return streams;
}

TEST(AnswersHeld, ThePlanIsWhatTheyComeToWhenNobodyReads) {
  AnswerBed bed(narrow());
  Streams streams = fill(bed);
  bed.run_dry();
  const base::AccountPart full = bed.part();
  EXPECT_EQ(full.planned, bed.engine->info().answer_bytes_max);
  EXPECT_LE(full.peak, full.planned);
  // The smallest that was refused: one token, a page for it and one for its alternatives, and the prompt's
  // scores.
  const uint64_t least =
      TokenStream::bytes(1, sample::kLogprobsMax) + PromptScores::bytes(99, sample::kLogprobsMax);
  EXPECT_GT(full.reserved + least, full.planned) << "what is left is less than the smallest answer";
  EXPECT_EQ(full.reserved, full.peak) << "all have ended, and nothing was read";
  for (size_t i = 0; i < streams.size(); ++i) {
    Answer answer;
    EXPECT_TRUE(drain(*streams[i], answer));
  }
  streams.clear();
  EXPECT_EQ(bed.booked(), 0U);
}

TEST(AnswersHeld, AFinishedAnswerHoldsUntilItIsRead) {
  AnswerBed bed(narrow());
  const auto read = bed.engine->submit(talkative(1, 50)).streams.at(0);
  auto left = bed.engine->submit(talkative(1, 50)).streams.at(0);
  bed.run_dry();
  const uint64_t scores = PromptScores::bytes(99, sample::kLogprobsMax),
                 tokens = TokenStream::bytes_in_use(50, sample::kLogprobsMax);
  EXPECT_EQ(bed.booked(), 2 * (scores + tokens));
  TokenEvent event;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(read->next(event));
  EXPECT_EQ(bed.booked(), 2 * (scores + tokens)) << "the end has not been seen";
  EXPECT_TRUE(read->ended());
  EXPECT_EQ(bed.booked(), 2 * scores + tokens) << "the scores are there as long as the stream";
  EXPECT_TRUE(read->ended());
  EXPECT_FALSE(read->next(event));
  EXPECT_EQ(read->receipt().generated_tokens, 50U);
  sample::Score score;
  EXPECT_TRUE(read->score(99, score));
  left.reset();
  EXPECT_EQ(bed.booked(), scores);
}

// A request that ended early holds what it wrote, and no longer what it might have written.
TEST(AnswersHeld, WhatWillNotBeWrittenIsGivenBackAtTheEnd) {
  AnswerBed bed(narrow());
  Streams streams = fill(bed);
  Request small = greedy(prompt(5, 1), 1);
  small.params.logprobs = -1;
  while (!bed.engine->submit(small).streams.empty()) {
  }
  for (const auto& stream : streams) stream->cancel();
  bed.run_dry();
  EXPECT_GT(bed.booked(), 0U);
  EXPECT_EQ(bed.engine->submit(talkative(2, 100)).streams.size(), 2U) << "with all the others unread";
}

TEST(AnswersHeld, WhatCanNeverFitIsRefusedForGood) {
  LoadRequest load = narrow();
  load.settings.max_queue = 1;
  AnswerBed bed(load);
  const uint64_t most = bed.engine->info().answer_bytes_max;
  Request huge = talkative(4, 0);
  const Submitted s = bed.engine->submit(huge);
  ASSERT_TRUE(s.streams.empty()) << "an idle engine would take it, if there were no bound";
  EXPECT_EQ(s.refused.why, Refusal::kAnswerTooLarge);
  EXPECT_EQ(s.refused.available, most);
  EXPECT_EQ(s.refused.needed, 4 * TokenStream::bytes(256 - 100, sample::kLogprobsMax) +
                                  PromptScores::bytes(99, sample::kLogprobsMax));
  EXPECT_GT(s.refused.needed, most);
  EXPECT_EQ(bed.booked(), 0U);
  // Whatever one sequence is asked to tell fits, at full length.
  EXPECT_EQ(bed.engine->submit(talkative(1, 0)).streams.size(), 1U);
}

TEST(AnswersHeld, BeamsHoldTheirSearchUntilItEnds) {
  AnswerBed bed(narrow());
  Request r = talkative(2, 20);
  r.prompt_logprobs = -1;
  r.beams = BeamSearch{.width = 3};
  const Submitted s = bed.engine->submit(r);
  ASSERT_EQ(s.streams.size(), 2U);
  const sample::BeamRules rules{
      .width = 3, .tokens_max = 20, .row_tokens = sample::beam_tokens_of_row(3, 0), .top = 20};
  const uint64_t search = BeamFamily::bytes(rules), empty = TokenStream::bytes_in_use(0, 20);
  EXPECT_EQ(bed.booked(), search + 2 * empty);
  EXPECT_EQ(s.answer_bytes, search + 2 * TokenStream::bytes(20, 20));
  bed.run_dry();
  EXPECT_EQ(bed.booked(), 2 * TokenStream::bytes_in_use(20, 20)) << "the answers alone";
  Answer answer;
  EXPECT_TRUE(drain(*s.streams[0], answer));
  EXPECT_EQ(answer.ids.size(), 20U);
  EXPECT_EQ(bed.booked(), TokenStream::bytes_in_use(20, 20));
}

TEST(AnswersHeld, AStreamMayOutliveItsEngine) {
  std::shared_ptr<Stream> stream;
  {
    AnswerBed bed(narrow());
    stream = bed.engine->submit(talkative(1, 5)).streams.at(0);
  }
  Answer answer;
  EXPECT_TRUE(drain(*stream, answer));
  EXPECT_EQ(answer.finish, Finish::kInternal);
}

}  // namespace
}  // namespace tally::engine
