// The header of a model of --shape in a file of holes.
#include "gguf/writer.h"
#include "plan_shape.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace tally::apps {
namespace {

bool is_latent(const ModelShape& s) { return s.of("kv-rank") > 0; }

// An architecture with these features and nothing else that takes memory.
const char* architecture_of(const ModelShape& s) {
  if (is_latent(s)) return "deepseek2";
  return s.of("window") > 0 ? "olmo2" : "llama";
}

void set_keys(gguf::Writer& w, const ModelShape& s) {
  const char* name = architecture_of(s);
  const auto set = [&](const char* key, const char* from) {
    w.set_uint(fmt::format("{}.{}", name, key), static_cast<uint32_t>(s.of(from)));
  };
  w.set_string("general.architecture", name);
  w.set_float(fmt::format("{}.attention.layer_norm_rms_epsilon", name), 1e-5f);
  set("block_count", "layers"), set("context_length", "context"), set("embedding_length", "embedding");
  set("feed_forward_length", "ffn"), set("attention.head_count", "heads");
  set("attention.head_count_kv", "kv-heads"), set("attention.key_length", "head-dim");
  set("attention.value_length", "value-dim"), set("rope.dimension_count", "rope-dim");
  if (s.of("window") > 0)
    set("attention.sliding_window", "window"), set("attention.sliding_window_pattern", "window-period");
  if (is_latent(s)) set("attention.kv_lora_rank", "kv-rank");
  if (s.of("q-rank") > 0) set("attention.q_lora_rank", "q-rank");
  if (s.of("experts") == 0) return;
  set("expert_count", "experts"), set("expert_used_count", "experts-used");
  set("expert_feed_forward_length", "expert-ffn"), set("expert_shared_count", "shared-experts");
  set("leading_dense_block_count", "dense-layers");
}

// The tensors of one layer.
class LayerTensors {
 public:
  LayerTensors(gguf::Writer& w, const ModelShape& s, uint64_t layer) : w_(w), s_(s), layer_(layer) {}

  void declare() const {
    const bool norms_behind = s_.of("window") > 0;
    vector(norms_behind ? "post_attention_norm" : "attn_norm", s_.of("embedding"));
    vector(norms_behind ? "post_ffw_norm" : "ffn_norm", s_.of("embedding"));
    is_latent(s_) ? latent_attention() : attention();
    matrix("attn_output", s_.of("heads") * s_.of("value-dim"), s_.of("embedding"));
    s_.of("experts") > 0 && layer_ >= s_.of("dense-layers") ? experts() : feed("", s_.of("ffn"));
  }

 private:
  void attention() const {
    const uint64_t e = s_.of("embedding"), kv_heads = s_.of("kv-heads");
    matrix("attn_q", e, s_.of("heads") * s_.of("head-dim"));
    matrix("attn_k", e, kv_heads * s_.of("head-dim")), matrix("attn_v", e, kv_heads * s_.of("value-dim"));
  }

  void latent_attention() const {
    const uint64_t e = s_.of("embedding"), heads = s_.of("heads"), rope = s_.of("rope-dim");
    const uint64_t q = heads * s_.of("head-dim"), q_rank = s_.of("q-rank"), kv_rank = s_.of("kv-rank");
    if (q_rank > 0)
      matrix("attn_q_a", e, q_rank), vector("attn_q_a_norm", q_rank), matrix("attn_q_b", q_rank, q);
    else
      matrix("attn_q", e, q);
    matrix("attn_kv_a_mqa", e, kv_rank + rope), vector("attn_kv_a_norm", kv_rank);
    matrix("attn_kv_b", kv_rank, heads * (s_.of("head-dim") - rope + s_.of("value-dim")));
  }

  void experts() const {
    const uint64_t e = s_.of("embedding"), hidden = s_.of("expert-ffn"), count = s_.of("experts");
    tensor("ffn_gate_inp", tensor::DType::kF32, {{e, count, 1, 1}, 2});
    for (const char* up : {"ffn_gate_exps", "ffn_up_exps"}) tensor(up, s_.type, {{e, hidden, count, 1}, 3});
    tensor("ffn_down_exps", s_.type, {{hidden, e, count, 1}, 3});
    if (s_.of("shared-experts") > 0) feed("_shexp", s_.of("shared-experts") * hidden);
  }

  void feed(const char* suffix, uint64_t hidden) const {
    const uint64_t e = s_.of("embedding");
    matrix(fmt::format("ffn_gate{}", suffix), e, hidden), matrix(fmt::format("ffn_up{}", suffix), e, hidden);
    matrix(fmt::format("ffn_down{}", suffix), hidden, e);
  }

  void vector(const char* name, uint64_t size) const {
    tensor(name, tensor::DType::kF32, {{size, 1, 1, 1}, 1});
  }
  void matrix(const std::string& name, uint64_t columns, uint64_t rows) const {
    tensor(name, s_.type, {{columns, rows, 1, 1}, 2});
  }
  void tensor(const std::string& name, tensor::DType type, const tensor::Shape& shape) const {
    w_.declare_tensor(fmt::format("blk.{}.{}.weight", layer_, name), type, shape);
  }

  gguf::Writer& w_;
  const ModelShape& s_;
  const uint64_t layer_;
};

void declare_tensors(gguf::Writer& w, const ModelShape& s) {
  const uint64_t e = s.of("embedding");
  w.declare_tensor("token_embd.weight", s.type, {{e, s.of("vocab"), 1, 1}, 2});
  w.declare_tensor("output_norm.weight", tensor::DType::kF32, {{e, 1, 1, 1}, 1});
  if (s.of("tied") == 0) w.declare_tensor("output.weight", s.type, {{e, s.of("vocab"), 1, 1}, 2});
  for (uint64_t layer = 0; layer < s.of("layers"); ++layer) LayerTensors(w, s, layer).declare();
}

}  // namespace

ShapeFile::ShapeFile(ShapeFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
ShapeFile::~ShapeFile() {
  if (fd_ >= 0) ::close(fd_);
}
std::string ShapeFile::path() const { return fmt::format("/proc/self/fd/{}", fd_); }

base::Result<ShapeFile> ShapeFile::make(const std::string& text) {
  TALLY_TRY(const ModelShape shape, parse_model_shape(text));
  gguf::Writer writer;
  set_keys(writer, shape);
  declare_tensors(writer, shape);
  const std::string header = writer.header();
  ShapeFile file(::memfd_create("shape", MFD_CLOEXEC));
  const auto bytes = static_cast<off_t>(header.size() + writer.data_bytes());  // holes take no memory
  const bool written =
      file.fd_ >= 0 && ::ftruncate(file.fd_, bytes) == 0 &&
      ::pwrite(file.fd_, header.data(), header.size(), 0) == static_cast<ssize_t>(header.size());
  if (!written) return base::Error{base::ErrorCode::kIo, "--shape: a file in memory cannot be made"};
  return file;
}

}  // namespace tally::apps
