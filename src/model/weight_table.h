#pragma once
// The one table of tensor names: which slot a tensor fills, its shape in fields of the spec, and when it may
// or must be there. Private to the room.

#include "gguf/gguf.h"
#include "model/spec.h"
#include "model/weights.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tally::model {

using Size = uint64_t (*)(const ModelSpec&, uint32_t layer);

enum class Need : uint8_t { kNo, kMay, kMust };
using When = Need (*)(const ModelSpec&, uint32_t layer);

// What a slot is made from.
enum class Part : uint8_t {
  kWhole,
  kVector,
  kHeadNorm,  // a vector for every head, one for each, or one over all of them: the shape says which
  kExperts,   // [columns][rows][experts], a matrix each
  kGateOfExperts,
  kUpOfExperts,  // rows of each expert's gate, then of its up
  kQ,
  kK,
  kV,  // rows of q, then k, then v
  kGate,
  kUp,  // rows of gate, then up
  kKOfKv,
  kVOfKv,        // for every head, rows of k, then v
  kKTransposed,  // [unrotated][kv_rank][heads]: each head's matrix is the transpose
  kVOfHeads,     // [kv_rank][value_dim][heads]
};

// Rows of one slot are alternatives, best first, and its bias may stand beside any of their names. A tensor
// that another slot took whole is not taken again. So a second attention norm, where there is one, leaves the
// first to the FFN, and a norm behind attention is the FFN's where the model has no norms behind its
// branches.
struct WeightRow {
  Slot slot;
  std::string_view name;  // "{}" is the layer; ".weight" is added unless it ends with ".bias"
  Size columns, rows;     // of the slot; of a vector one row
  When when;
  Part part = Part::kWhole;

  bool per_layer() const { return name.find("{}") != std::string_view::npos; }
};
std::span<const WeightRow> weight_table();

// The shape that the tensor of a row must have, and where the slot's rows (a vector's values) are in it.
struct WeightPlace {
  std::array<uint64_t, 3> shape{1, 1, 1};
  RowMap map;
};
WeightPlace place_of(const WeightRow& row, const ModelSpec& spec, uint32_t layer);

// Whether a forward pass reads tensors of this name at all: files carry some that none does.
bool is_ignorable(std::string_view tensor);

}  // namespace tally::model
