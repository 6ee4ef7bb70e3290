#pragma once
// What an architecture is: a small bag of features that the graph builder reads. Metadata -> ModelSpec
// happens in arch/*.cc, one file a family; nothing below this knows architecture names.

#include "base/result.h"
#include "gguf/gguf.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::model {

enum class NormKind : uint8_t { kRms };
enum class RopeKind : uint8_t { kNone, kNorm, kNeox };
enum class Activation : uint8_t { kSilu, kGeluTanh };

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-5f;
  bool sandwich = false;  // post norms on both branch outputs
};

// Angles theta_i = position * base^(-2i/n_rot) / (factor * rope_freqs_i).
struct RopeSpec {
  RopeKind kind = RopeKind::kNone;
  uint32_t rotated = 0;  // n_rot, even
  double base = 10000;
  double factor = 1;  // linear scaling
  bool operator==(const RopeSpec&) const = default;
};

struct AttentionSpec {
  uint32_t heads = 0, kv_heads = 0;
  uint32_t key_dim = 0, value_dim = 0;
  float score_scale = 0;
  float softcap = 0;     // 0: none
  bool qk_norm = false;  // RMS norm per head before rope
};

struct FfnSpec {
  uint32_t hidden = 0;
  Activation activation = Activation::kSilu;
};

// What differs from layer to layer.
struct LayerSpec {
  uint32_t window = 0;  // 0: sees everything before it
  RopeSpec rope;
};

struct ModelSpec {
  std::string architecture;
  std::string name;  // general.name, escaped for people
  uint32_t layers = 0, embedding = 0, vocab = 0, context = 0;
  NormSpec norm;
  AttentionSpec attention;
  FfnSpec ffn;
  float embedding_scale = 1;
  float final_softcap = 0;  // 0: none
  bool tied_output = false;
  std::vector<LayerSpec> layer;  // [layers]
};

// Reads and validates the spec of a model file. Errors: kBadData naming the key; an unknown architecture
// lists the known ones.
base::Result<ModelSpec> read_spec(const gguf::File& file);
// Names accepted in general.architecture.
std::vector<std::string_view> architectures();

}  // namespace tally::model
