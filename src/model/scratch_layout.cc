// Where the buffers of a step lie: those that are never live together share bytes.
#include "model/attend_stage.h"
#include "model/program.h"

#include <algorithm>

namespace tally::model {
namespace {

// Which buffers an instruction reads and writes.
struct Touch {
  bool reads_src = false, reads_dst = false, writes_dst = false;
};
Touch touch(Op op) {
  switch (op) {
    case Op::kEmbed:
    case Op::kEmbedPosition:
      return {false, false, true};
    case Op::kScale:
    case Op::kBias:
    case Op::kExpertBias:
    case Op::kClamp:
    case Op::kRope:
    case Op::kAct:
    case Op::kSoftcap:
      return {false, true, true};
    case Op::kNorm:
    case Op::kAssembleKeys:
    case Op::kLinear:
    case Op::kAttend:
    case Op::kExpertGather:
    case Op::kExpertSum:
    case Op::kGather:
      return {true, false, true};
    case Op::kPanel:
    case Op::kRoute:
      return {true, false, false};
    case Op::kStoreKv:
      return {true, true, false};
    case Op::kAdd:
    case Op::kGateAct:
    case Op::kSigmoidScale:
      return {true, true, true};
  }
  return {};
}

// live[b][s]: buffer b holds a value that stage s reads, writes or must keep.
std::array<std::vector<bool>, kBufs> liveness(const Program& p) {
  std::array<std::vector<bool>, kBufs> live;
  for (auto& row : live) row.assign(p.stages.size(), false);
  std::array<bool, kBufs> needed{};
  for (size_t s = p.stages.size(); s-- > 0;) {
    for (size_t b = 0; b < kBufs; ++b) live[b][s] = needed[b];
    for (uint32_t i = p.stages[s].end; i-- > p.stages[s].begin;) {
      const Instruction& in = p.code[i];
      const Touch t = touch(in.op);
      const auto src = static_cast<size_t>(in.src), dst = static_cast<size_t>(in.dst);
      // A linear reads the panel, not src: panels have their own place.
      const bool reads_src = t.reads_src && in.op != Op::kLinear;
      if (t.writes_dst) live[dst][s] = true, needed[dst] = t.reads_dst;
      if (t.reads_dst) live[dst][s] = true, needed[dst] = true;
      if (reads_src) live[src][s] = true, needed[src] = true;
      if (in.op == Op::kAssembleKeys) {
        constexpr auto kRotated = static_cast<size_t>(Buf::kLatent);
        live[kRotated][s] = true, needed[kRotated] = true;
      }
    }
  }
  return live;
}

size_t round64(size_t n) { return (n + 63) / 64 * 64; }

// Rows of a buffer.
size_t rows_of(size_t buf, const Program& program, const StepLimits& limits) {
  switch (static_cast<Buf>(buf)) {
    case Buf::kHead:
    case Buf::kLogits:
      return limits.logits_rows_max;
    case Buf::kExpertIn:
    case Buf::kExpertGate:
    case Buf::kExpertUp:
    case Buf::kExpertOut:
      return expert_slots(program.moe, limits.rows_max);
    default:
      return limits.rows_max;
  }
}

}  // namespace

size_t expert_slots(const MoeSpec& moe, size_t rows) {
  const size_t used = rows * moe.used;
  return used + std::min<size_t>(moe.experts, used) * 15;
}

ScratchLayout lay_out_scratch(const Program& program, const StepLimits& limits, size_t attend_bytes,
                              size_t threads) {
  ScratchLayout layout;
  std::array<size_t, kBufs> bytes{};
  for (size_t b = 0; b < kBufs; ++b)
    bytes[b] = round64(rows_of(b, program, limits) * program.width[b] * sizeof(float));
  const auto live = liveness(program);
  const auto clash = [&](size_t a, size_t b) {
    for (size_t s = 0; s < program.stages.size(); ++s) {
      if (live[a][s] && live[b][s]) return true;
    }
    return false;
  };
  std::array<size_t, kBufs> order{};
  for (size_t b = 0; b < kBufs; ++b) order[b] = b;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  for (size_t i = 0; i < kBufs; ++i) {
    const size_t b = order[i];
    // Lowest offset that overlaps no placed buffer it clashes with.
    size_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t j = 0; j < i; ++j) {
        const size_t other = order[j];
        const bool overlaps =
            offset < layout.buf[other] + bytes[other] && layout.buf[other] < offset + bytes[b];
        if (overlaps && bytes[b] > 0 && clash(b, other))
          offset = layout.buf[other] + bytes[other], moved = true;
      }
    }
    layout.buf[b] = offset;
    layout.bytes = std::max(layout.bytes, offset + bytes[b]);
  }
  const auto panels = [&](const auto& panel_k, size_t rows, auto& out) {
    for (size_t k = 0; k < kernels::kPanelKinds; ++k) {
      if (panel_k[k] == 0) continue;
      out[k] = layout.bytes;
      layout.bytes += round64(kernels::panel_bytes(static_cast<kernels::PanelKind>(k), rows, panel_k[k]));
    }
  };
  panels(program.panel_k, limits.rows_max, layout.panel);
  panels(program.expert_panel_k, expert_slots(program.moe, limits.rows_max), layout.expert_panel);
  layout.attend_states = layout.bytes;
  layout.attend_states_max = attend_states_max(program, limits, threads);
  layout.bytes += round64(layout.attend_states_max * sizeof(float));
  layout.worker_begin = layout.bytes;
  layout.shared_queries = round64(attend_bytes);
  layout.worker_bytes =
      layout.shared_queries + (layout.attend_states_max == 0 ? 0 : round64(shared_query_bytes(program)));
  layout.bytes += layout.worker_bytes * threads;
  return layout;
}

}  // namespace tally::model
