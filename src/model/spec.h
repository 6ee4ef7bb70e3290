#pragma once
// What an architecture is: a small bag of features that the graph builder reads. Metadata -> ModelSpec
// happens in arch/*.cc, one file a family; nothing below this knows architecture names.

#include "base/result.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::model {

enum class NormKind : uint8_t { kRms, kLayer };
enum class RopeKind : uint8_t { kNone, kNorm, kNeox };
enum class Activation : uint8_t { kSilu, kGeluTanh, kGeluErf, kRelu2, kSwigluOai };

// Where a block normalises. The norms of q and k are there if their tensors are.
struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-5f;
  bool pre = true;         // of what goes into attention and FFN
  bool post = false;       // of what comes out, before it joins the residual
  bool weights = true;     // false: norms have no tensors at all
  bool embedding = false;  // of the token's embedding
};

// Angles theta_i = position * base^(-2i/n_rot) / (factor * divisor_i); cos and sin are multiplied by
// `magnitude`. The divisors are a tensor of the file: one set, or one for short contexts and one for long
// ones.
struct RopeSpec {
  RopeKind kind = RopeKind::kNone;
  uint32_t rotated = 0;  // n_rot, even: the last ones of a head's q and k in latent attention, else the first
  double base = 10000;
  double factor = 1;  // linear scaling
  double magnitude = 1;
  uint32_t original_context = 0;  // YaRN's and longrope's
  // YaRN: the share `ext_factor` of the pairs' extrapolation, by how often a pair turns in the original
  // context.
  double ext_factor = 0, beta_fast = 32, beta_slow = 1;
  bool operator==(const RopeSpec&) const = default;
};

// Low-rank keys and values, expanded to full heads. 0 everywhere: plain attention.
struct LatentSpec {
  uint32_t q_rank = 0;   // 0: q is one matrix
  uint32_t kv_rank = 0;  // of the latent that K (but for its rotated part) and V are made from
  bool operator==(const LatentSpec&) const = default;
};

struct AttentionSpec {
  uint32_t heads = 0, kv_heads = 0;  // of the first layer; LayerSpec has each layer's
  uint32_t key_dim = 0, value_dim = 0;
  float score_scale = 0;
  float softcap = 0;         // 0: none
  float clamp = 0;           // of q, k and v; 0: none
  float alibi_bias_max = 0;  // ALiBi; 0: none
  LatentSpec latent;
};

struct FfnSpec {
  Activation activation = Activation::kSilu;
  bool gated = true;  // act(gate) * up; false: act(up)
};

// Experts of the layers that have them. 0 experts: none.
struct MoeSpec {
  uint32_t experts = 0, used = 0;
  uint32_t hidden = 0;         // of an expert
  uint32_t shared_hidden = 0;  // of the expert that every token uses; 0: none
  kernels::Gating gating = kernels::Gating::kSoftmax;
  bool normalize = false;
  float scale = 1;
  uint32_t groups = 0, groups_used = 0;
};

// What differs from layer to layer.
struct LayerSpec {
  uint32_t heads = 0, kv_heads = 0;
  uint32_t hidden = 0;  // of the dense FFN
  uint32_t window = 0;  // 0: sees everything before it
  bool moe = false;
  RopeSpec rope;
};

struct ScaleSpec {
  float embedding = 1;  // of the token's embedding
  float residual = 1;   // of what joins the residual
  float logits = 1;
  float final_softcap = 0;  // of the logits; 0: none
};

struct ModelSpec {
  std::string architecture;
  std::string name;  // general.name, escaped for people
  uint32_t layers = 0, embedding = 0, vocab = 0, context = 0;
  NormSpec norm;
  AttentionSpec attention;
  FfnSpec ffn;
  MoeSpec moe;
  ScaleSpec scale;
  std::vector<LayerSpec> layer;    // [layers]
  bool parallel = false;           // attention and FFN both read the block's input
  bool learned_positions = false;  // a vector a position, added to the embedding
  bool tied_output = false;
};

// Reads and validates the spec of a model file. Errors: kBadData naming the key; an unknown architecture
// lists the known ones.
base::Result<ModelSpec> read_spec(const gguf::File& file);
// Names accepted in general.architecture.
std::vector<std::string_view> architectures();

}  // namespace tally::model
