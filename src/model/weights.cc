#include "model/weights.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_set>

namespace tally::model {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

using Size = uint64_t (*)(const ModelSpec&);
using Needed = bool (*)(const ModelSpec&);

uint64_t embedding(const ModelSpec& s) { return s.embedding; }
uint64_t vocab(const ModelSpec& s) { return s.vocab; }
uint64_t q_rows(const ModelSpec& s) { return uint64_t{s.attention.heads} * s.attention.key_dim; }
uint64_t k_rows(const ModelSpec& s) { return uint64_t{s.attention.kv_heads} * s.attention.key_dim; }
uint64_t v_rows(const ModelSpec& s) { return uint64_t{s.attention.kv_heads} * s.attention.value_dim; }
uint64_t o_columns(const ModelSpec& s) { return uint64_t{s.attention.heads} * s.attention.value_dim; }
uint64_t key_dim(const ModelSpec& s) { return s.attention.key_dim; }
uint64_t hidden(const ModelSpec& s) { return s.ffn.hidden; }
uint64_t rope_pairs(const ModelSpec& s) { return s.layer[0].rope.rotated / 2; }
uint64_t one(const ModelSpec&) { return 1; }

bool always(const ModelSpec&) { return true; }
bool never(const ModelSpec&) { return false; }  // optional: its presence switches the feature on
bool untied(const ModelSpec& s) { return !s.tied_output; }
bool qk_norm(const ModelSpec& s) { return s.attention.qk_norm; }
bool sandwich(const ModelSpec& s) { return s.norm.sandwich; }

struct Row {
  Slot slot;
  std::string_view name;  // "{}" is the layer; ".weight" and ".bias" are added
  Size columns, rows;     // dim[0], dim[1] (1: a vector)
  Needed needed;
};

constexpr Row kTable[] = {
    {Slot::kTokenEmbd, "token_embd", embedding, vocab, always},
    {Slot::kOutput, "output", embedding, vocab, untied},
    {Slot::kOutputNorm, "output_norm", embedding, one, always},
    {Slot::kRopeFreqs, "rope_freqs", rope_pairs, one, never},
    {Slot::kAttnNorm, "blk.{}.attn_norm", embedding, one, always},
    {Slot::kAttnQ, "blk.{}.attn_q", embedding, q_rows, always},
    {Slot::kAttnK, "blk.{}.attn_k", embedding, k_rows, always},
    {Slot::kAttnV, "blk.{}.attn_v", embedding, v_rows, always},
    {Slot::kAttnOut, "blk.{}.attn_output", o_columns, embedding, always},
    {Slot::kAttnQNorm, "blk.{}.attn_q_norm", key_dim, one, qk_norm},
    {Slot::kAttnKNorm, "blk.{}.attn_k_norm", key_dim, one, qk_norm},
    {Slot::kPostAttnNorm, "blk.{}.post_attention_norm", embedding, one, sandwich},
    {Slot::kFfnNorm, "blk.{}.ffn_norm", embedding, one, always},
    {Slot::kFfnGate, "blk.{}.ffn_gate", embedding, hidden, always},
    {Slot::kFfnUp, "blk.{}.ffn_up", embedding, hidden, always},
    {Slot::kFfnDown, "blk.{}.ffn_down", hidden, embedding, always},
    {Slot::kPostFfnNorm, "blk.{}.post_ffw_norm", embedding, one, sandwich},
};

// Tensors that files carry and no forward pass reads.
constexpr std::string_view kIgnorable[] = {"rope_freqs.weight", "attn_rot_embd"};

Error bad(std::string message) { return Error{ErrorCode::kBadData, std::move(message)}; }

bool is_float(tensor::DType type) {
  return type == tensor::DType::kF32 || type == tensor::DType::kF16 || type == tensor::DType::kBF16;
}

Result<void> check_shape(const gguf::TensorInfo& t, uint64_t columns, uint64_t rows) {
  if (t.shape.dim == std::array<uint64_t, 4>{columns, rows, 1, 1}) return {};
  return bad(fmt::format("tensor {} at byte {}: shape is {} x {} x {} x {}, the metadata asks for {} x {}",
                         base::escape_for_log(t.name, 64), t.record_offset, t.shape.dim[0], t.shape.dim[1],
                         t.shape.dim[2], t.shape.dim[3], columns, rows));
}

size_t packed_size(const kernels::LinearFormat& format, size_t rows, size_t k) {
  return (rows + kernels::kGroupRows - 1) / kernels::kGroupRows * format.group_bytes(k);
}

class Planner {
 public:
  Planner(const gguf::File& file, const ModelSpec& spec, const kernels::KernelTable& kernels, bool to_f32)
      : file_(file), spec_(spec), kernels_(kernels), to_f32_(to_f32) {}

