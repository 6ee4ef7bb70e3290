#pragma once
// A loaded model: immutable packed weights, a flat program, forward(batch, kv, scratch) -> logits.
// Three lifetimes: Model (the process), kv::View (sequences), Scratch (one step).

#include "base/accounts.h"
#include "base/ids.h"
#include "base/pool.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "kernels/tune.h"
#include "kv/view.h"
#include "model/spec.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tally::model {

// Layers whose matrices are read from a file in every pass instead of being kept (--weights stream).
struct StreamOptions {
  uint32_t layers = 0;    // of the model's; 0: all are kept
  std::string directory;  // of the file, which is made at the first load
};
// Since load; zeros where nothing is streamed.
struct StreamStats {
  uint32_t layers = 0;
  uint64_t pass_bytes = 0;  // that a pass reads
  uint64_t read_bytes = 0, passes = 0;
  double read_s = 0;    // in which reads were under way
  double waited_s = 0;  // of passes for bytes
};
// Of a model that is not loaded.
struct StreamSizes {
  size_t kept_bytes = 0, ring_bytes = 0, read_bytes = 0;  // read_bytes: in a pass
};

struct LoadOptions {
  bool dequantize_to_f32 = false;  // the exact mode of the oracle tests: every matrix as F32
  uint32_t context = 0;            // positions of the rope tables; 0: the model's own
  StreamOptions stream = {};
  // Called now and then from the loading thread with bytes packed so far and in all; returning false stops
  // the load.
  std::function<bool(uint64_t done, uint64_t total)> progress;
};

// What one step may ask for: sizes the scratch.
struct StepLimits {
  uint32_t rows_max = 512;
  uint32_t logits_rows_max = 64;
  uint32_t context_max = 0;  // longest sequence
  bool standard_attention = false;
};

// Consecutive rows of a batch that belong to one sequence.
struct Segment {
  uint32_t row_begin = 0, rows = 0;
  uint32_t position = 0;     // of the first row
  uint32_t table_begin = 0;  // into Batch::tables
};

// Flat arrays; non-owning.
struct Batch {
  std::span<const TokenId> tokens;        // [rows]
  std::span<const Segment> segments;      // cover all rows, in order
  std::span<const uint32_t> tables;       // block ids of every segment's sequence
  std::span<const uint32_t> logits_rows;  // rows whose logits are wanted, ascending
  bool cascade = true;  // blocks that several segments begin with are attended once for all: no bit changes
};

// Seconds of the last forward by kind of work.
struct OpTimes {
  double linear_s = 0, attention_s = 0, head_s = 0, other_s = 0;
};

// Buffers of a step, laid out once. Owned by the engine, given to forward.
class Scratch {
 public:
  struct State;

  Scratch();
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  ~Scratch();

  // [logits_rows][vocab] f32, in the order of Batch::logits_rows.
  std::span<float> logits(size_t index) const;
  // [rows]: 1 if the row met a non-finite value; its logits are worthless, other rows are untouched by it.
  std::span<const uint8_t> nonfinite() const;
  const OpTimes& times() const;
  size_t bytes() const;

 private:
  friend class Model;
  std::unique_ptr<State> state_;
};

