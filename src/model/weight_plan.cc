// Binds the table of tensor names to a file.
#include "base/utf8.h"
#include "model/weight_table.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_set>

namespace tally::model {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

Error bad(std::string message) { return Error{ErrorCode::kBadData, std::move(message)}; }

bool is_float(tensor::DType type) {
  return type == tensor::DType::kF32 || type == tensor::DType::kF16 || type == tensor::DType::kBF16;
}

Result<void> check_shape(const gguf::TensorInfo& t, const std::array<uint64_t, 3>& wanted) {
  if (t.shape.dim == std::array<uint64_t, 4>{wanted[0], wanted[1], wanted[2], 1}) return {};
  return bad(fmt::format("tensor {} at byte {}: shape is {} x {} x {} x {}, the metadata asks for {} x {}{}",
                         base::escape_for_log(t.name, 64), t.record_offset, t.shape.dim[0], t.shape.dim[1],
                         t.shape.dim[2], t.shape.dim[3], wanted[0], wanted[1],
                         wanted[2] == 1 ? "" : fmt::format(" x {}", wanted[2])));
}

size_t packed_size(const kernels::LinearFormat& format, size_t rows, size_t k) {
  return (rows + kernels::kGroupRows - 1) / kernels::kGroupRows * format.group_bytes(k);
}

class Planner {
 public:
  Planner(const gguf::File& file, const ModelSpec& spec, const kernels::KernelTable& kernels, bool to_f32)
      : file_(file), spec_(spec), kernels_(kernels), to_f32_(to_f32) {}

  Result<WeightPlan> run() {
    for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
      for (const WeightRow& row : weight_table()) {
        if (layer == 0 || row.per_layer()) TALLY_TRY_VOID(bind(row, layer));
      }
      for (const WeightRow& row : weight_table()) {
        if ((layer == 0 || row.per_layer()) && row.when(spec_, layer) == Need::kMust &&
            !is_bound(row.slot, layer))
          return bad(fmt::format("tensor {} is missing", file_name(row, layer)));
      }
    }
    TALLY_TRY_VOID(check_companions());
    for (const gguf::TensorInfo& t : file_.tensors()) {
      if (used_.contains(t.name) || is_ignorable(t.name)) continue;
      TALLY_TRY_VOID(check_unread(t));
      plan_.unused.emplace_back(base::escape_for_log(t.name, 64));
    }
    plan_.bytes += kernels::kTailPadding;
    return std::move(plan_);
  }

 private:
  static std::string file_name(const WeightRow& row, uint32_t layer) {
    std::string name = fmt::format(fmt::runtime(row.name), layer);
    return name.ends_with(".bias") ? name : name + ".weight";
  }
  bool is_bound(Slot slot, uint32_t layer) const {
    return bound_.contains(layer * static_cast<uint32_t>(Slot::kCount) + static_cast<uint32_t>(slot));
  }

  static bool is_of_experts(const WeightRow& row) {
    return row.part == Part::kExperts || row.part == Part::kGateOfExperts || row.part == Part::kUpOfExperts;
  }

