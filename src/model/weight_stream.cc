// Layers that are read in every pass: which, where their bytes lie, and the file they come from.
#include "base/check.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/weight_pack.h"
#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace tally::model {
namespace {

using base::DirectFile;
using base::Error;
using base::ErrorCode;
using base::Result;

constexpr size_t kLine = 64;                        // entries begin at multiples of it
constexpr std::string_view kPackedAs = "packed 1";  // another number for another layout of any packed type

size_t padded(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Evenly over the model, so that the disk has time to read while layers that stay are computed.
bool is_streamed(uint64_t layer, uint64_t layers, uint64_t of_layers) {
  return (layer + 1) * layers / of_layers > layer * layers / of_layers;
}

bool is_of_layer(const WeightEntry& e) {
  return e.placement == Placement::kPacked && e.slot != Slot::kTokenEmbd && e.slot != Slot::kOutput;
}

// Reads every slice once. Errors: that of the first that is damaged.
Result<void> check_slices(const LayerFile& file, std::span<std::byte> buffer) {
  for (uint32_t i = 0; i < file.slices(); ++i)
    TALLY_TRY_VOID(file.read(i, buffer.first(file.slice_bytes(i))));
  return {};
}

}  // namespace

size_t WeightPlan::read_bytes() const {
  size_t bytes_read = 0;
  for (const StreamSlice& slice : slices) bytes_read += slice.bytes;
  return bytes_read;
}

void stream_layers(WeightPlan& plan, uint32_t layers, uint32_t of_layers) {
  TALLY_CHECK(layers <= of_layers && plan.slices.empty(), "layers to stream", layers, of_layers);
  if (layers == 0) return;
  std::vector<int32_t> turn_of(of_layers, -1);
  for (uint32_t layer = 0; layer < of_layers; ++layer) {
    if (!is_streamed(layer, layers, of_layers)) continue;
    turn_of[layer] = static_cast<int32_t>(plan.slices.size());
    plan.slices.push_back({layer, 0});
  }
  plan.bytes = 0;
  for (WeightEntry& e : plan.entries) {
    if (is_of_layer(e)) e.turn = turn_of[e.layer];
    size_t& bytes = e.turn < 0 ? plan.bytes : plan.slices[static_cast<size_t>(e.turn)].bytes;
    e.offset = bytes, bytes += padded(e.bytes);
  }
  plan.bytes += kernels::kTailPadding;
  for (StreamSlice& slice : plan.slices) {
    slice.bytes = DirectFile::align(slice.bytes);
    plan.slot_bytes = std::max(plan.slot_bytes, slice.bytes + kernels::kTailPadding);
  }
  const uint32_t slots = LayerRing::slots_for(layers);
  for (WeightEntry& e : plan.entries)
    if (e.turn >= 0) e.offset += static_cast<uint32_t>(e.turn) % slots * plan.slot_bytes;
}

Result<std::span<const std::byte>> Weights::pack_slice(const gguf::File& file, uint32_t slice,
                                                       base::ThreadPool& pool) {
  const std::span out(slot(slice), plan_.slices[slice].bytes);
  std::fill(out.begin(), out.end(), std::byte{0});  // what is between entries
  PiecePacker packer(file, pool);
  TALLY_TRY_VOID(packer.pack(packer.cut(plan_.entries, static_cast<int32_t>(slice)), ring_arena_.data()));
  return std::span<const std::byte>(out);
}

Result<LayerFile> Weights::find_or_make(const gguf::File& file, const StreamPlace& place,
                                        base::ThreadPool& pool) {
  std::error_code failed;
  std::filesystem::create_directories(place.directory, failed);
  if (failed) {
    return Error{ErrorCode::kIo, fmt::format("--weights-dir {}: cannot be made: {}",
                                             base::escape_for_log(place.directory), failed.message())};
  }
  std::string all = fmt::format("{} {}", kPackedAs, place.fingerprint);
  LayerFile::Shape shape;
  for (const StreamSlice& slice : plan_.slices) {
    all += fmt::format(" {}:{}", slice.layer, slice.bytes);
    shape.slice_bytes.push_back(slice.bytes);
  }
  shape.fingerprint = base::sha256(all);
  // A name for each model and tier: another --memory replaces what is there.
  constexpr size_t kNameDigits = 16;
  const std::string path = fmt::format("{}/weights-{}", place.directory,
                                       base::hex(base::sha256(place.fingerprint)).substr(0, kNameDigits));
  const std::span ring(ring_arena_.data(), plan_.ring_bytes());
  TALLY_TRY(std::optional<LayerFile> kept, LayerFile::open(path, shape));
  if (kept) {
    const auto checked = check_slices(*kept, ring);
    if (checked) return std::move(*kept);
    base::log_warn("--weights stream: {}; the file is made again", checked.error().message);
  }
  base::log_info("weights: {} takes {} bytes and is made once", base::escape_for_log(path),
                 plan_.read_bytes());
  return LayerFile::make(path, shape, [&](uint32_t slice) { return pack_slice(file, slice, pool); });
}

Result<void> Weights::start_stream(const gguf::File& file, const StreamPlace& place, base::ThreadPool& pool,
                                   base::Accounts& accounts) {
  TALLY_TRY(ring_arena_, accounts.reserve(base::Account::kWeights, "ring", plan_.ring_bytes()));
  TALLY_TRY(LayerFile layers, find_or_make(file, place, pool));
  TALLY_TRY_VOID(file.check_unchanged());
  for (WeightEntry& e : plan_.entries) e.tensor = nullptr;  // the file may be closed now
  if (!layers.is_direct()) {
    base::log_warn(
        "--weights stream: {} is on a file system without O_DIRECT: reads go through the page cache",
        base::escape_for_log(layers.path()));
  }
  const std::span ring(ring_arena_.data(), plan_.ring_bytes());
  ring_ = std::make_unique<LayerRing>(std::move(layers), ring, plan_.slot_bytes);
  return {};
}

}  // namespace tally::model
