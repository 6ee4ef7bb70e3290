// tally inspect: what is in the file, what it becomes, and which kernels this machine would use.
#include "base/utf8.h"
#include "cli.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "loading.h"
#include "model/spec.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;

std::string shape_text(const tensor::Shape& shape) {
  std::string out;
  for (uint32_t i = 0; i < shape.rank; ++i) out += fmt::format("{}{}", i == 0 ? "" : " x ", shape.dim[i]);
  return out;
}

std::string value_text(const gguf::Value& value) {
  struct Show {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::string_view v) const { return base::escape_for_log(v, 80); }
    std::string operator()(const gguf::Array& v) const { return fmt::format("[{} entries]", v.size()); }
    std::string operator()(double v) const { return fmt::format("{:g}", v); }
    std::string operator()(float v) const { return fmt::format("{:g}", v); }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(uint64_t v) const { return fmt::format("{}", v); }
  };
  return std::visit(Show{}, value.data);
}

// For each weight type of the file: the tier that would run it.
std::map<std::string, std::string> kernels_of(const gguf::File& file, const kernels::KernelTable& table) {
  std::map<std::string, std::string> out;
  for (const gguf::TensorInfo& t : file.tensors()) {
    if (t.shape.rank < 2) continue;
    const kernels::LinearFormat* format = table.find_linear(t.type);
    out["linear " + std::string(tensor::dtype_info(t.type).name)] =
        format == nullptr ? "none" : std::string(kernels::isa_name(format->isa));
  }
  for (const kernels::AttentionKernels& a : table.attention) {
    out["attention " + std::string(tensor::kv_codec_info(a.codec).name)] = kernels::isa_name(a.isa);
  }
  out["vector"] = kernels::isa_name(table.vector.isa);
  return out;
}

struct Report {
  const gguf::File& file;
  const model::ModelSpec& spec;
  const ModelText& text;
  std::map<std::string, std::pair<uint64_t, uint64_t>> types;  // name -> (tensors, bytes)
  std::map<std::string, std::string> kernels;
  std::string isa;
};

void print_json(const Report& r) {
  json tensors = json::array();
  for (const gguf::TensorInfo& t : r.file.tensors()) {
    json dims = json::array();
    for (uint32_t i = 0; i < t.shape.rank; ++i) dims.push_back(t.shape.dim[i]);
    tensors.push_back(
        {{"name", t.name}, {"type", tensor::dtype_info(t.type).name}, {"shape", dims}, {"bytes", t.bytes}});
  }
  json types = json::object();
  for (const auto& [name, count] : r.types) types[name] = {{"tensors", count.first}, {"bytes", count.second}};
  const auto chat = r.text.tokenizer.chat_template();
  const json out = {
      {"architecture", r.spec.architecture},
      {"parameters", r.text.parameters},
      {"context_length", r.spec.context},
      {"tensors", tensors},
      {"types", types},
      {"tokenizer",
       {{"model", r.text.tokenizer.model()},
        {"pre", r.text.tokenizer.pre_tokenizer()},
        {"vocabulary", r.text.tokenizer.vocab_size()}}},
      {"template", chat ? json(*chat) : json(nullptr)},
      {"kernels", {{"isa", r.isa}, {"families", r.kernels}}},
  };
  fmt::print("{}\n", out.dump(-1, ' ', false, json::error_handler_t::replace));
}

void print_spec(const model::ModelSpec& s) {
  fmt::print("spec\n  {} layers, embedding {}, vocabulary {}, context {}\n", s.layers, s.embedding, s.vocab,
             s.context);
  fmt::print("  attention {} heads, {} KV heads, key {}, value {}, scale {:g}{}{}\n", s.attention.heads,
             s.attention.kv_heads, s.attention.key_dim, s.attention.value_dim, s.attention.score_scale,
             s.attention.qk_norm ? ", q and k norms" : "",
             s.attention.softcap > 0 ? fmt::format(", cap {:g}", s.attention.softcap) : "");
  fmt::print("  ffn {}, {}, rms eps {:g}{}{}\n", s.ffn.hidden,
             s.ffn.activation == model::Activation::kSilu ? "SwiGLU" : "GeGLU", s.norm.eps,
             s.norm.sandwich ? ", sandwich norms" : "",
             s.tied_output ? ", output tied to the embedding" : "");
  std::map<std::string, uint32_t> kinds;
  for (const model::LayerSpec& layer : s.layer) {
    kinds[fmt::format("{}, rope base {:g}, factor {:g}",
                      layer.window == 0 ? "sees all" : fmt::format("window {}", layer.window),
                      layer.rope.base, layer.rope.factor)]++;
  }
  for (const auto& [kind, count] : kinds) fmt::print("  {} layers: {}\n", count, kind);
}

void print_text(const Report& r) {
  fmt::print("{}: GGUF v{}, {} bytes, header {} bytes\n\nmetadata\n", base::escape_for_log(r.file.path()),
             r.file.version(), r.file.file_bytes(), r.file.header_bytes());
  for (const gguf::Metadata& m : r.file.metadata())
    fmt::print("  {:<44} {}\n", base::escape_for_log(m.key, 80), value_text(m.value));
  fmt::print("\ntensors\n");
  for (const gguf::TensorInfo& t : r.file.tensors()) {
    fmt::print("  {:<36} {:<5} {:>16} {:>12} bytes\n", base::escape_for_log(t.name, 64),
               tensor::dtype_info(t.type).name, shape_text(t.shape), t.bytes);
  }
  fmt::print("\ntypes\n");
  for (const auto& [name, count] : r.types)
    fmt::print("  {:<5} {:>4} tensors {:>12} bytes\n", name, count.first, count.second);
  fmt::print("\n");
  print_spec(r.spec);
  fmt::print("\ntokenizer\n  {} {}, {} pieces, chat template {}\n", r.text.tokenizer.model(),
             r.text.tokenizer.pre_tokenizer(), r.text.tokenizer.vocab_size(),
             r.text.tokenizer.chat_template() ? "in the file" : "none");
  fmt::print("\nkernels (asked for {}, this CPU has {})\n", r.isa, kernels::host_isas());
  for (const auto& [family, isa] : r.kernels) {
    fmt::print("  {:<16} {}{}\n", family, isa,
               isa == r.isa ? "" : "  (no kernel of the tier asked for: the next lower one)");
  }
}

}  // namespace

int run_inspect(const Invocation& call) {
  const auto model = model_argument(call.arguments, 1);
  if (!model) return fail(model.error());
  const auto file = gguf::File::open(*model);
  if (!file) return fail(file.error());
  const auto spec = model::read_spec(*file);
  if (!spec) return fail(spec.error());
  const auto text = load_text(*model, "");
  if (!text) return fail(text.error());
  const std::string& wanted = call.settings.text("isa");
  const auto isa = wanted == "best" ? kernels::best_isa() : *kernels::find_isa(wanted);
  if (!kernels::host_has(isa)) {
    return fail(
        {base::ErrorCode::kConfig, fmt::format("--isa {}: this CPU has {}", wanted, kernels::host_isas())});
  }
  Report report{*file,
                *spec,
                *text,
                {},
                kernels_of(*file, kernels::kernel_table(isa)),
                std::string(kernels::isa_name(isa))};
  for (const gguf::TensorInfo& t : file->tensors()) {
    auto& [count, bytes] = report.types[std::string(tensor::dtype_info(t.type).name)];
    ++count, bytes += t.bytes;
  }
  if (call.settings.on("json")) {
    print_json(report);
  } else {
    print_text(report);
  }
  return 0;
}

}  // namespace tally::apps
