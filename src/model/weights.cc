#include "model/weights.h"

#include "base/check.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>

namespace tally::model {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

// A piece of one entry that a worker reads and packs on its own.
struct Piece {
  const WeightEntry* entry = nullptr;
  size_t row_begin = 0, rows = 0;
};

constexpr size_t kPieceBytes = size_t{4} << 20;

// What a worker reads into, grown as needed.
struct Buffers {
  std::vector<std::byte> file;
  std::vector<float> wide, turned;
};

std::vector<Piece> cut(const WeightPlan& plan) {
  std::vector<Piece> pieces;
  for (const WeightEntry& e : plan.entries) {
    if (e.placement == Placement::kVector) {
      pieces.push_back({&e, 0, 1});
      continue;
    }
    const size_t row_bytes =
        std::max<size_t>(1, tensor::row_bytes(e.source->type, e.transposed ? 32 : e.columns));
    size_t step = std::max<size_t>(1, kPieceBytes / row_bytes / kernels::kGroupRows) * kernels::kGroupRows;
    // Whole slabs of the tensor are turned at once: as many as fill groups.
    if (e.transposed) step = std::lcm(kernels::kGroupRows, e.tensor->shape.dim[0]);
    for (size_t r = 0; r < e.rows; r += step) pieces.push_back({&e, r, std::min<size_t>(step, e.rows - r)});
  }
  return pieces;
}

// Reads rows (of a vector: values) [begin, begin + count) of the entry, as the file has them, one run after
// the other.
Result<void> read_rows(const gguf::File& file, const WeightEntry& e, size_t begin, size_t count,
                       std::vector<std::byte>& out) {
  const size_t row_bytes =
      tensor::row_bytes(e.source->type, e.placement == Placement::kVector ? 1 : e.columns);
  out.resize(count * row_bytes);
  for (size_t done = 0; done < count;) {
    const uint64_t row = begin + done;
    const size_t left = e.map.run == UINT64_MAX ? count - done : e.map.run - row % e.map.run;
    const size_t n = std::min(count - done, left);
    TALLY_TRY_VOID(file.read_tensor(*e.tensor, e.map.at(row) * row_bytes,
                                    std::span(out).subspan(done * row_bytes, n * row_bytes)));
    done += n;
  }
  return {};
}

// Packs rows; the exact mode goes through f32.
void pack_rows(const WeightEntry& e, const std::byte* rows, size_t count, std::vector<float>& wide,
               std::byte* out) {
  const size_t row_bytes = tensor::row_bytes(e.source->type, e.columns);
  const size_t group_bytes = e.target->group_bytes(e.columns);
  for (size_t r = 0; r < count; r += kernels::kGroupRows, out += group_bytes) {
    const size_t n = std::min(kernels::kGroupRows, count - r);
    const std::byte* group = rows + r * row_bytes;
    if (e.source != e.target) {
      wide.resize(n * e.columns);
      for (size_t i = 0; i < n; ++i)
        e.source->dequantize(group + i * row_bytes, e.columns, wide.data() + i * e.columns);
      group = reinterpret_cast<const std::byte*>(wide.data());
    }
    e.target->pack(group, n, e.columns, out);
  }
}

// Packs slabs [n][columns] of the tensor as n rows of `columns` values each.
Result<void> pack_turned(const gguf::File& file, const Piece& piece, Buffers& b, std::byte* out) {
  const WeightEntry& e = *piece.entry;
  const size_t n = e.tensor->shape.dim[0], k = e.columns;
  const size_t row_bytes = tensor::row_bytes(e.source->type, n), slab_bytes = k * row_bytes;
  b.file.resize(piece.rows / n * slab_bytes);
  TALLY_TRY_VOID(file.read_tensor(*e.tensor, piece.row_begin / n * slab_bytes, b.file));
  b.turned.resize(piece.rows * k), b.wide.resize(n);
  for (size_t slab = 0; slab < piece.rows / n; ++slab) {
    for (size_t c = 0; c < k; ++c) {
      e.source->dequantize(b.file.data() + slab * slab_bytes + c * row_bytes, n, b.wide.data());
      for (size_t r = 0; r < n; ++r) b.turned[(slab * n + r) * k + c] = b.wide[r];
    }
  }
  for (size_t r = 0; r < piece.rows; r += kernels::kGroupRows, out += e.target->group_bytes(k)) {
    const auto* rows = reinterpret_cast<const std::byte*>(b.turned.data() + r * k);
    e.target->pack(rows, std::min(kernels::kGroupRows, piece.rows - r), k, out);
  }
  return {};
}

Result<void> load_piece(const gguf::File& file, const Piece& piece, std::byte* arena, Buffers& b) {
  const WeightEntry& e = *piece.entry;
  std::byte* out = arena + e.offset;
  switch (e.placement) {
    case Placement::kVector: {  // the map counts values
      const size_t n = size_t{e.rows} * e.columns;
      TALLY_TRY_VOID(read_rows(file, e, 0, n, b.file));
      e.source->dequantize(b.file.data(), n, reinterpret_cast<float*>(out));
      break;
    }
    case Placement::kRows:
      TALLY_TRY_VOID(read_rows(file, e, piece.row_begin, piece.rows, b.file));
      std::copy(b.file.begin(), b.file.end(),
                out + piece.row_begin * tensor::row_bytes(e.source->type, e.columns));
      break;
    case Placement::kPacked:
      out += piece.row_begin / kernels::kGroupRows * e.target->group_bytes(e.columns);
      if (e.transposed) return pack_turned(file, piece, b, out);
      TALLY_TRY_VOID(read_rows(file, e, piece.row_begin, piece.rows, b.file));
      pack_rows(e, b.file.data(), piece.rows, b.wide, out);
      break;
  }
  return {};
}

}  // namespace

