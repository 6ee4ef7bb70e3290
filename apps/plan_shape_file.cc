// The header of a model of --shape, in llama's form, in a file of holes.
#include "gguf/writer.h"
#include "plan_shape.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace tally::apps {
namespace {

void set_keys(gguf::Writer& w, const ModelShape& s) {
  const auto set = [&](const char* key, const char* from) {
    w.set_uint(fmt::format("llama.{}", key), static_cast<uint32_t>(s.of(from)));
  };
  w.set_string("general.architecture", "llama");
  w.set_float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  set("block_count", "layers"), set("context_length", "context"), set("embedding_length", "embedding");
  set("feed_forward_length", "ffn"), set("attention.head_count", "heads");
  set("attention.head_count_kv", "kv-heads"), set("attention.key_length", "head-dim");
  set("attention.value_length", "head-dim"), set("rope.dimension_count", "head-dim");
  if (s.of("experts") == 0) return;
  set("expert_count", "experts"), set("expert_used_count", "experts-used");
}

void declare_tensors(gguf::Writer& w, const ModelShape& s) {
  const uint64_t e = s.of("embedding"), q = s.of("heads") * s.of("head-dim"), ffn = s.of("ffn");
  const uint64_t kv = s.of("kv-heads") * s.of("head-dim"), experts = s.of("experts");
  const auto vector = [&](const std::string& name) {
    w.declare_tensor(name, tensor::DType::kF32, {{e, 1, 1, 1}, 1});
  };
  const auto matrix = [&](const std::string& name, uint64_t columns, uint64_t rows) {
    w.declare_tensor(name, s.type, {{columns, rows, 1, 1}, 2});
  };
  matrix("token_embd.weight", e, s.of("vocab")), vector("output_norm.weight");
  if (s.of("tied") == 0) matrix("output.weight", e, s.of("vocab"));
  for (uint64_t layer = 0; layer < s.of("layers"); ++layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}.weight", layer, part); };
    vector(name("attn_norm")), vector(name("ffn_norm"));
    matrix(name("attn_q"), e, q), matrix(name("attn_k"), e, kv), matrix(name("attn_v"), e, kv);
    matrix(name("attn_output"), q, e);
    const auto feed = [&](const char* dense, const char* expert, uint64_t columns, uint64_t rows) {
      if (experts == 0) return matrix(name(dense), columns, rows);
      w.declare_tensor(name(expert), s.type, {{columns, rows, experts, 1}, 3});
    };
    feed("ffn_gate", "ffn_gate_exps", e, ffn), feed("ffn_up", "ffn_up_exps", e, ffn);
    feed("ffn_down", "ffn_down_exps", ffn, e);
    if (experts > 0) w.declare_tensor(name("ffn_gate_inp"), tensor::DType::kF32, {{e, experts, 1, 1}, 2});
  }
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