class Model {
 public:
  // Packs every tensor into the weights account. Errors: kBadData (tensor names and shapes), kIo,
  // kUnavailable (cap).
  static base::Result<Model> load(const gguf::File& file, const kernels::KernelTable& kernels,
                                  const LoadOptions& options, base::ThreadPool& pool,
                                  base::Accounts& accounts);
  // Size functions, before anything is allocated (the plan).
  static base::Result<size_t> packed_bytes(const gguf::File& file, const kernels::KernelTable& kernels,
                                           const LoadOptions& options);
  // Tensors of the file that nothing would read, escaped for people. Errors: as packed_bytes.
  static base::Result<std::vector<std::string>> find_unused_tensors(const gguf::File& file,
                                                                    const kernels::KernelTable& kernels);

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelSpec& spec() const;
  // Bytes of weights that one forward reads.
  uint64_t weight_bytes() const;
  // Operations of the matrices for a row, two for each product; and what a row of logits takes besides.
  uint64_t row_flops() const;
  uint64_t logits_flops() const;
  // SHA-256 of the file, hex (of a split model: of its first shard), and what else decides the bytes of a KV
  // block.
  const std::string& fingerprint() const;
  StreamStats stream_stats() const;
  // Why no pass can be computed any more: streamed layers that could not be read. None: all is well.
  std::optional<base::Error> stream_fault() const;
  // From any thread: the pass under way ends as soon as reads do, with a stream_fault(). Without effect where
  // no layer is streamed.
  void give_up_stream();
  // Tensors of the file that nothing reads, for the model report.
  const std::vector<std::string>& unused_tensors() const;

  base::Result<Scratch> make_scratch(const StepLimits& limits, const std::vector<tensor::KvLayout>& layouts,
                                     size_t threads, base::Accounts& accounts) const;

  // How the kernels walk memory and what rows cost here, measured with the model's own weights (tune.h).
  std::vector<kernels::FormatTuning> measure_tuning(base::ThreadPool& pool, uint32_t budget_ms) const;
  // Walks memory so from now on; false, changing nothing, if a weight type of the model is missing.
  bool set_tuning(std::span<const kernels::FormatTuning> tuning);

  // One pass over all rows of the batch. K and V of the rows are written to the cache, then read back. Rows
  // do not influence each other except through the cache. Allocates nothing. With a stream_fault() all rows
  // are marked as not finite, and nothing that was computed is worth anything.
  void forward(const Batch& batch, const kv::View& kv, Scratch& scratch, base::ThreadPool& pool) const;

  // What a KV codec costs each layer on a text, 0 to 1: the relative squared error of each channel of the
  // layer's attention, over K and V in the codec against the same K and V in f32, in the mean; 1 where a
  // value does not fit the codec. What follows a layer sees the attention over f32. One pass; its memory is
  // booked until it returns. Requires: 1..context tokens, all below the vocabulary. Errors: kUnavailable
  // (cap).
  base::Result<std::vector<double>> kv_damage(std::span<const TokenId> tokens, tensor::KvCodec codec,
                                              base::ThreadPool& pool, base::Accounts& accounts) const;

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A model known by its header alone, asked for sizes again and again: the functions that loading calls.
class Blueprint {
 public:
  // Errors: as Model::packed_bytes.
  static base::Result<Blueprint> read(const gguf::File& file, const kernels::KernelTable& kernels,
                                      const LoadOptions& options, size_t threads);
  Blueprint(Blueprint&&) noexcept;
  Blueprint& operator=(Blueprint&&) noexcept;
  ~Blueprint();

  const ModelSpec& spec() const;
  size_t packed_bytes() const;  // without the rope tables
  // The same by what they are for: (kind, bytes).
  const std::vector<std::pair<std::string, size_t>>& packed_parts() const;
  // With so many layers streamed: up to all of the spec.
  StreamSizes stream_sizes(uint32_t layers) const;
  size_t rope_bytes(uint32_t context) const;
  size_t scratch_bytes(const StepLimits& limits, const std::vector<tensor::KvLayout>& layouts) const;
  size_t score_matrix_bytes(const StepLimits& limits) const;  // of `standard_attention`; 0 without it

 private:
  struct State;
  explicit Blueprint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The KV layout of every layer for a codec, or for one of each layer.
std::vector<tensor::KvLayout> kv_layouts(const ModelSpec& spec, tensor::KvCodec codec, uint32_t block_tokens);
std::vector<tensor::KvLayout> kv_layouts(const ModelSpec& spec, std::span<const tensor::KvCodec> codecs,
                                         uint32_t block_tokens);

}  // namespace tally::model
