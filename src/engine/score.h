#pragma once
// Teacher-forced scoring: full rows of logits for texts that are given, read through a KV cache of one codec.
// For evaluation; serving goes through engine.h.
//
// A Scorer holds the weights, a Lane the KV blocks of one codec: several lanes over the same weights score
// the same text side by side, so that no row of logits has to be stored. Threads: one thread calls a Scorer
// and all its lanes; the scorer's pool works for it.

#include "base/accounts.h"
#include "base/ids.h"
#include "base/pool.h"
#include "base/result.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tally::engine {

struct ScoreRequest {
  std::string model_path;
  uint32_t context = 0;  // tokens of the longest sequence
  uint32_t threads = 1;
  std::string isa = "best";
  bool dequantize_to_f32 = false;  // float weights and activations: what is left is the codec's own error
  bool tune = false;               // for those who measure speed (memory.h)
  std::function<bool(uint64_t done, uint64_t total)> progress;  // false stops the load
};

// Deliberate faults, by which an evaluation shows that it would see a real one.
struct LaneFault {
  // Above 0: each value that a pass has stored is then moved by up to half a step of a quantizer of so many
  // bits over [-amax, amax] of its token and head. Requires: an f32 lane.
  double noise_bits = 0;
  bool is_never_read_back = false;  // attention reads an f32 copy, and nothing that the codec stored
};

struct LaneRequest {
  std::string kv_type;
  uint32_t sequences = 1;
  uint64_t pool_tokens = 0;  // of all sequences together; what a fork shares counts once
  LaneFault fault;
};

// What attention has read: a row reads every position that it sees, in every layer.
struct LaneReads {
  uint64_t positions = 0;          // summed over rows and layers
  uint64_t earlier_positions = 0;  // of those: stored by an earlier pass, not by the row's own
  uint64_t bytes = 0;              // each position that some row of a pass sees, once a layer and pass
};

// KV blocks of one codec, and the sequences in them.
class Lane {
 public:
  static constexpr uint32_t kRowsMax = 64;  // of a pass, of all its sequences

  // Consecutive tokens to append to a sequence.
  struct Rows {
    uint32_t sequence = 0;
    std::span<const TokenId> tokens;
    bool wants_every_row = false;  // of logits; else of the last
  };

  virtual ~Lane() = default;

  // One forward pass. K and V of its rows are encoded into the blocks first and attention reads them there,
  // so a row sees nothing but what the codec kept.
  // Requires: 1..kRowsMax rows in all, each sequence once and within the context, room in the pool.
  // Errors: kBadData (a value that is not finite, with its position).
  virtual base::Result<void> feed(std::span<const Rows> rows) = 0;
  // [vocab] of the last feed, in its order; valid until the next.
  virtual std::span<const float> logits(size_t index) const = 0;

  virtual uint32_t length(uint32_t sequence) const = 0;
  // Forgets what comes after the first `length` tokens.
  virtual void truncate(uint32_t sequence, uint32_t length) = 0;
  // Makes `to` begin with what `from` holds: blocks are shared, and copied when one of them is written.
  virtual void fork(uint32_t from, uint32_t to) = 0;
  // Spoils the full blocks of a sequence as they are stored: each gets the next one's bytes. Requires: not
  // shared.
  virtual void spoil(uint32_t sequence) = 0;

  virtual const LaneReads& reads() const = 0;
  virtual uint64_t bytes_per_token() const = 0;
  // The codec in effect, by layer.
  virtual std::vector<std::string> kv_types() const = 0;
};

class Scorer {
 public:
  // Errors: as load_engine; kConfig (a context above the model's). `accounts` outlives it.
  static base::Result<std::unique_ptr<Scorer>> load(const ScoreRequest& request, base::Accounts& accounts);
  virtual ~Scorer() = default;

  // Errors: kConfig (no such codec), kUnavailable (cap). The scorer outlives the lane.
  virtual base::Result<std::unique_ptr<Lane>> make_lane(const LaneRequest& request) = 0;

  // What a codec costs the attention of each layer, 0 to 1, on a text (Model::kv_damage); what follows a
  // layer sees what f32 gave. Requires: 1..context tokens. Errors: as make_lane.
  virtual base::Result<std::vector<double>> layer_damage(const std::string& kv_type,
                                                         std::span<const TokenId> tokens) = 0;

  virtual uint64_t vocab_size() const = 0;
  virtual const std::string& model_fingerprint() const = 0;
  virtual std::string isa() const = 0;
  // For work on rows between passes.
  virtual base::ThreadPool& pool() = 0;
};

// The codecs there are, f32 first.
std::vector<std::string> kv_type_names();
// Tokens that the model was made for.
base::Result<uint32_t> model_context(const std::string& model_path);

// A sequence whose next token is known and not yet fed.
struct Continuation {
  uint32_t sequence = 0;
  TokenId next{};
};
// Continues each greedily (of equals the lower id) by at most `tokens` tokens; an end id ends one and is its
// last token. Requires: at most Lane::kRowsMax. Errors: as feed.
base::Result<std::vector<std::vector<TokenId>>> continue_greedily(Scorer& scorer, Lane& lane,
                                                                  std::span<const Continuation> starts,
                                                                  uint32_t tokens,
                                                                  std::span<const TokenId> end_ids);

}  // namespace tally::engine
