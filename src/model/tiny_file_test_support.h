#pragma once
// Model files of a few kilobytes, for any architecture: metadata from a table, tensors as the table of
// weights asks for them. For tests and fuzzing.

#include "base/check.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "model/spec.h"
#include "model/weight_table.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tally::model {

// A file without a name, open as long as this lives.
class UnnamedFile {
 public:
  explicit UnnamedFile(std::string_view bytes) : fd_(memfd_create("model", MFD_CLOEXEC)) {
    TALLY_CHECK(fd_ >= 0, "memfd_create");
    for (std::string_view rest = bytes; !rest.empty();) {
      const ssize_t put = ::write(fd_, rest.data(), rest.size());
      TALLY_CHECK(put > 0, "write to a memory file");
      rest.remove_prefix(static_cast<size_t>(put));
    }
  }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  ~UnnamedFile() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  base::Result<gguf::File> open() const { return gguf::File::open(path()); }

 private:
  int fd_;
};

// A value of a key; `uint64_t` is written as such, for values that u32 cannot say.
using TinyValue = std::variant<uint32_t, float, bool, std::string, uint64_t, double, std::vector<std::string>,
                               std::vector<int32_t>>;
using TinyKeys = std::map<std::string, TinyValue>;  // of general.*, or without "<architecture>."

struct TinyTensor {
  std::string name;
  tensor::DType type = tensor::DType::kF32;
  tensor::Shape shape;
  std::string bytes;
};

// What a family adds to the shared keys, and how its file is made.
struct TinyFamily {
  std::string architecture;
  TinyKeys keys = {};  // shared keys replaced, others added
  std::set<std::string> with = {},
                        without =
                            {};  // names of the table ("attn_qkv") to take though not required, to leave
  bool biases = false;
  std::vector<tensor::DType> types = {
      tensor::DType::kF32};  // of matrices, in turn, where the row length allows
};

class TinyFile {
 public:
  explicit TinyFile(const TinyFamily& family) : family_(family) {
    keys_ = {{"block_count", 1u},
             {"context_length", 64u},
             {"embedding_length", 32u},
             {"feed_forward_length", 32u},
             {"attention.head_count", 4u},
             {"attention.head_count_kv", 2u},
             {"attention.layer_norm_rms_epsilon", 1e-5f},
             {"attention.layer_norm_epsilon", 1e-5f},
             {"general.architecture", family.architecture}};
    for (const auto& [key, value] : family.keys) keys_[key] = value;
    // The spec needs two tensors to be there; it then says what all of them are.
    tensors_ = {matrix("token_embd.weight", {32, kVocab, 1}, tensor::DType::kF32)};
    if (!family.without.contains("output"))
      tensors_.push_back(matrix("output.weight", {32, kVocab, 1}, tensor::DType::kF32));
    if (const auto* embedding = std::get_if<uint32_t>(&keys_["embedding_length"])) {
      for (TinyTensor& t : tensors_) t = matrix(t.name, {*embedding, kVocab, 1}, tensor::DType::kF32);
    }
    const UnnamedFile file(bytes());
    const auto opened = file.open();
    TALLY_CHECK(opened.has_value(), "a tiny file does not open");
    const auto spec = read_spec(*opened);
    if (!spec) TALLY_UNREACHABLE("a tiny file has no spec: " + spec.error().message);
    tensors_.clear();
    for (uint32_t layer = 0; layer < spec->layers; ++layer) add_tensors(*spec, layer);
  }

  static constexpr uint64_t kVocab = 8;

  TinyKeys& keys() { return keys_; }
  std::vector<TinyTensor>& tensors() { return tensors_; }
  TinyTensor& tensor(std::string_view name) {
    for (TinyTensor& t : tensors_) {
      if (t.name == name) return t;
    }
    TALLY_UNREACHABLE("no such tensor");
  }

  std::string bytes() const {
    gguf::Writer writer;
    for (const auto& [key, value] : keys_) {
      set(writer,
          key.starts_with("general.") || key.starts_with("tokenizer.") ? key
                                                                       : family_.architecture + "." + key,
          value);
    }
    for (const TinyTensor& t : tensors_)
      writer.add_tensor(t.name, t.type, t.shape, std::as_bytes(std::span(t.bytes)));
    return writer.bytes();
  }