  Result<WeightPlan> run() {
    for (const Row& row : kTable) {
      const bool per_layer = row.name.find("{}") != std::string_view::npos;
      for (uint32_t layer = 0; layer < (per_layer ? spec_.layers : 1); ++layer) {
        const std::string name =
            per_layer ? fmt::format(fmt::runtime(row.name), layer) : std::string(row.name);
        const gguf::TensorInfo* t = file_.find_tensor(name + ".weight");
        if (t == nullptr && row.needed(spec_)) return bad(fmt::format("tensor {}.weight is missing", name));
        if (t == nullptr) continue;
        TALLY_TRY_VOID(add(row, layer, *t));
        if (const gguf::TensorInfo* bias = file_.find_tensor(name + ".bias");
            bias != nullptr && row.rows != one) {
          TALLY_TRY_VOID(add_vector(row.slot, true, layer, *bias, row.rows(spec_)));
        }
      }
    }
    for (const gguf::TensorInfo& t : file_.tensors()) {
      const bool ignorable =
          std::any_of(std::begin(kIgnorable), std::end(kIgnorable),
                      [&](std::string_view s) { return t.name.find(s) != std::string_view::npos; });
      if (!used_.contains(t.name) && !ignorable) plan_.unused.emplace_back(base::escape_for_log(t.name, 64));
    }
    plan_.bytes += kernels::kTailPadding;
    return std::move(plan_);
  }

 private:
  Result<void> add(const Row& row, uint32_t layer, const gguf::TensorInfo& t) {
    if (row.rows == one) return add_vector(row.slot, false, layer, t, row.columns(spec_));
    TALLY_TRY_VOID(check_shape(t, row.columns(spec_), row.rows(spec_)));
    WeightEntry e;
    e.slot = row.slot, e.layer = layer, e.tensor = &t;
    e.rows = static_cast<uint32_t>(t.shape.dim[1]), e.columns = static_cast<uint32_t>(t.shape.dim[0]);
    e.source = kernels_.find_linear(t.type);
    if (e.source == nullptr) {
      return bad(fmt::format("tensor {} at byte {}: weights of type {} are not supported",
                             base::escape_for_log(t.name, 64), t.record_offset,
                             tensor::dtype_info(t.type).name));
    }
    e.target = to_f32_ ? kernels_.find_linear(tensor::DType::kF32) : e.source;
    const bool gathered_only = row.slot == Slot::kTokenEmbd && !spec_.tied_output;
    e.placement = gathered_only ? Placement::kRows : Placement::kPacked;
    place(e, gathered_only ? t.bytes : packed_size(*e.target, t.shape.dim[1], t.shape.dim[0]));
    return {};
  }

  Result<void> add_vector(Slot slot, bool bias, uint32_t layer, const gguf::TensorInfo& t, uint64_t size) {
    TALLY_TRY_VOID(check_shape(t, size, 1));
    if (!is_float(t.type)) {
      return bad(fmt::format("tensor {} at byte {}: type {}, but a vector must be F32, F16 or BF16",
                             base::escape_for_log(t.name, 64), t.record_offset,
                             tensor::dtype_info(t.type).name));
    }
    WeightEntry e;
    e.slot = slot, e.bias = bias, e.layer = layer, e.tensor = &t, e.source = kernels_.find_linear(t.type);
    e.columns = static_cast<uint32_t>(size);
    place(e, size * sizeof(float));
    return {};
  }

