// What is odd about a model file, a line each: nothing here stops it from being served.
#include "base/utf8.h"
#include "inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

namespace tally::apps {
namespace {

using Lines = std::vector<std::string>;

uint64_t number_of(const gguf::File& file, const std::string& key) {
  const auto value = file.get_uint(key, 0, UINT64_MAX);
  return value ? value->value_or(0) : 0;
}

struct FileType {
  uint64_t id;
  std::string_view name;
  tensor::DType type;  // that a file of this name has somewhere
};
// Source: llama.cpp, llama_ftype.
constexpr FileType kFileTypes[] = {
    {0, "F32", tensor::DType::kF32},        {1, "F16", tensor::DType::kF16},
    {2, "Q4_0", tensor::DType::kQ4_0},      {3, "Q4_1", tensor::DType::kQ4_1},
    {7, "Q8_0", tensor::DType::kQ8_0},      {8, "Q5_0", tensor::DType::kQ5_0},
    {9, "Q5_1", tensor::DType::kQ5_1},      {10, "Q2_K", tensor::DType::kQ2_K},
    {11, "Q3_K_S", tensor::DType::kQ3_K},   {12, "Q3_K_M", tensor::DType::kQ3_K},
    {13, "Q3_K_L", tensor::DType::kQ3_K},   {14, "Q4_K_S", tensor::DType::kQ4_K},
    {15, "Q4_K_M", tensor::DType::kQ4_K},   {16, "Q5_K_S", tensor::DType::kQ5_K},
    {17, "Q5_K_M", tensor::DType::kQ5_K},   {18, "Q6_K", tensor::DType::kQ6_K},
    {25, "IQ4_NL", tensor::DType::kIQ4_NL}, {30, "IQ4_XS", tensor::DType::kIQ4_XS},
    {32, "BF16", tensor::DType::kBF16},     {38, "MXFP4 of experts", tensor::DType::kMXFP4},
};

void odd_file(const gguf::File& file, Lines& odd) {
  if (file.version() < 3)
    odd.push_back(fmt::format("GGUF version {}: written by an old tool", file.version()));
  if (const uint64_t shards = number_of(file, "split.count"); shards > 1)
    odd.push_back(fmt::format("split over {} files, which must stay together", shards));
  if (const uint64_t alignment = number_of(file, "general.alignment"); alignment != 0 && alignment != 32)
    odd.push_back(fmt::format("general.alignment is {}, 32 is usual", alignment));
  uint64_t end = 0, shard = 0;
  for (const gguf::TensorInfo& t : file.tensors())
    end = std::max(end, t.file_offset + t.bytes), shard = std::max<uint64_t>(shard, t.shard);
  constexpr uint64_t kPaddingMax = 4096;
  if (shard == 0 && end > 0 && file.file_bytes() > end + kPaddingMax)
    odd.push_back(fmt::format("{} bytes behind the last tensor are not described", file.file_bytes() - end));
}

void odd_types(const gguf::File& file, const Inspection& found, Lines& odd) {
  bool any_matrix = false;
  std::set<tensor::DType> matrices;
  for (const gguf::TensorInfo& t : file.tensors()) {
    if (t.shape.rank < 2) continue;
    any_matrix = true;
    matrices.insert(t.type);
  }
  const auto said = file.get_uint("general.file_type", 0, UINT32_MAX);
  if (any_matrix && said && *said) {
    const auto row = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                  [&](const FileType& one) { return one.id == **said; });
    if (row != std::end(kFileTypes) && !matrices.contains(row->type)) {
      odd.push_back(fmt::format("general.file_type says {} ({}), but no matrix is {}", **said, row->name,
                                tensor::dtype_info(row->type).name));
    }
  }
  for (const auto& [family, isa] : found.kernels) {
    if (isa == "scalar" && found.isa != "scalar" && family.starts_with("linear "))
      odd.push_back(fmt::format("{}: no kernel of {} or a tier below it, the scalar one is slow",
                                family.substr(7), found.isa));
  }
}

void odd_tensors(const Inspection& found, Lines& odd) {
  const std::vector<std::string>& unused = found.model.unused;
  if (unused.empty()) return;
  constexpr size_t kShown = 4;
  std::string names;
  for (size_t i = 0; i < std::min(unused.size(), kShown); ++i) names += (i == 0 ? "" : ", ") + unused[i];
  odd.push_back(fmt::format("{} tensors are read by nothing: {}{}", unused.size(), names,
                            unused.size() > kShown ? ", ..." : ""));
}

void odd_context(const gguf::File& file, const Inspection& found, Lines& odd) {
  const std::string& a = found.architecture;
  if (!found.model.spec) return;
  const model::ModelSpec& s = *found.model.spec;
  const uint64_t original = number_of(file, a + ".rope.scaling.original_context_length");
  const auto kind = file.get_string(a + ".rope.scaling.type");
  const bool scaled = s.layer[0].rope.factor != 1 || (kind && *kind && **kind != "none") ||
                      file.find_tensor("rope_freqs.weight") != nullptr;
  if (original != 0 && original < s.context && !scaled) {
    odd.push_back(
        fmt::format("context is {}, trained for {}, and no rope scaling is given", s.context, original));
  }
  constexpr uint32_t kLongForPlainBase = 32768;
  const bool any_rope = s.layer[0].rope.kind != model::RopeKind::kNone;
  if (any_rope && !scaled && s.layer[0].rope.base <= 10000 && s.context > kLongForPlainBase &&
      s.layer[0].window == 0) {
    odd.push_back(fmt::format("context {} with rope base {:g} and no scaling: long prompts may go wrong",
                              s.context, s.layer[0].rope.base));
  }
}

void odd_keys(const gguf::File& file, const Inspection& found, Lines& odd) {
  const std::string& a = found.architecture;
  if (const uint64_t extra = number_of(file, a + ".nextn_predict_layers"); extra > 0)
    odd.push_back(fmt::format("{} layers at the end predict further tokens: not used", extra));
  const uint64_t vocabulary = number_of(file, a + ".vocab_size");
  if (found.tokenizer && vocabulary != 0 && vocabulary != found.tokenizer->vocab_size()) {
    odd.push_back(fmt::format("{}.vocab_size is {}, the tokenizer has {} pieces", a, vocabulary,
                              found.tokenizer->vocab_size()));
  }
  std::set<std::string_view> strangers;
  for (const gguf::Metadata& m : file.metadata()) {
    const std::string_view prefix = m.key.substr(0, m.key.find('.'));
    const auto known = model::architectures();
    if (prefix != a && std::find(known.begin(), known.end(), prefix) != known.end()) strangers.insert(prefix);
  }
  for (const std::string_view prefix : strangers)
    odd.push_back(fmt::format("has keys of {}, which an architecture named {} does not read", prefix, a));
}

// Bytes that no piece stands for cannot be encoded.
void odd_bytes(const text::Tokenizer& tokenizer, Lines& odd) {
  std::array<bool, 256> has{};
  for (size_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const std::string_view bytes = tokenizer.bytes_with_special(TokenId{static_cast<int32_t>(i)});
    if (bytes.size() == 1) has[static_cast<unsigned char>(bytes[0])] = true;
  }
  constexpr size_t kShown = 8;
  // Bytes that no UTF-8 text holds.
  const auto in_utf8 = [](size_t b) { return b != 0xC0 && b != 0xC1 && b < 0xF5; };
  size_t missing = 0;
  std::string names;
  for (size_t b = 0; b < has.size(); ++b) {
    if (has[b] || !in_utf8(b)) continue;
    if (++missing <= kShown) names += fmt::format(" {:02X}", b);
  }
  if (missing == 0) return;
  odd.push_back(fmt::format("the vocabulary has no piece for {} bytes:{}{}; text with them {}", missing,
                            names, missing > kShown ? " ..." : "",
                            tokenizer.unknown() ? "gives the unknown token" : "is refused"));
}

void odd_text(const Inspection& found, Lines& odd) {
  if (found.tokenizer) {
    const text::Tokenizer& t = *found.tokenizer;
    for (const std::string& warning : t.warnings()) odd.push_back(base::escape_for_log(warning));
    odd_bytes(t, odd);
    if (!t.eos()) odd.push_back("tokenizer.ggml.eos_token_id is missing");
    if (t.eog().empty()) odd.push_back("no token ends an answer: answers run until max_tokens");
    if (t.suppressed().size() > 0)
      odd.push_back(fmt::format("{} tokens are never sampled (suppress_tokens)", t.suppressed().size()));
  }
  if (found.vocabulary_only) {
    odd.push_back("a vocabulary without weights: tokenize works, serve and run have nothing to run");
  } else if (found.chat_template.source.empty()) {
    odd.push_back("no chat template: chats need --chat-template");
  }
  if (found.chat_template.error)
    odd.push_back(*found.chat_template.error + "; serve needs --chat-template, run needs it or --raw");
}

}  // namespace

Lines odd_lines(const gguf::File& file, const Inspection& found) {
  Lines odd;
  odd_file(file, odd);
  odd_types(file, found, odd);
  odd_tensors(found, odd);
  odd_context(file, found, odd);
  odd_keys(file, found, odd);
  odd_text(found, odd);
  return odd;
}

}  // namespace tally::apps
