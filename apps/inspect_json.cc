// An inspection for programs. Keys may be added, never renamed.
#include "base/utf8.h"
#include "cli.h"
#include "inspect.h"
#include "loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tally::apps {
namespace {

using nlohmann::json;

constexpr size_t kStringBytesMax = 1024;  // of a metadata value

// Cut at a character. Control characters are escaped by JSON.
std::string cut(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  size_t end = bytes_max;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

json number(double v) { return std::isfinite(v) ? json(v) : json(fmt::format("{}", v)); }

json value_json(const gguf::Value& value) {
  struct Make {
    json operator()(bool v) const { return v; }
    json operator()(std::string_view v) const { return cut(v, kStringBytesMax); }
    json operator()(const gguf::Array& v) const {
      return {{"element_type", v.element_type}, {"entries", v.size()}};
    }
    json operator()(double v) const { return number(v); }
    json operator()(float v) const { return number(double{v}); }
    json operator()(int64_t v) const { return v; }
    json operator()(uint64_t v) const { return v; }
  };
  return std::visit(Make{}, value.data);
}

json tensors_json(const gguf::File& file) {
  json out = json::array();
  for (const gguf::TensorInfo& t : file.tensors()) {
    json dims = json::array();
    for (uint32_t i = 0; i < t.shape.rank; ++i) dims.push_back(t.shape.dim[i]);
    out.push_back({{"name", t.name},
                   {"type", tensor::dtype_info(t.type).name},
                   {"shape", dims},
                   {"bytes", t.bytes},
                   {"offset", t.file_offset},
                   {"shard", t.shard}});
  }
  return out;
}

json types_json(const Inspection& r) {
  json out = json::object();
  for (const auto& [name, use] : r.types) {
    out[std::string(name)] = {
        {"tensors", use.tensors},
        {"elements", use.elements},
        {"bytes", use.bytes},
        {"bits_per_weight", 8.0 * static_cast<double>(use.bytes) / static_cast<double>(use.elements)}};
  }
  return out;
}

json token_json(const text::Tokenizer& t, TokenId id) { return {{"id", raw(id)}, {"piece", t.piece(id)}}; }

json tokenizer_json(const gguf::File& file, const Inspection& r) {
  if (!r.tokenizer) return nullptr;
  const text::Tokenizer& t = *r.tokenizer;
  json special = json::object(), eog = json::array();
  for (const gguf::Metadata& m : file.metadata()) {
    if (!m.key.starts_with("tokenizer.ggml.") || !m.key.ends_with("_token_id")) continue;
    const auto id = file.get_uint(m.key, 0, t.vocab_size() - 1);
    if (id && *id)
      special[std::string(m.key.substr(15, m.key.size() - 24))] =
          token_json(t, TokenId{static_cast<int32_t>(**id)});
  }
  for (const TokenId id : t.eog()) eog.push_back(token_json(t, id));
  return {{"model", t.model()},
          {"pre", t.pre_tokenizer()},
          {"vocabulary", t.vocab_size()},
          {"special", special},
          {"add_bos", t.adds_bos()},
          {"add_eos", t.adds_eos()},
          {"eog", eog},
          {"space_prefix", t.adds_space_prefix()}};
}

json spec_json(const Inspection& r) {
  if (!r.model.spec) return nullptr;
  const model::ModelSpec& s = *r.model.spec;
  json layers = json::array();
  for (const LayerGroup& group : r.model.layers)
    layers.push_back({{"layers", group.layers}, {"words", group.words}});
  return {{"words", r.model.words},         {"layers", s.layers},
          {"embedding", s.embedding},       {"vocabulary", s.vocab},
          {"heads", s.attention.heads},     {"kv_heads", s.attention.kv_heads},
          {"key_dim", s.attention.key_dim}, {"value_dim", s.attention.value_dim},
          {"experts", s.moe.experts},       {"experts_used", s.moe.used},
          {"tied_output", s.tied_output},   {"layer_groups", layers}};
}

json memory_json(const Inspection& r) {
  json per_token = json::object(), at_context = json::object();
  for (const KvCost& cost : r.model.kv) {
    per_token[std::string(cost.codec)] = cost.token_bytes;
    at_context[std::string(cost.codec)] = cost.context_bytes;
  }
  return {{"weights_bytes", r.model.weight_bytes ? json(*r.model.weight_bytes) : json(nullptr)},
          {"kv_bytes_per_token", per_token},
          {"kv_bytes_at_context", at_context}};
}

json context_json(const gguf::File& file, const Inspection& r) {
  if (r.model.spec) return r.model.spec->context;
  const auto said = file.get_uint(r.architecture + ".context_length", 0, UINT64_MAX);
  return said && *said ? json(**said) : json(nullptr);
}

json tuning_json(const Inspection& r) {
  json out = json::array();
  for (const engine::Tuning& t : r.tuning)
    out.push_back({{"type", t.type},
                   {"prefetch_bytes", t.prefetch_bytes},
                   {"chunk_bytes", t.chunk_bytes},
                   {"row_cost", t.row_cost}});
  return out;
}

json chat_json(const TemplateFinding& found) {
  if (found.source.empty() || found.error) return nullptr;
  const text::OutputFormat& output = found.output;
  return {{"shows_tools", found.shows_tools},
          {"tool_format", text::tool_format_name(output.tools)},
          {"thoughts",
           output.think_begin.empty() ? json(nullptr) : json({output.think_begin, output.think_end})}};
}

}  // namespace

void print_inspection_json(const gguf::File& file, const Inspection& r) {
  json metadata = json::object();
  for (const gguf::Metadata& m : file.metadata()) metadata[std::string(m.key)] = value_json(m.value);
  const auto shards = file.get_uint("split.count", 0, UINT32_MAX);
  const std::string_view source = r.chat_template.source;
  const json out = {
      {"architecture", r.architecture.empty() ? json(nullptr) : json(r.architecture)},
      {"name", r.name},
      {"parameters", r.parameters},
      {"context_length", context_json(file, r)},
      {"file",
       {{"path", base::escape_for_log(file.path(), 4096)},
        {"version", file.version()},
        {"bytes", file.file_bytes()},
        {"header_bytes", file.header_bytes()},
        {"shards", shards && *shards && **shards > 0 ? **shards : uint64_t{1}}}},
      {"spec", spec_json(r)},
      {"metadata", metadata},
      {"tensors", tensors_json(file)},
      {"types", types_json(r)},
      {"tokenizer", tokenizer_json(file, r)},
      {"template", source.empty() ? json(nullptr) : json(cut(source, kTemplateBytesMax))},
      {"chat", chat_json(r.chat_template)},
      {"template_error", r.chat_template.error ? json(*r.chat_template.error) : json(nullptr)},
      {"kernels",
       {{"isa", r.isa}, {"host", kernels::host_isas()}, {"families", r.kernels}, {"tuning", tuning_json(r)}}},
      {"memory", memory_json(r)},
      {"unused_tensors", r.model.unused},
      {"odd", r.odd},
      {"refused", r.refused ? json(r.refused->message) : json(nullptr)},
  };
  write_json(out);
}

}  // namespace tally::apps
