#include "model/weight_pack.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>

namespace tally::model {
namespace {

using base::Error;
using base::Result;

constexpr size_t kPieceBytes = size_t{4} << 20;

using Buffers = PiecePacker::Buffers;

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

PiecePacker::PiecePacker(const gguf::File& file, base::ThreadPool& pool)
    : file_(file), pool_(pool), buffers_(pool.threads()) {}

std::vector<Piece> PiecePacker::cut(std::span<const WeightEntry> entries, int32_t turn) {
  std::vector<Piece> pieces;
  for (const WeightEntry& e : entries) {
    if (e.turn != turn) continue;
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

Result<void> PiecePacker::pack(std::span<const Piece> pieces, std::byte* arena) {
  std::mutex mutex;
  std::optional<Error> failed;  // guarded by mutex
  pool_.parallel_for(pieces.size(), [&](size_t i, size_t worker) {
    const auto result = load_piece(file_, pieces[i], arena, buffers_[worker]);
    if (result) return;
    const std::lock_guard lock(mutex);
    failed = result.error();
  });
  if (failed) return *failed;
  return {};
}

}  // namespace tally::model