Result<Weights> Weights::load(const gguf::File& file, WeightPlan plan, const ModelSpec& spec,
                              base::ThreadPool& pool, base::Accounts& accounts,
                              const std::function<bool(uint64_t, uint64_t)>& progress) {
  Weights w = bind(std::move(plan), spec);
  TALLY_TRY(w.arena_, accounts.reserve(base::Account::kWeights, "packed weights", w.plan_.bytes,
                                       base::FirstTouch::kByOwner));
  TALLY_TRY_VOID(w.read(file, pool, progress));
  for (WeightEntry& e : w.plan_.entries) e.tensor = nullptr;  // the file may be closed now
  return w;
}

Weights Weights::bind(WeightPlan plan, const ModelSpec& spec) {
  Weights w;
  w.plan_ = std::move(plan);
  w.layers_ = spec.layers, w.experts_used_ = std::max(1u, spec.moe.used);
  w.index_.assign(static_cast<size_t>(Slot::kCount) * 2 * spec.layers, -1);
  for (size_t i = 0; i < w.plan_.entries.size(); ++i) {
    const WeightEntry& e = w.plan_.entries[i];
    if (e.expert == 0)
      w.index_[(static_cast<size_t>(e.slot) * 2 + e.bias) * spec.layers + e.layer] = static_cast<int32_t>(i);
  }
  return w;
}

Result<void> Weights::read(const gguf::File& file, base::ThreadPool& pool,
                           const std::function<bool(uint64_t, uint64_t)>& progress) {
  const std::vector<Piece> pieces = cut(plan_);
  const uint64_t total = plan_.bytes;
  std::mutex mutex;
  std::optional<Error> failed;  // guarded by mutex
  std::vector<Buffers> buffers(pool.threads());
  constexpr size_t kBatch = 16;  // pieces between two calls of progress
  uint64_t done = 0;
  for (size_t first = 0; first < pieces.size(); first += kBatch) {
    const size_t n = std::min(kBatch, pieces.size() - first);
    pool.parallel_for(n, [&](size_t i, size_t worker) {
      const auto result = load_piece(file, pieces[first + i], arena_.data(), buffers[worker]);
      if (result) return;
      const std::lock_guard lock(mutex);
      failed = result.error();
    });
    if (failed) return *failed;
    for (size_t i = 0; i < n; ++i) {
      const Piece& p = pieces[first + i];
      done += p.entry->bytes * p.rows / (p.entry->placement == Placement::kVector ? 1 : p.entry->rows);
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
  return {e->target, e->rows, e->columns, data(*e), (e->bytes + 63) / 64 * 64};
}

std::vector<kernels::TuneMatrix> Weights::matrices() const {
  std::vector<kernels::TuneMatrix> all;
  for (const WeightEntry& e : plan_.entries)
    if (e.placement == Placement::kPacked) all.push_back({e.target, data(e), e.rows, e.columns});
  return all;
}

const float* Weights::vector(Slot slot, uint32_t layer) const {
  const WeightEntry* e = find(slot, false, layer);
  return e == nullptr ? nullptr : reinterpret_cast<const float*>(data(*e));
}

const float* Weights::bias(Slot slot, uint32_t layer) const {
  const WeightEntry* e = find(slot, true, layer);
  return e == nullptr ? nullptr : reinterpret_cast<const float*>(data(*e));
}

void Weights::row(Slot slot, uint32_t id, float* out) const {
  const WeightEntry& e = *find(slot, false, 0);
  TALLY_CHECK(id < e.rows, "row is beyond the table", id, e.rows);
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
  for (const WeightEntry& e : plan_.entries) {
    const bool read = e.placement == Placement::kPacked && e.expert < experts_used_;
    bytes += read ? e.bytes : 0;
  }
  return bytes;
}

uint64_t Weights::matrix_values(bool is_tied, bool of_logits) const {
  const Slot head = is_tied ? Slot::kTokenEmbd : Slot::kOutput;
  uint64_t values = 0;
  for (const WeightEntry& e : plan_.entries) {
    const bool read = e.placement == Placement::kPacked && e.expert < experts_used_;
    if (read && of_logits == (e.slot == head)) values += uint64_t{e.rows} * e.columns;
  }
  return values;
}

}  // namespace tally::model