  // What switches a feature on does so in every layer of a kind, or was lost in one.
  Result<void> check_companions() const {
    if (is_bound(Slot::kRopeLong, 0) != is_bound(Slot::kRopeShort, 0))
      return bad("of the tensors rope_factors_long.weight and rope_factors_short.weight one is missing");
    for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
      if (is_bound(Slot::kAttnQNorm, layer) != is_bound(Slot::kAttnKNorm, layer))
        return bad(
            fmt::format("of the tensors blk.{0}.attn_q_norm.weight and blk.{0}.attn_k_norm.weight one "
                        "is missing",
                        layer));
    }
    const auto index = [](Slot slot, bool bias) { return static_cast<uint32_t>(slot) * 2 + bias; };
    std::vector<const WeightEntry*> some(index(Slot::kCount, false));
    std::unordered_set<uint32_t> there;  // [slot][bias][layer]
    for (const WeightEntry& e : plan_.entries) {
      some[index(e.slot, e.bias)] = &e;
      there.insert(index(e.slot, e.bias) * spec_.layers + e.layer);
    }
    for (const WeightRow& row : weight_table()) {
      for (uint32_t i = 0; row.per_layer() && i < spec_.layers * 2; ++i) {
        const uint32_t layer = i / 2, key = index(row.slot, i % 2 == 1);
        if (some[key] == nullptr || row.when(spec_, layer) == Need::kNo ||
            there.contains(key * spec_.layers + layer))
          continue;
        const std::string_view name = some[key]->tensor->name;  // blk.N.…
        return bad(fmt::format("tensor blk.{}{} is missing: layer {} has it", layer,
                               base::escape_for_log(name.substr(name.find('.', 4)), 64), some[key]->layer));
      }
    }
    return {};
  }

  // A tensor of the forward pass that nothing reads means that the pass would be another model's: but for one
  // whose slot was taken from elsewhere.
  Result<void> check_unread(const gguf::TensorInfo& t) const {
    constexpr std::string_view kBlock = "blk.";
    uint32_t layer = 0;
    if (t.name.starts_with(kBlock)) {
      const auto end = std::from_chars(t.name.data() + kBlock.size(), t.name.data() + t.name.size(), layer);
      if (end.ec != std::errc{} || layer >= spec_.layers) return {};
    } else if (!t.name.starts_with("output") && !t.name.starts_with("token_embd")) {
      return {};
    }
    for (const WeightRow& row : weight_table()) {
      const bool has_bias = row.part != Part::kVector && row.part != Part::kHeadNorm;
      if (row.when(spec_, layer) == Need::kNo) continue;
      if (file_name(row, layer) == t.name || (has_bias && find_bias(row, layer) == &t)) return {};
    }
    return bad(
        fmt::format("tensor {} at byte {}: the architecture {} has no such tensor, a pass without it "
                    "would be wrong",
                    base::escape_for_log(t.name, 64), t.record_offset, spec_.architecture));
  }

  // Takes the row's tensor, if it is there and the slot is still open.
  Result<void> bind(const WeightRow& row, uint32_t layer) {
    if (row.when(spec_, layer) == Need::kNo || is_bound(row.slot, layer)) return {};
    const std::string name = file_name(row, layer);
    const gguf::TensorInfo* t = file_.find_tensor(name);
    if (t == nullptr) return {};
    const WeightPlace place = place_of(row, spec_, layer);
    const bool fused_gate = row.part == Part::kGate || row.part == Part::kUp;
    if (fused_gate && t->shape.dim[1] != place.shape[1]) return {};
    const bool whole = row.part == Part::kWhole || row.part == Part::kVector;
    if (whole && used_.contains(t->name)) return {};
    bound_.insert(layer * static_cast<uint32_t>(Slot::kCount) + static_cast<uint32_t>(row.slot));
    used_.insert(t->name);
    if (row.part == Part::kHeadNorm) {
      TALLY_TRY_VOID(add_head_norm(row, layer, *t));
    } else if (row.part == Part::kVector) {
      TALLY_TRY_VOID(check_shape(*t, place.shape));
      TALLY_TRY_VOID(add_vector(row.slot, false, layer, *t, {row.columns(spec_, layer), 1}));
    } else {
      TALLY_TRY_VOID(check_shape(*t, place.shape));
      TALLY_TRY_VOID(add_matrix(row, layer, *t, place));
    }
    return bind_bias(row, layer);
  }

  const gguf::TensorInfo* find_bias(const WeightRow& row, uint32_t layer) const {
    std::string name = file_name(row, layer);
    if (!name.ends_with(".weight")) return nullptr;
    name.replace(name.size() - std::string_view("weight").size(), std::string::npos, "bias");
    return file_.find_tensor(name);
  }

  // The bias beside a weight, if there is one: of norms only where they have a mean to shift. Of a matrix it
  // may stand beside another name of the slot: matrices may be fused where their biases are not.
  Result<void> bind_bias(const WeightRow& row, uint32_t layer) {
    if (row.part == Part::kHeadNorm || (row.part == Part::kVector && spec_.norm.kind == NormKind::kRms))
      return {};
    if (const gguf::TensorInfo* t = find_bias(row, layer); t != nullptr) {
      TALLY_TRY_VOID(check_shape(*t, bias_shape(row, layer)));
      return add_bias(row, layer, *t);
    }
    if (row.part == Part::kVector) return {};
    for (const WeightRow& other : weight_table()) {
      if (other.slot != row.slot || other.when(spec_, layer) == Need::kNo) continue;
      const gguf::TensorInfo* t = find_bias(other, layer);
      if (t != nullptr && check_shape(*t, bias_shape(other, layer))) return add_bias(other, layer, *t);
    }
    return {};
  }
  std::array<uint64_t, 3> bias_shape(const WeightRow& row, uint32_t layer) const {
    if (row.part == Part::kVector) return {row.columns(spec_, layer), 1, 1};
    return {place_of(row, spec_, layer).shape[1], is_of_experts(row) ? spec_.moe.experts : 1, 1};
  }
  Result<void> add_bias(const WeightRow& row, uint32_t layer, const gguf::TensorInfo& t) {
    used_.insert(t.name);
    const uint64_t one = row.part == Part::kVector ? row.columns(spec_, layer) : row.rows(spec_, layer);
    const uint64_t size = is_of_experts(row) ? one * spec_.moe.experts : one;
    return add_vector(row.slot, true, layer, t, {size, 1}, place_of(row, spec_, layer).map);
  }

  Result<void> add_matrix(const WeightRow& row, uint32_t layer, const gguf::TensorInfo& t,
                          const WeightPlace& where) {
    WeightEntry e;
    e.slot = row.slot, e.layer = layer, e.tensor = &t, e.map = where.map;
    e.rows = static_cast<uint32_t>(row.rows(spec_, layer));
    e.columns = static_cast<uint32_t>(row.columns(spec_, layer));
    e.source = kernels_.find_linear(t.type);
    if (e.source == nullptr) {
      return bad(fmt::format("tensor {} at byte {}: weights of type {} are not supported",
                             base::escape_for_log(t.name, 64), t.record_offset,
                             tensor::dtype_info(t.type).name));
    }
    e.transposed = row.part == Part::kKTransposed;
    e.target = to_f32_ || e.transposed ? kernels_.find_linear(tensor::DType::kF32) : e.source;
    const bool gathered_only =
        (row.slot == Slot::kTokenEmbd && !spec_.tied_output) || row.slot == Slot::kPositionEmbd;
    e.placement = gathered_only ? Placement::kRows : Placement::kPacked;
    const size_t bytes = gathered_only ? t.bytes : packed_size(*e.target, e.rows, e.columns);
    for (uint32_t x = 0; x < (is_of_experts(row) ? spec_.moe.experts : 1); ++x) {
      e.expert = x, e.map.first = where.map.first + x * where.shape[1];
      place(e, bytes);
    }
    return {};
  }

  // One vector for every head, one for each, or one over all heads together.
  Result<void> add_head_norm(const WeightRow& row, uint32_t layer, const gguf::TensorInfo& t) {
    const uint64_t all = row.columns(spec_, layer), dim = spec_.attention.key_dim;
    const std::array<uint64_t, 4>& d = t.shape.dim;
    const bool fits = d[2] == 1 && d[3] == 1 &&
                      ((d[0] == dim && (d[1] == 1 || d[1] == all / dim)) || (d[0] == all && d[1] == 1));
    if (!fits) return check_shape(t, {dim, 1, 1});
    return add_vector(row.slot, false, layer, t, {d[0], d[1]});
  }

  Result<void> add_vector(Slot slot, bool bias, uint32_t layer, const gguf::TensorInfo& t,
                          std::array<uint64_t, 2> shape, const RowMap& map = {}) {
    if (!is_float(t.type)) {
      return bad(fmt::format("tensor {} at byte {}: type {}, but a vector must be F32, F16 or BF16",
                             base::escape_for_log(t.name, 64), t.record_offset,
                             tensor::dtype_info(t.type).name));
    }
    WeightEntry e;
    e.slot = slot, e.bias = bias, e.layer = layer, e.tensor = &t, e.source = kernels_.find_linear(t.type);
    e.columns = static_cast<uint32_t>(shape[0]), e.rows = static_cast<uint32_t>(shape[1]), e.map = map;
    place(e, shape[0] * shape[1] * sizeof(float));
    return {};
  }

  void place(WeightEntry& e, size_t bytes) {
    e.offset = plan_.bytes, e.bytes = bytes;
    plan_.bytes += (bytes + 63) / 64 * 64;
    plan_.entries.push_back(e);
  }

  const gguf::File& file_;
  const ModelSpec& spec_;
  const kernels::KernelTable& kernels_;
  const bool to_f32_;
  WeightPlan plan_;
  std::unordered_set<uint32_t> bound_;  // [layer][slot]
  std::unordered_set<std::string_view> used_;
};

}  // namespace

Result<WeightPlan> plan_weights(const gguf::File& file, const ModelSpec& spec,
                                const kernels::KernelTable& kernels, bool dequantize_to_f32) {
  return Planner(file, spec, kernels, dequantize_to_f32).run();
}

}  // namespace tally::model
