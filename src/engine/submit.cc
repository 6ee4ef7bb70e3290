// From a request to sequences in the queue and streams for their answers.
#include "base/clock.h"
#include "base/sha256.h"
#include "engine/loop.h"

#include <algorithm>
#include <cmath>

namespace tally::engine {
namespace {

// Lengths are framed: ("ab", "c") and ("a", "bc") are two namespaces.
kv::Namespace prefix_namespace(const std::string& tenant, const std::string& salt) {
  std::string framed;
  for (const std::string_view part :
       {std::string_view("ns1"), std::string_view(tenant), std::string_view(salt)}) {
    const auto n = static_cast<uint32_t>(part.size());
    for (int i = 0; i < 4; ++i) framed.push_back(static_cast<char>(n >> (8 * i)));
    framed += part;
  }
  const base::Digest digest = base::sha256(framed);
  kv::Namespace ns{};
  for (size_t i = 0; i < digest.size(); ++i) ns[i / 8] |= uint64_t{digest[i]} << (8 * (i % 8));
  return ns;
}

Refusal refusal_of(sched::Refusal why) {
  switch (why) {
    case sched::Refusal::kPromptTooLong:
      return Refusal::kContextLength;
    case sched::Refusal::kPoolTooSmall:
      return Refusal::kPoolTooSmall;
    case sched::Refusal::kTooManyChoices:
      return Refusal::kTooManyChoices;
    case sched::Refusal::kQueueFull:
    case sched::Refusal::kNone:
      break;
  }
  return Refusal::kQueueFull;
}

// What following a constraint keeps of a sequence's tokens.
uint64_t followed_bytes(const Request& request, uint32_t tokens) {
  return request.constraint ? tokens * sample::ConstraintMatcher::token_bytes() : 0;
}

uint8_t best_told(const Request& request) {
  return static_cast<uint8_t>(std::max(0, request.params.logprobs));
}

// Of a request with several beams. `end_ids`: how many the model has.
sample::BeamRules rules_of(const Request& request, uint32_t tokens_max, size_t end_ids) {
  const uint32_t width = request.beams->width;
  return {.width = width,
          .length_penalty = request.beams->length_penalty,
          .stop = request.beams->early_stopping,
          .tokens_max = tokens_max,
          .row_tokens = sample::beam_tokens_of_row(width, end_ids + request.params.stop_ids.size()),
          .top = best_told(request)};
}

}  // namespace

Submitted Loop::submit(Request request) {
  const int64_t now = base::now_us();
  const std::lock_guard lock(mailbox_->mutex);
  if (stopping_ || failed_) return {{}, {Refusal::kStopping, 0, 0, 1}};
  sched::Request wanted;
  wanted.choices = request.beams ? request.beams->width : request.choices;
  wanted.beams = request.beams && wanted.choices > 1;
  wanted.priority = request.priority;
  wanted.tenant = prefix_namespace(request.tenant, {})[0];
  wanted.seq = SeqId{next_seq_};
  wanted.max_tokens = request.max_tokens;
  wanted.prompt_only = request.prompt_only;
  wanted.score_from = request.prompt_logprobs >= 0 ? 1 : 0;
  wanted.prefix_namespace = prefix_namespace(request.tenant, request.salt);
  wanted.arrival = now;
  wanted.deadline = request.deadline_us;
  wanted.prompt = std::move(request.prompt);
  wanted.held = promoter_ != nullptr && wanted.score_from == 0;  // what is scored is computed
  const bool held = wanted.held;
  const kv::Namespace space = wanted.prefix_namespace;
  const auto prompt_tokens = static_cast<uint32_t>(wanted.prompt.size());
  const SeqId first = wanted.seq;
  const double ahead = static_cast<double>(scheduler_.queue_stats().waiting_tokens);
  const double wait_s = rows_per_second_ > 0 ? std::ceil(ahead / rows_per_second_) : 1;
  Refused refused{.retry_after_s = static_cast<uint32_t>(std::clamp(wait_s, 1.0, 60.0))};
  const uint64_t bytes = answer_bytes(request, wanted), room = room_->left();
  const bool fits_alone = bytes <= room_->bytes_max();
  if (bytes > room) {
    refused.why = fits_alone ? Refusal::kAnswersFull : Refusal::kAnswerTooLarge;
    refused.needed = bytes, refused.available = fits_alone ? room : room_->bytes_max();
    return {{}, refused, bytes};
  }
  next_seq_ += wanted.choices;
  const sched::Admission admission = scheduler_.submit(std::move(wanted));
  if (admission.refusal != sched::Refusal::kNone) {
    refused.why = refusal_of(admission.refusal);
    refused.needed = admission.needed, refused.available = admission.available;
    return {{}, refused};
  }
  if (held) promoter_->add(first, space);
  Submitted result = add_sequences(std::move(request), admission, first, prompt_tokens);
  result.answer_bytes = bytes;
  mailbox_->attention = true;
  mailbox_->wake.notify_one();
  return result;
}

// All that one more request may come to hold: its answers and scores until they are read, and where they
// follow a constraint what that keeps until they end. A request without a limit may fill as many contexts as
// it has choices.
uint64_t Loop::answer_bytes(const Request& request, const sched::Request& wanted) const {
  const uint64_t prompt = std::min<uint64_t>(wanted.prompt.size(), parts_.info.max_model_len);
  const auto left = static_cast<uint32_t>(parts_.info.max_model_len - prompt);
  const uint32_t most = request.max_tokens > 0 ? std::min(request.max_tokens, left) : left;
  const uint32_t tokens = request.prompt_only ? 0 : most;
  uint64_t bytes = request.choices * TokenStream::bytes(tokens, best_told(request)) +
                   wanted.choices * followed_bytes(request, tokens);
  if (wanted.beams) bytes += BeamFamily::bytes(rules_of(request, tokens, parts_.end_ids.size()));
  if (request.prompt_logprobs >= 0 && prompt > 0)
    bytes +=
        PromptScores::bytes(static_cast<uint32_t>(prompt - 1), static_cast<uint8_t>(request.prompt_logprobs));
  return bytes;
}

// The sequences of a request that the scheduler took, and their streams.
Submitted Loop::add_sequences(Request request, const sched::Admission& admission, SeqId first,
                              uint32_t prompt_tokens) {
  const int64_t now = base::now_us();
  const bool beams = request.beams && request.beams->width > 1;
  if (request.beams) request.params.temperature = 0, request.params.logprobs = best_told(request);
  const uint8_t top = best_told(request);
  std::shared_ptr<PromptScores> scores;
  if (request.prompt_logprobs >= 0)
    scores = std::make_shared<PromptScores>(prompt_tokens - 1, static_cast<uint8_t>(request.prompt_logprobs),
                                            room_);
  Submitted result;
  for (uint32_t c = 0; c < request.choices; ++c) {
    const SeqId seq = beams ? first : SeqId{raw(first) + c};
    result.streams.push_back(std::make_shared<TokenStream>(seq, StreamSize{admission.max_tokens, top},
                                                           mailbox_, request.notify, room_, scores));
  }
  const uint32_t width = beams ? request.beams->width : request.choices;
  std::shared_ptr<BeamFamily> family;
  if (beams) {
    const sample::BeamRules rules = rules_of(request, admission.max_tokens, parts_.end_ids.size());
    family = std::make_shared<BeamFamily>(rules, first, result.streams, room_);
  }
  const auto params = std::make_shared<const sample::Params>(std::move(request.params));
  for (uint32_t c = 0; c < width; ++c) {
    auto sequence = std::make_unique<Sequence>();
    sequence->beams = family;
    sequence->scores = scores;
    sequence->prompt_only = request.prompt_only;
    if (!beams) sequence->stream = std::static_pointer_cast<TokenStream>(result.streams[c]);
    sequence->params = params;
    sequence->choice = request.first_choice + c;
    sequence->receipt.arrived_us = request.arrived_us == 0 ? now : request.arrived_us;
    sequence->receipt.queued_us = now;
    sequence->receipt.prompt_tokens = prompt_tokens;
    sequence->receipt.seed = params->seed;
    sequence->mark_us = now;
    if (request.constraint) sequence->followed = {room_, followed_bytes(request, admission.max_tokens)};
    sequence->constraint = request.constraint;
    sequences_.emplace(SeqId{raw(first) + c}, std::move(sequence));
  }
  return result;
}

}  // namespace tally::engine