  void place(WeightEntry& e, size_t bytes) {
    e.offset = plan_.bytes, e.bytes = bytes;
    plan_.bytes += (bytes + 63) / 64 * 64;
    used_.insert(e.tensor->name);
    plan_.entries.push_back(e);
  }

  const gguf::File& file_;
  const ModelSpec& spec_;
  const kernels::KernelTable& kernels_;
  const bool to_f32_;
  WeightPlan plan_;
  std::unordered_set<std::string_view> used_;
};

// A piece of one tensor that a worker reads and packs on its own.
struct Piece {
  const WeightEntry* entry = nullptr;
  size_t row_begin = 0, rows = 0;
};

constexpr size_t kPieceBytes = size_t{4} << 20;

std::vector<Piece> cut(const WeightPlan& plan) {
  std::vector<Piece> pieces;
  for (const WeightEntry& e : plan.entries) {
    const size_t rows = e.tensor->shape.dim[1];
    const size_t row_bytes = std::max<size_t>(1, e.tensor->bytes / rows);
    const size_t step =
        std::max<size_t>(1, kPieceBytes / row_bytes / kernels::kGroupRows) * kernels::kGroupRows;
    for (size_t r = 0; r < rows; r += step) pieces.push_back({&e, r, std::min(step, rows - r)});
  }
  return pieces;
}

// Packs rows of GGUF data; the exact mode goes through f32.
void pack_rows(const WeightEntry& e, const std::byte* rows, size_t count, size_t k, std::vector<float>& wide,
               std::byte* out) {
  const size_t row_bytes = tensor::row_bytes(e.tensor->type, k);
  const size_t group_bytes = e.target->group_bytes(k);
  for (size_t r = 0; r < count; r += kernels::kGroupRows, out += group_bytes) {
    const size_t n = std::min(kernels::kGroupRows, count - r);
    const std::byte* group = rows + r * row_bytes;
    if (e.source != e.target) {
      wide.resize(n * k);
      for (size_t i = 0; i < n; ++i) e.source->dequantize(group + i * row_bytes, k, wide.data() + i * k);
      group = reinterpret_cast<const std::byte*>(wide.data());
    }
    e.target->pack(group, n, k, out);
  }
}

Result<void> load_piece(const gguf::File& file, const Piece& piece, std::byte* arena,
                        std::vector<std::byte>& buffer, std::vector<float>& wide) {
  const WeightEntry& e = *piece.entry;
  const size_t k = e.tensor->shape.dim[0];
  const size_t row_bytes = tensor::row_bytes(e.tensor->type, k);
  buffer.resize(piece.rows * row_bytes);
  TALLY_TRY_VOID(file.read_tensor(*e.tensor, piece.row_begin * row_bytes, buffer));
  std::byte* out = arena + e.offset;
  switch (e.placement) {
    case Placement::kVector:
      e.source->dequantize(buffer.data(), k, reinterpret_cast<float*>(out));
      break;
    case Placement::kRows:
      std::copy(buffer.begin(), buffer.end(), out + piece.row_begin * row_bytes);
      break;
    case Placement::kPacked:
      pack_rows(e, buffer.data(), piece.rows, k, wide,
                out + piece.row_begin / kernels::kGroupRows * e.target->group_bytes(k));
      break;
  }
  return {};
}

}  // namespace

Result<WeightPlan> plan_weights(const gguf::File& file, const ModelSpec& spec,
                                const kernels::KernelTable& kernels, bool dequantize_to_f32) {
  return Planner(file, spec, kernels, dequantize_to_f32).run();
}

Result<Weights> Weights::load(const gguf::File& file, WeightPlan plan, const ModelSpec& spec,
                              base::ThreadPool& pool, base::Accounts& accounts,
                              const std::function<bool(uint64_t, uint64_t)>& progress) {
  Weights w = bind(std::move(plan), spec);
  TALLY_TRY(w.arena_, accounts.reserve(base::Account::kWeights, "packed weights", w.plan_.bytes));
  TALLY_TRY_VOID(w.read(file, pool, progress));
  for (WeightEntry& e : w.plan_.entries) e.tensor = nullptr;  // the file may be closed now
  return w;
}

