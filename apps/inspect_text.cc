// An inspection for people: what matters first, the lists that grow with the file last.
#include "base/utf8.h"
#include "inspect.h"

#include <fmt/format.h>

#include <cstdio>

namespace tally::apps {
namespace {

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

std::string size_text(double bytes) {
  if (bytes >= 0x1p30) return fmt::format("{:.2f} GiB", bytes / 0x1p30);
  if (bytes >= 0x1p20) return fmt::format("{:.1f} MiB", bytes / 0x1p20);
  return fmt::format("{:.1f} KiB", bytes / 0x1p10);
}

std::string count_text(uint64_t count) {
  const auto n = static_cast<double>(count);
  if (n >= 1e9) return fmt::format("{:.2f} B", n / 1e9);
  return n >= 1e6 ? fmt::format("{:.1f} M", n / 1e6) : fmt::format("{}", count);
}

void print_head(const gguf::File& file, const Inspection& r) {
  fmt::print("{}: GGUF v{}, {} bytes, header {} bytes, {} keys, {} tensors\n",
             base::escape_for_log(file.path()), file.version(), file.file_bytes(), file.header_bytes(),
             file.metadata().size(), file.tensors().size());
  fmt::print("\nspec\n  {}{}{} parameters\n", r.architecture.empty() ? "(no architecture)" : r.architecture,
             r.name.empty() ? ", " : fmt::format(" \"{}\", ", r.name), count_text(r.parameters));
  for (const std::string& line : r.model.words) fmt::print("  {}\n", line);
  for (const LayerGroup& group : r.model.layers)
    fmt::print("  {} ({}): {}\n",
               group.layers.size() == 1 ? "layer" : fmt::format("{} layers", group.layers.size()),
               ranges_text(group.layers), group.words);
}

void print_types(const gguf::File& file, const Inspection& r) {
  if (r.types.empty()) return;
  uint64_t all = 0;
  for (const auto& [name, use] : r.types) all += use.bytes;
  fmt::print("\ntensors by type\n  {:<7} {:>7} {:>15} {:>8} {:>13}\n", "type", "tensors", "bytes", "share",
             "bits a weight");
  for (const auto& [name, use] : r.types) {
    fmt::print("  {:<7} {:>7} {:>15} {:>6.1f} % {:>13.4g}\n", name, use.tensors, use.bytes,
               100.0 * static_cast<double>(use.bytes) / static_cast<double>(all),
               8.0 * static_cast<double>(use.bytes) / static_cast<double>(use.elements));
  }
  fmt::print("  {:<7} {:>7} {:>15} {:>6.1f} % {:>13.4g}\n", "all", file.tensors().size(), all, 100.0,
             8.0 * static_cast<double>(all) / static_cast<double>(r.parameters));
}

void print_tokenizer(const gguf::File& file, const Inspection& r) {
  fmt::print("\ntokenizer\n");
  if (!r.tokenizer) return fmt::print("  none that tally can read\n");
  const text::Tokenizer& t = *r.tokenizer;
  const auto token = [&](TokenId id) {
    return fmt::format("{} '{}'", raw(id), base::escape_for_log(t.piece(id), 40));
  };
  fmt::print(
      "  {}{}, {} pieces; BOS {}, EOS {}\n", base::escape_for_log(t.model(), 64),
      t.pre_tokenizer().empty() ? ""
                                : fmt::format(", split as {}", base::escape_for_log(t.pre_tokenizer(), 64)),
      t.vocab_size(), t.adds_bos() ? "is added" : "is not added", t.adds_eos() ? "is added" : "is not added");
  for (const gguf::Metadata& m : file.metadata()) {
    if (!m.key.starts_with("tokenizer.ggml.") || !m.key.ends_with("_token_id")) continue;
    const auto id = file.get_uint(m.key, 0, t.vocab_size() - 1);
    if (id && *id)
      fmt::print("  {:<28} {}\n", base::escape_for_log(m.key.substr(15, m.key.size() - 24), 28),
                 token(TokenId{static_cast<int32_t>(**id)}));
  }
  std::string ends;
  for (const TokenId id : t.eog()) ends += (ends.empty() ? "" : ", ") + token(id);
  fmt::print("  {:<28} {}\n", "answers end at", ends.empty() ? "nothing" : ends);
}

void print_template(const Inspection& r) {
  fmt::print("\nchat template\n");
  const std::string_view source = r.chat_template.source;
  if (source.empty()) return fmt::print("  none\n");
  fmt::print("  in the file, {} bytes: {}\n", source.size(),
             base::escape_for_log(source.substr(0, source.find('\n')), 80));
  if (r.chat_template.error) return fmt::print("  {}\n", *r.chat_template.error);
  fmt::print("  can be rendered\n");
  const text::OutputFormat& output = r.chat_template.output;
  const bool calls = output.tools != text::ToolFormat::kNone;
  fmt::print("  {:<28} {}\n", "tools",
             !r.chat_template.shows_tools ? "not shown to the model"
             : calls                      ? fmt::format("calls as {}", text::tool_format_name(output.tools))
                                          : "calls in a way that is not read");
  fmt::print("  {:<28} {}\n", "thoughts",
             output.think_begin.empty()
                 ? "none"
                 : fmt::format("between {} and {}", output.think_begin, output.think_end));
}

void print_machine(const Inspection& r) {
  fmt::print("\nkernels (asked for {}, this CPU has {})\n", r.isa, kernels::host_isas());
  for (const auto& [family, isa] : r.kernels) {
    std::string_view note = "";
    if (isa == "none") {
      note = "  (this weight type is not supported)";
    } else if (isa != r.isa) {
      note = "  (no kernel of the tier asked for: the next lower one)";
    }
    fmt::print("  {:<16} {}{}\n", family, isa, note);
  }
  for (const engine::Tuning& t : r.tuning) {
    fmt::print("  {:<16} measured: prefetch {} bytes ahead, chunks of {} KiB; 2, 4, 8, 16, 32 rows cost",
               t.type, t.prefetch_bytes, t.chunk_bytes >> 10);
    for (size_t rows = 2; rows <= t.row_cost.size(); rows *= 2) fmt::print(" {:.2f}", t.row_cost[rows - 1]);
    fmt::print(" times one\n");
  }
  if (!r.model.weight_bytes && r.model.kv.empty()) return;
  fmt::print("\nmemory\n");
  if (r.model.weight_bytes)
    fmt::print("  weights, packed     {:>14} bytes ({})\n", *r.model.weight_bytes,
               size_text(static_cast<double>(*r.model.weight_bytes)));
  for (const KvCost& cost : r.model.kv) {
    fmt::print("  KV cache in {:<8}{:>14.0f} bytes a token, {} at the full context\n", cost.codec,
               cost.token_bytes, size_text(static_cast<double>(cost.context_bytes)));
  }
}

void print_lists(const gguf::File& file, const TextOptions& options) {
  fmt::print("\nmetadata\n");
  for (const gguf::Metadata& m : file.metadata())
    fmt::print("  {:<44} {}\n", base::escape_for_log(m.key, 80), value_text(m.value));
  if (!options.tensors) {
    if (!file.tensors().empty()) fmt::print("\n{} tensors: --tensors lists them\n", file.tensors().size());
    return;
  }
  fmt::print("\ntensors\n");
  for (const gguf::TensorInfo& t : file.tensors()) {
    fmt::print("  {:<36} {:<7} {:>20} {:>12} bytes\n", base::escape_for_log(t.name, 64),
               tensor::dtype_info(t.type).name, shape_text(t.shape), t.bytes);
  }
}

}  // namespace

void print_inspection(const gguf::File& file, const Inspection& found, const TextOptions& options) {
  print_head(file, found);
  print_types(file, found);
  print_tokenizer(file, found);
  print_template(found);
  print_machine(found);
  fmt::print("\nodd about this file\n");
  for (const std::string& line : found.odd) fmt::print("  {}\n", line);
  if (found.odd.empty()) fmt::print("  nothing\n");
  print_lists(file, options);
  std::fflush(stdout);
}

}  // namespace tally::apps
