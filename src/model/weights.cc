#include "model/weights.h"

#include "base/check.h"
#include "model/weight_pack.h"

#include <algorithm>

namespace tally::model {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

}  // namespace

Result<Weights> Weights::load(const gguf::File& file, WeightPlan plan, const ModelSpec& spec,
                              base::ThreadPool& pool, base::Accounts& accounts,
                              const std::function<bool(uint64_t, uint64_t)>& progress) {
  Weights w = bind(std::move(plan), spec);
  TALLY_TRY(w.arena_, accounts.reserve(base::Account::kWeights, "packed weights", w.plan_.bytes,
                                       base::FirstTouch::kByOwner));
  TALLY_TRY_VOID(w.read(file, pool, progress));
  for (WeightEntry& e : w.plan_.entries)
    if (e.turn < 0) e.tensor = nullptr;  // the file may be closed now
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
  const uint64_t total = plan_.bytes;
  PiecePacker packer(file, pool);
  const std::vector<Piece> pieces = packer.cut(plan_.entries, -1);
  constexpr size_t kBatch = 16;  // pieces between two calls of progress
  uint64_t done = 0;
  for (size_t first = 0; first < pieces.size(); first += kBatch) {
    const std::span batch(pieces.data() + first, std::min(kBatch, pieces.size() - first));
    TALLY_TRY_VOID(packer.pack(batch, arena_.data()));
    for (const Piece& p : batch)
      done += p.entry->bytes * p.rows / (p.entry->placement == Placement::kVector ? 1 : p.entry->rows);
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
    if (e.placement == Placement::kPacked && e.turn < 0)
      all.push_back({e.target, data(e), e.rows, e.columns});
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