Weights Weights::bind(WeightPlan plan, const ModelSpec& spec) {
  Weights w;
  w.plan_ = std::move(plan);
  w.layers_ = spec.layers;
  w.index_.assign(static_cast<size_t>(Slot::kCount) * 2 * spec.layers, -1);
  for (size_t i = 0; i < w.plan_.entries.size(); ++i) {
    const WeightEntry& e = w.plan_.entries[i];
    w.index_[(static_cast<size_t>(e.slot) * 2 + e.bias) * spec.layers + e.layer] = static_cast<int32_t>(i);
  }
  w.embedding_ = w.find(Slot::kTokenEmbd, false, 0);
  return w;
}

Result<void> Weights::read(const gguf::File& file, base::ThreadPool& pool,
                           const std::function<bool(uint64_t, uint64_t)>& progress) {
  const std::vector<Piece> pieces = cut(plan_);
  const uint64_t total = plan_.bytes;
  std::mutex mutex;
  std::optional<Error> failed;  // guarded by mutex
  std::vector<std::vector<std::byte>> buffers(pool.threads());
  std::vector<std::vector<float>> wides(pool.threads());
  constexpr size_t kBatch = 16;  // pieces between two calls of progress
  uint64_t done = 0;
  for (size_t first = 0; first < pieces.size(); first += kBatch) {
    const size_t n = std::min(kBatch, pieces.size() - first);
    pool.parallel_for(n, [&](size_t i, size_t worker) {
      const auto result = load_piece(file, pieces[first + i], arena_.data(), buffers[worker], wides[worker]);
      if (result) return;
      const std::lock_guard lock(mutex);
      failed = result.error();
    });
    if (failed) return *failed;
    for (size_t i = 0; i < n; ++i) {
      const Piece& p = pieces[first + i];
      done += p.entry->bytes * p.rows / p.entry->tensor->shape.dim[1];
    }
    if (progress && !progress(done, total)) return Error{ErrorCode::kUnavailable, "loading was interrupted"};
  }
  return file.check_unchanged();
}

const WeightEntry* Weights::find(Slot slot, bool bias, uint32_t layer) const {
  const int32_t i = index_[(static_cast<size_t>(slot) * 2 + bias) * layers_ + layer];
  return i < 0 ? nullptr : &plan_.entries[static_cast<size_t>(i)];
}

Matrix Weights::matrix(Slot slot, uint32_t layer) const {
  const WeightEntry* e = find(slot, false, layer);
  if (e == nullptr || e->placement != Placement::kPacked) return {};
  return {e->target, e->rows, e->columns, data(*e)};
}

const float* Weights::vector(Slot slot, uint32_t layer) const {
  const WeightEntry* e = find(slot, false, layer);
  return e == nullptr ? nullptr : reinterpret_cast<const float*>(data(*e));
}

const float* Weights::bias(Slot slot, uint32_t layer) const {
  const WeightEntry* e = find(slot, true, layer);
  return e == nullptr ? nullptr : reinterpret_cast<const float*>(data(*e));
}

void Weights::embed(uint32_t id, float* out) const {
  const WeightEntry& e = *embedding_;
  const std::byte* rows = data(e);
  if (e.placement == Placement::kRows) {
    e.source->dequantize(rows + id * tensor::row_bytes(e.source->type, e.columns), e.columns, out);
    return;
  }
  const size_t group = id / kernels::kGroupRows;
  e.target->unpack_row(rows + group * e.target->group_bytes(e.columns), id % kernels::kGroupRows, e.columns,
                       out);
}

uint64_t Weights::matrix_bytes() const {
  uint64_t bytes = 0;
  for (const WeightEntry& e : plan_.entries) bytes += e.placement == Placement::kPacked ? e.bytes : 0;
  return bytes;
}

}  // namespace tally::model
