#pragma once
// The forward pass and the choice of tokens as the engine runs them, timed without HTTP, queue and scheduler.
//
// prefill: one prompt of random ids behind `depth` positions of cache, in pieces of step_tokens rows; the
//          logits of the last row are computed, and a token is chosen from them.
// decode:  `batch` sequences, each with `depth` positions of its own in the cache, generate `decode` tokens:
// a
//          pass over all of them, logits of every row, a greedy choice from each, which is the next pass's
//          input.
//          Their depth may also be the same blocks for all, attended one sequence after the other (kApart) or
//          once for all (kTogether: what the engine does).
// The cache before what is measured is filled by the store kernel with random keys and values: the time of
// attention does not depend on them, and filling it by prefill would take minutes.
// Rounds: everything is measured once a round, so that a drift of the machine meets all measures alike.

#include "base/result.h"
#include "kernels/isa.h"
#include "tensor/kv_layout.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

enum class DepthBlocks : uint8_t { kOwn, kApart, kTogether };
std::string_view depth_blocks_name(DepthBlocks blocks);  // "own", …

struct EngineBenchSettings {
  std::vector<uint32_t> prompts, decodes, batches,
      depths;  // a 0 among prompts or decodes: that one is left out
  std::vector<tensor::KvCodec> codecs;
  std::vector<uint32_t> threads;
  std::vector<DepthBlocks> depth_blocks = {DepthBlocks::kOwn};
  uint32_t repetitions = 5;
  uint32_t step_tokens = 512, block_tokens = 64;
  uint64_t memory_bytes = 0;
  kernels::Isa isa{};
  bool standard_attention = false, tune = true;
};

// One figure: what was measured, and each repetition.
struct EngineMeasure {
  uint32_t prompt = 0, decode = 0;  // one of them is 0
  uint32_t batch = 1, depth = 0, threads = 1;
  tensor::KvCodec codec{};
  DepthBlocks depth_blocks{};
  std::vector<double> seconds;                                                // of each repetition
  double linear_s = 0, attention_s = 0, head_s = 0, other_s = 0, pick_s = 0;  // sums over all of them
  uint64_t bytes =
      0;  // decode: packed weights once a pass, and keys and values once a token; of one repetition

  bool is_prefill() const { return prompt > 0; }
  uint64_t tokens() const { return is_prefill() ? prompt : uint64_t{batch} * decode; }  // of one repetition
};

struct EngineBenchReport {
  std::string file_name, architecture, weight_type;
  uint64_t weight_bytes = 0;  // packed, that one pass reads
  double load_s = 0;
  double huge_share = 1;  // of weights and the first KV pool: what lies in huge pages
  std::vector<EngineMeasure> measures;
};

// Told before each measurement: what comes, and the share done.
using EngineBenchProgress = std::function<void(const EngineMeasure& next, double share)>;
// As model::LoadOptions::progress.
using LoadProgress = std::function<bool(uint64_t done, uint64_t total)>;

// Errors: those of loading; kConfig (depth and tokens beyond the model's context); kUnavailable (memory;
// interrupted()); kBadData (values that are not finite).
base::Result<EngineBenchReport> bench_engine(const std::string& model_path,
                                             const EngineBenchSettings& settings, const LoadProgress& loading,
                                             const EngineBenchProgress& progress);

}  // namespace tally::apps
