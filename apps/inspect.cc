#include "inspect.h"

#include "base/utf8.h"
#include "model/model.h"
#include "text/chat.h"

#include <fmt/format.h>

namespace tally::apps {
namespace {

constexpr uint32_t kDefaultBlockTokens = 64;  // the default of --block-tokens

std::string_view string_of(const gguf::File& file, std::string_view key) {
  const auto value = file.get_string(key);
  return value ? value->value_or("") : "";
}

void count_tensors(const gguf::File& file, Inspection& found) {
  for (const gguf::TensorInfo& t : file.tensors()) {
    TypeUse& use = found.types[tensor::dtype_info(t.type).name];
    ++use.tensors, use.elements += t.shape.elements(), use.bytes += t.bytes;
    found.parameters += t.shape.elements();
  }
}

void choose_kernels(const gguf::File& file, const kernels::KernelTable& table, Inspection& found) {
  for (const gguf::TensorInfo& t : file.tensors()) {
    if (t.shape.rank < 2) continue;
    const kernels::LinearFormat* format = table.find_linear(t.type);
    found.kernels[fmt::format("linear {}", tensor::dtype_info(t.type).name)] =
        format == nullptr ? "none" : kernels::isa_name(format->isa);
  }
  for (const kernels::AttentionKernels& a : table.attention)
    found.kernels[fmt::format("attention {}", tensor::kv_codec_info(a.codec).name)] =
        kernels::isa_name(a.isa);
  found.kernels["vector"] = kernels::isa_name(table.vector.isa);
}

// The spec and what it costs; the first reason for which the file is refused stays in `found`.
void read_model(const gguf::File& file, const kernels::KernelTable& table, Inspection& found) {
  auto spec = model::read_spec(file);
  if (!spec) {
    found.refused = spec.error();
    return;
  }
  found.model.words = spec_words(file, *spec);
  found.model.layers = layer_groups(*spec);
  for (const tensor::KvCodecInfo& codec : tensor::kKvCodecs) {
    KvCost cost{codec.name, 0, 0};
    for (const tensor::KvLayout& layout : model::kv_layouts(*spec, codec.codec, kDefaultBlockTokens)) {
      cost.token_bytes += static_cast<double>(layout.block_bytes) / kDefaultBlockTokens;
      cost.context_bytes +=
          (spec->context + uint64_t{kDefaultBlockTokens} - 1) / kDefaultBlockTokens * layout.block_bytes;
    }
    found.model.kv.push_back(cost);
  }
  const auto packed = model::Model::packed_bytes(file, table, {});
  if (packed) {
    found.model.weight_bytes = *packed;
    if (auto unused = model::Model::find_unused_tensors(file, table)) {
      found.model.unused = std::move(unused).value();
    }
  } else {
    found.refused = packed.error();
  }
  found.model.spec = std::move(spec).value();
}

void read_text(const gguf::File& file, Inspection& found) {
  auto tokenizer = text::Tokenizer::load(file);
  if (tokenizer) {
    found.tokenizer = std::move(tokenizer).value();
  } else if (!found.refused) {
    found.refused = tokenizer.error();
  }
  found.chat_template.source = string_of(file, "tokenizer.chat_template");
  if (found.chat_template.source.empty()) return;
  const auto parsed = text::ChatTemplate::parse(found.chat_template.source);
  if (!parsed) {
    found.chat_template.error = parsed.error().message;
    return;
  }
  found.chat_template.shows_tools = parsed->shape().shows_tools;
  if (found.tokenizer) found.chat_template.output = text::find_output_format(*parsed, *found.tokenizer, {});
}

}  // namespace

Inspection inspect_file(const gguf::File& file, const kernels::KernelTable& table) {
  Inspection found;
  found.architecture = base::escape_for_log(string_of(file, "general.architecture"), 64);
  found.name = base::escape_for_log(string_of(file, "general.name"), 80);
  found.isa = kernels::isa_name(table.isa);
  found.vocabulary_only = file.tensors().empty();
  count_tensors(file, found);
  choose_kernels(file, table, found);
  if (!found.vocabulary_only) read_model(file, table, found);
  read_text(file, found);
  found.odd = odd_lines(file, found);
  return found;
}

std::string ranges_text(const std::vector<uint32_t>& ascending) {
  constexpr size_t kRangesMax = 12;
  std::string out;
  size_t ranges = 0;
  for (size_t i = 0; i < ascending.size(); ++ranges) {
    size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (ranges == kRangesMax) return out + ", ...";
    out += fmt::format("{}{}", out.empty() ? "" : ", ", ascending[i]);
    if (last > i) out += fmt::format("-{}", ascending[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace tally::apps