 private:
  static void set(gguf::Writer& writer, const std::string& key, const TinyValue& value) {
    const auto wide = [&](uint32_t type, auto data) {
      gguf::Value v;
      v.type = type, v.data = data;
      writer.set_value(key, v);
    };
    constexpr uint32_t kUint64 = 10, kFloat64 = 12;
    if (const auto* u = std::get_if<uint32_t>(&value)) writer.set_uint(key, *u);
    if (const auto* f = std::get_if<float>(&value)) writer.set_float(key, *f);
    if (const auto* b = std::get_if<bool>(&value)) writer.set_bool(key, *b);
    if (const auto* s = std::get_if<std::string>(&value)) writer.set_string(key, *s);
    if (const auto* u = std::get_if<uint64_t>(&value)) wide(kUint64, *u);
    if (const auto* d = std::get_if<double>(&value)) wide(kFloat64, *d);
    if (const auto* l = std::get_if<std::vector<std::string>>(&value)) writer.set_strings(key, *l);
    if (const auto* l = std::get_if<std::vector<int32_t>>(&value)) writer.set_ints(key, *l);
  }

  // Values of a quantized matrix come from bytes around 0x2B: half floats near 0.06 wherever a scale is.
  TinyTensor matrix(std::string_view name, const std::array<uint64_t, 3>& shape, tensor::DType type) {
    TinyTensor t{std::string(name), type, {{shape[0], shape[1], shape[2], 1}, 1}, {}};
    t.shape.rank = shape[2] > 1 ? 3 : shape[1] > 1 ? 2 : 1;
    const uint64_t elements = shape[0] * shape[1] * shape[2];
    if (type != tensor::DType::kF32) {
      t.bytes.resize(shape[1] * shape[2] * tensor::row_bytes(type, shape[0]));
      for (char& byte : t.bytes) byte = static_cast<char>(0x28 + next() % 8);
      return t;
    }
    for (uint64_t i = 0; i < elements; ++i) {
      const float value = static_cast<float>(next() % 2001) / 2000.f - .5f;
      t.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return t;
  }
  uint32_t next() { return (state_ = state_ * 1664525u + 1013904223u) >> 8; }

  tensor::DType type_for(const WeightRow& row, uint64_t columns) {
    if (row.part == Part::kVector || row.part == Part::kHeadNorm) return tensor::DType::kF32;
    const tensor::DType type = family_.types[turn_++ % family_.types.size()];
    for (const tensor::DType t : {type, tensor::DType::kQ8_0}) {
      if (columns % tensor::dtype_info(t).block_elements == 0) return t;
    }
    return tensor::DType::kF16;
  }

  void add_tensors(const ModelSpec& spec, uint32_t layer) {
    for (const WeightRow& row : weight_table()) {
      if (layer > 0 && !row.per_layer()) continue;
      std::string name = fmt::format(fmt::runtime(row.name), layer);
      const std::string kind =
          name.substr(name.find_last_of('.') == std::string::npos ? 0 : name.find_last_of('.') + 1);
      const Need need = row.when(spec, layer);
      const bool wanted = need == Need::kMust ? !family_.without.contains(kind)
                                              : need == Need::kMay && family_.with.contains(kind);
      const bool is_bias = name.ends_with(".bias");
      if (!is_bias) name += ".weight";
      if (!wanted || has(name)) continue;
      std::array<uint64_t, 3> shape = place_of(row, spec, layer).shape;
      if (row.part == Part::kHeadNorm) shape = {spec.attention.key_dim, 1, 1};
      tensors_.push_back(matrix(name, shape, type_for(row, shape[0])));
      const bool norm = row.part == Part::kVector;
      if (!family_.biases || is_bias || row.slot == Slot::kTokenEmbd || row.slot == Slot::kPositionEmbd)
        continue;
      if (norm ? spec.norm.kind != NormKind::kLayer : row.part == Part::kHeadNorm) continue;
      if (norm && name.find("norm") == std::string::npos) continue;
      const uint64_t rows = norm ? shape[0] : shape[1];
      const uint64_t experts = row.part == Part::kExperts ? spec.moe.experts : 1;
      tensors_.push_back(
          matrix(name.substr(0, name.size() - 6) + "bias", {rows, experts, 1}, tensor::DType::kF32));
    }
  }
  bool has(std::string_view name) const {
    for (const TinyTensor& t : tensors_) {
      if (t.name == name) return true;
    }
    return false;
  }

  const TinyFamily family_;
  TinyKeys keys_;
  std::vector<TinyTensor> tensors_;
  uint32_t state_ = 7;
  size_t turn_ = 0;
};

// One of each kind of graph.
inline std::vector<TinyFamily> tiny_families() {
  using tensor::DType;
  return {
      {"llama",
       {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 2.f}},
       {"rope_freqs"},
       {},
       false,
       {DType::kQ4_0, DType::kQ8_0, DType::kF16, DType::kQ5_1, DType::kIQ4_NL}},
      {"llama",
       {{"expert_count", 4u}, {"expert_used_count", 2u}},
       {},
       {"output"},
       false,
       {DType::kQ8_0, DType::kMXFP4, DType::kQ4_1}},
      {"deepseek2",
       {{"block_count", 2u},
        {"attention.head_count_kv", 4u},
        {"attention.q_lora_rank", 16u},
        {"attention.kv_lora_rank", 32u},
        {"attention.key_length", 12u},
        {"attention.value_length", 8u},
        {"rope.dimension_count", 4u},
        {"rope.scaling.type", "yarn"},
        {"rope.scaling.factor", 4.f},
        {"rope.scaling.original_context_length", 16u},
        {"rope.scaling.yarn_log_multiplier", .07f},
        {"leading_dense_block_count", 1u},
        {"expert_count", 4u},
        {"expert_used_count", 2u},
        {"expert_feed_forward_length", 16u},
        {"expert_shared_count", 1u},
        {"expert_group_count", 2u},
        {"expert_group_used_count", 1u},
        {"expert_gating_func", 2u},
        {"expert_weights_norm", true},
        {"expert_weights_scale", 2.5f}},
       {"bias"},
       {},
       false,
       {DType::kBF16, DType::kQ5_0, DType::kF16}},
      {"phi3",
       {{"rope.dimension_count", 4u},
        {"rope.scaling.original_context_length", 32u},
        {"rope.scaling.attn_factor", 1.2f}},
       {"attn_qkv", "ffn_up", "rope_factors_long", "rope_factors_short"},
       {"attn_q", "attn_k", "attn_v", "ffn_gate"},
       false,
       {DType::kQ4_0, DType::kF16}},
      {"gpt2",
       {{"attention.head_count_kv", 4u}, {"context_length", 16u}},
       {"attn_qkv"},
       {"attn_q", "attn_k", "attn_v", "output"},
       true,
       {DType::kF16}},
      {"gemma3",
       {{"embedding_length", 256u},

        {"attention.head_count", 2u},
        {"attention.head_count_kv", 1u},
        {"attention.key_length", 8u},
        {"attention.value_length", 8u},
        {"attention.sliding_window", 2u},
        {"attention.sliding_window_pattern", 2u},
        {"final_logit_softcapping", 30.f},
        {"attn_logit_softcapping", 50.f}},
       {"attn_q_norm", "attn_k_norm"},
       {"output"},
       false,
       {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}},
      {"gpt-oss",
       {{"expert_count", 4u},
        {"expert_used_count", 2u},
        {"expert_feed_forward_length", 32u},
        {"attention.sliding_window", 2u}},
       {"attn_sinks"},
       {},
       true,
       {DType::kMXFP4, DType::kQ8_0}},
      {"bloom",
       {{"attention.head_count_kv", 4u}},
       {"attn_qkv"},
       {"attn_q", "attn_k", "attn_v", "output"},
       true,
       {DType::kQ8_0}},
      {"command-r", {{"logit_scale", .5f}, {"block_count", 2u}}, {}, {"output"}, false, {DType::kQ5_0}},
  };
}

}  // namespace tally::model
