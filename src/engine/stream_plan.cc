#include "engine/stream_plan.h"

#include "base/direct_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::engine {
namespace {

constexpr uint32_t kProbeMs = 400;
constexpr uint64_t kPoolShare = 4;  // of what is left, for sequences of a length that nobody asked for

// What the pool must get before layers stay.
uint64_t pool_bytes_wanted(const LoadRequest& request, const Sizes& s, uint64_t left) {
  const Settings& set = request.settings;
  const PoolPrice price(request, s);
  uint64_t blocks = price.blocks_for(s.context());
  if (set.kv_pool_bytes > 0) {
    blocks = set.kv_pool_bytes / s.block_bytes;
  } else if (set.max_model_len == 0) {
    blocks = std::min(blocks, price.blocks_within(left / kPoolShare));
  }
  return price.bytes(std::max(blocks, kPoolBlocksMin));
}

}  // namespace

void choose_streamed(const LoadRequest& request, Sizes& s) {
  if (request.weights.mode != "stream" || s.is_loaded) return;
  const uint32_t layers = s.spec().layers;
  const uint64_t budget =
      request.settings.memory_bytes - std::min(request.settings.memory_bytes, request.constraint_room_bytes);
  const auto left_with = [&](uint32_t streamed) {
    s.load.stream.layers = streamed;
    const uint64_t fixed = fixed_plan(request, s).total_bytes;
    return budget - std::min(budget, fixed);
  };
  const uint64_t wanted = pool_bytes_wanted(request, s, left_with(layers));
  for (uint32_t streamed = 0; streamed < layers; ++streamed)
    if (left_with(streamed) >= wanted) return;
  s.load.stream.layers = layers;
}

std::optional<StreamOutlook> stream_outlook(const LoadRequest& request, const Sizes& s) {
  StreamOutlook out{.layers = s.load.stream.layers, .of_layers = s.spec().layers};
  if (out.layers == 0) return std::nullopt;
  out.pass_bytes = s.blueprint.stream_sizes(out.layers).read_bytes;
  if (const auto rate = base::measure_read_rate(request.model_path, kProbeMs)) {
    out.disk_bytes_per_s = rate->bytes_per_s, out.is_direct = rate->is_direct;
  }
  return out;
}

std::string stream_offer(const LoadRequest& request) {
  if (request.weights.mode == "stream") return "";
  LoadRequest other = request;
  other.weights.mode = "stream";
  const auto plan = plan_memory(other);
  return plan && plan->stream ? "; with --weights stream it fits: " + stream_text(*plan->stream) : "";
}

std::string stream_text(const StreamOutlook& s) {
  const auto mib = [](double bytes) { return bytes / 0x1p20; };
  std::string text = fmt::format("{} of {} layers ({:.1f} MiB) are read from the disk in every pass",
                                 s.layers, s.of_layers, mib(static_cast<double>(s.pass_bytes)));
  if (s.disk_bytes_per_s == 0) return text + ", whose rate is not known";
  return text + fmt::format(
                    ", which gives {:.0f} MiB/s{}: at most {:.3g} passes a second, each a token of every "
                    "running sequence",
                    mib(s.disk_bytes_per_s), s.is_direct ? "" : " (through the page cache)",
                    s.passes_per_s());
}

}  // namespace tally::engine
