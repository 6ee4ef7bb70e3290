#pragma once
// Prompts of ids in, streams of ids out: submit, cancel, run, stop, stats, nothing else. No text, no JSON, no
// sockets.
//
// Threads: submit and cancel from any thread; run() is the engine thread; a Stream is read by one thread at a
// time.

#include "base/ids.h"
#include "base/result.h"
#include "engine/cache_view.h"
#include "engine/stats.h"
#include "engine/step_log.h"
#include "sample/beam.h"
#include "sample/constraint.h"
#include "sample/params.h"
#include "sample/sampler.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::engine {

// A beam search instead of sampling: `width` sequences side by side. Ranking and end: sample/beam.h.
struct BeamSearch {
  uint32_t width = 0;
  float length_penalty = 1;
  sample::EarlyStop early_stopping = sample::EarlyStop::kPresent;
};

struct Request {
  std::vector<TokenId> prompt;  // at least one id, each in the vocabulary
  sample::Params params;
  std::shared_ptr<const sample::Constraint> constraint;  // null: none. Made for max_seqs matchers at once
  int32_t prompt_logprobs = -1;  // scores prompt tokens but the first, with so many best ones each; -1: none
  bool prompt_only = false;      // nothing is generated: the answer ends with kLength; choices is 1, no beams
  uint32_t max_tokens = 0;       // 0: until the context is full, or prompt_only
  uint32_t choices = 1;          // sequences from the one prompt: n, or best_of
  uint32_t first_choice = 0;     // index of the first one's draws (tests)
  std::optional<BeamSearch> beams;  // choices: how many of the best are returned, at most the width
  std::string tenant, salt;         // prefix sharing happens inside one (tenant, salt)
  int64_t arrived_us = 0;           // base::now_us() when the request's head and body were read
  int64_t deadline_us = 0;          // 0: none
  int32_t priority = 0;             // lower goes first
  // Called from the engine thread (or from submit's caller at a refusal) when there is something new to read
  // in one of the streams; must not block.
  std::function<void()> notify;
};

struct TokenEvent {
  TokenId id{};
  bool is_end = false;  // an end id (the model's or the request's): no text
  float logprob = 0;    // if params.logprobs >= 0
  int64_t time_us = 0;  // of the commit
  uint8_t top_count = 0;
  std::array<sample::TokenLogprob, sample::kLogprobsMax> top{};
};

// The account of one sequence. Stage seconds are disjoint: their sum is last_us - queued_us.
struct Receipt {
  int64_t arrived_us = 0, queued_us = 0, scheduled_us = 0, first_token_us = 0, last_us = 0;
  double queue_s = 0, prefill_s = 0, stalled_s = 0, decode_s = 0, sample_s = 0;
  uint32_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint32_t disk_tokens = 0;  // of the cached ones: read from a file for this request
  uint32_t steps = 0, preemptions = 0, recomputed_tokens = 0;
  uint32_t kv_blocks = 0, kv_blocks_shared = 0;
  uint64_t kv_bytes = 0, weight_bytes_read = 0;  // weights: this sequence's share of each step's rows
  uint32_t draft_tokens = 0, accepted_tokens = 0;  // verified, and of them right
  uint64_t seed = 0;
  float cumulative_logprob = 0;  // of beams: the sum over the returned tokens
};

// One sequence's answer. The ring is sized for its max_tokens at submit, so a slow reader never stalls a
// step; what it holds counts as held until the reader has seen the end, or lets go of the stream.
class Stream {
 public:
  virtual ~Stream() = default;
  // Takes the next event, if there is one.
  virtual bool next(TokenEvent& event) = 0;
  // What the model made of the prompt token at `position`, from 1 on, in answer to prompt_logprobs. All are
  // there before the first event, and at an end without a failure. False: not there.
  virtual bool score(uint32_t position, sample::Score& score) const = 0;
  // True once the sequence has ended and every event was taken; then finish() and receipt() hold, and the
  // room of the events is given back.
  virtual bool ended() = 0;
  virtual Finish finish() const = 0;
  virtual const Receipt& receipt() const = 0;
  // Ends the sequence within two steps (Finish::kCancelled). Idempotent; any thread.
  virtual void cancel() = 0;
};

// Why a request was not taken. `needed` and `available` are the arithmetic for the message. kAnswersFull:
// what answers hold until they are read has no room for one more now; kAnswerTooLarge: it never has.
enum class Refusal : uint8_t {
  kQueueFull,
  kAnswersFull,
  kContextLength,
  kPoolTooSmall,
  kTooManyChoices,
  kAnswerTooLarge,
  kStopping
};
struct Refused {
  Refusal why = Refusal::kQueueFull;
  // kContextLength: tokens; kPoolTooSmall: blocks; kAnswersFull, kAnswerTooLarge: bytes; else: sequences
  uint64_t needed = 0, available = 0;
  uint32_t retry_after_s = 1;  // kQueueFull, kAnswersFull, kStopping
};
struct Submitted {
  std::vector<std::shared_ptr<Stream>> streams;  // one a choice, of beams the best first; empty: refused
  Refused refused;
  uint64_t answer_bytes = 0;  // that the answers may come to hold; also of what was refused for that
};

// What start-up tuning chose for a weight type; row_cost[t - 1]: time of t rows over that of one.
struct Tuning {
  std::string type;
  uint32_t prefetch_bytes = 0, chunk_bytes = 0;
  std::vector<double> row_cost;  // to three digits
};

// What this machine can do at most, with the engine's threads and for its weights. 0: not known.
struct StepRoofs {
  double bytes_per_s = 0, ops_per_s = 0;
};

// What the engine is, fixed at start.
struct Info {
  uint64_t vocab_size = 0;
  uint32_t max_model_len = 0, max_seqs = 0, block_tokens = 0, blocks = 0;
  std::string kv_type, isa, model_fingerprint;
  std::vector<Tuning> tuning;
  std::vector<uint32_t> bf16_layers = {};  // those that the KV type does not suit
  std::string architecture = {};
  uint32_t threads = 0;
  StepRoofs roofs = {};
  std::string speculate = "off";
  uint32_t speculate_max = 0;  // drafts of a sequence in a step; 0: none
  uint64_t answer_bytes_max = 0;  // of all answers that are under way, wait, or are not read yet
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual Submitted submit(Request request) = 0;
  // The loop: returns after stop. An error: a step failed, and all streams have ended with kInternal.
  virtual base::Result<void> run() = 0;
  // Refuses new requests at once; running and waiting ones go on until `deadline_us`, then end with
  // kShutdown. Idempotent, the earliest deadline holds. Async-signal-unsafe.
  virtual void stop(int64_t deadline_us) = 0;
  virtual Stats stats() const = 0;
  virtual const Info& info() const = 0;
  // Drops every registered block; returns how many became free.
  virtual uint64_t reset_prefix_cache() = 0;
  // At most `max` events after number `since`; 0: from the oldest there is. For any thread, as block_map.
  virtual KvEvents kv_events(uint64_t since, size_t max) const = 0;
  virtual BlockMap block_map() const = 0;
  // At most `max` steps after number `since`; never waits for the engine thread. Any thread.
  virtual StepPage steps(uint64_t since, size_t max) const = 0;
};

}  // namespace tally::engine
