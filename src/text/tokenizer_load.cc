// tokenizer.* of a model file to a Tokenizer.

#include "base/utf8.h"
#include "text/tokenizer_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::text {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kGemma4 = "gemma4";  // of tokenizer.ggml.model, and of tokenizer.ggml.pre
constexpr uint32_t kGgufInt32 = 5;

// Scores are f32; some files have whole numbers.
Result<std::vector<float>> read_scores(const gguf::File& file) {
  const gguf::Value* value = file.find(kScoresKey);
  const auto* array = value == nullptr ? nullptr : std::get_if<gguf::Array>(&value->data);
  if (array != nullptr && array->element_type == kGgufInt32) {
    TALLY_TRY(const std::vector<int64_t> whole, file.get_ints(kScoresKey, INT32_MIN, INT32_MAX));
    std::vector<float> scores;
    scores.reserve(whole.size());
    for (const int64_t score : whole) scores.push_back(static_cast<float>(score));
    return scores;
  }
  TALLY_TRY(const std::vector<float>* const floats, file.get_floats(kScoresKey));
  return floats == nullptr ? std::vector<float>() : *floats;
}

// The rule that llama.cpp derives from the name of the model: strip flags are not in the file.
Result<bool> name_is_phi3(const gguf::File& file) {
  TALLY_TRY(const std::optional<std::string_view> name, file.get_string("general.name"));
  std::string lower(name.value_or(""));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;
}

// `row` is null for SPM.
Result<EncodeRules> read_rules(const gguf::File& file, const PreTokenizer* row) {
  EncodeRules rules;
  TALLY_TRY(const std::optional<bool> bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  TALLY_TRY(const std::optional<bool> eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  TALLY_TRY(const std::optional<bool> prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  TALLY_TRY(const std::optional<bool> squeeze, file.get_bool("tokenizer.ggml.remove_extra_whitespaces"));
  TALLY_TRY(rules.eat_space_right, name_is_phi3(file));
  rules.add_bos = bos.value_or(row == nullptr || row->add_bos);
  rules.add_eos = eos.value_or(false);
  rules.space_prefix = row == nullptr && prefix.value_or(true);
  rules.squeeze_spaces = row == nullptr && squeeze.value_or(false);
  return rules;
}

// An id that shall be added but is not named is a fault of the file that a user should hear of, not one to
// die of.
void check_added(const Vocabulary& vocabulary, EncodeRules& rules, std::vector<std::string>& warnings) {
  const auto check = [&](bool& add, SpecialRole role, std::string_view name) {
    if (!add || vocabulary.role(role)) return;
    add = false;
    warnings.push_back(fmt::format("tokenizer.ggml.{}_token_id is missing, so no {} is added", name, name));
  };
  check(rules.add_bos, SpecialRole::kBos, "bos");
  check(rules.add_eos, SpecialRole::kEos, "eos");
}

Result<const PreTokenizer*> read_pre_tokenizer(const gguf::File& file, std::string_view model,
                                               std::vector<std::string>& warnings) {
  // This model has one pre-tokenizer, whatever its files say of `pre`.
  if (model == kGemma4) return find_pre_tokenizer(kGemma4);
  TALLY_TRY(const std::optional<std::string_view> name, file.get_string(kPreKey));
  if (!name) {
    warnings.push_back(
        "tokenizer.ggml.pre is missing: text is split by the default rules, answers may be worse");
  }
  const PreTokenizer* row = find_pre_tokenizer(name.value_or("default"));
  if (row != nullptr) return row;
  std::string known;
  for (const PreTokenizer& r : pre_tokenizers()) {
    for (const std::string_view n : r.names) known += known.empty() ? std::string(n) : ", " + std::string(n);
  }
  return Error{ErrorCode::kBadData,
               fmt::format("tokenizer.ggml.pre is \"{}\", which is not supported; supported are {}",
                           base::escape_for_log(*name, 64), known)};
}

// An error of this room is given the path, and the offset of the key that its message begins with, as errors
// of the file have.
Error located(const gguf::File& file, Error error) {
  const std::string path = base::escape_for_log(file.path());
  const std::string_view message = error.message;
  if (message.starts_with(path)) return error;
  for (const gguf::Metadata& item : file.metadata()) {
    if (!message.starts_with(item.key)) continue;
    const std::string_view rest = message.substr(item.key.size());
    if (rest.empty() || (rest[0] != ' ' && rest[0] != '[' && rest[0] != ':')) continue;  // a longer key
    error.message = fmt::format("{}: byte {}: {}", path, item.offset, message);
    return error;
  }
  error.message = fmt::format("{}: {}", path, message);
  return error;
}

}  // namespace

Result<VocabularyFields> read_vocabulary_fields(const gguf::File& file, bool byte_level) {
  VocabularyFields fields;
  fields.byte_level = byte_level;
  TALLY_TRY(const std::vector<std::string_view>* const tokens, file.get_strings(kTokensKey));
  if (tokens == nullptr) return Error{ErrorCode::kBadData, fmt::format("{} is missing", kTokensKey)};
  fields.tokens = *tokens;
  TALLY_TRY(fields.kinds, file.get_ints("tokenizer.ggml.token_type", INT32_MIN, INT32_MAX));
  if (file.find("tokenizer.ggml.token_type") != nullptr && fields.kinds.empty()) {
    return Error{ErrorCode::kBadData, "tokenizer.ggml.token_type is empty"};
  }
  TALLY_TRY(fields.scores, read_scores(file));
  for (size_t r = 0; r < kSpecialRoleCount; ++r) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", kSpecialRoleKeys[r]);
    TALLY_TRY(fields.roles[r], file.get_uint(key, 0, UINT32_MAX));
  }
  TALLY_TRY(fields.suppressed, file.get_ints("tokenizer.ggml.suppress_tokens", 0, INT32_MAX));
  return fields;
}

Result<Tokenizer> Tokenizer::load(const gguf::File& file) {
  Result<Tokenizer> tokenizer = load_unlocated(file);
  if (!tokenizer) return located(file, tokenizer.error());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::load_unlocated(const gguf::File& file) {
  TALLY_TRY(const std::string_view model, file.require_string("tokenizer.ggml.model"));
  const bool bpe = model == "gpt2" || model == kGemma4;
  if (!bpe && model != "llama") {
    return Error{
        ErrorCode::kBadData,
        fmt::format("tokenizer.ggml.model is \"{}\", which is not supported; supported are gpt2, llama "
                    "and gemma4",
                    base::escape_for_log(model, 64))};
  }
  std::vector<std::string> warnings;
  const PreTokenizer* pre_tokenizer = nullptr;
  if (bpe) {
    TALLY_TRY(pre_tokenizer, read_pre_tokenizer(file, model, warnings));
  }
  const bool byte_level = bpe && !pre_tokenizer->raw_utf8;
  TALLY_TRY(const VocabularyFields fields, read_vocabulary_fields(file, byte_level));
  TALLY_TRY(Vocabulary vocabulary, Vocabulary::build(fields));

  auto state = std::make_unique<State>(std::move(vocabulary));
  state->model = model;
  state->pre_tokenizer = pre_tokenizer;
  state->warnings = std::move(warnings);
  TALLY_TRY(state->rules, read_rules(file, pre_tokenizer));
  check_added(state->vocabulary, state->rules, state->warnings);
  if (bpe) {
    TALLY_TRY(const std::optional<std::string_view> pre, file.get_string(kPreKey));
    state->pre = model == kGemma4 ? kGemma4 : pre.value_or("default");
    TALLY_TRY(const std::vector<std::string_view>* const merges, file.get_strings(kMergesKey));
    if (merges == nullptr) {
      return Error{ErrorCode::kBadData,
                   fmt::format("{} is missing; the model \"{}\" needs it", kMergesKey, model)};
    }
    const BpeOptions options{.ignore_merges = pre_tokenizer->ignore_merges,
                             .raw_utf8 = pre_tokenizer->raw_utf8,
                             .newline_runs_whole = pre_tokenizer->newline_runs_whole};
    TALLY_TRY(state->bpe, BpeEncoder::build(state->vocabulary, *merges, options));
    if (const size_t dropped = state->bpe->dropped_merges()) {
      state->warnings.push_back(fmt::format(
          "{} of {} merges were dropped: a part or the result is no text token", dropped, merges->size()));
    }
  } else {
    TALLY_TRY(state->spm, SpmEncoder::build(state->vocabulary));
  }
  if (const size_t count = state->specials.too_long_count()) {
    state->warnings.push_back(fmt::format(
        "{} special tokens are longer than {} bytes and not recognised in text", count, kSpecialBytesMax));
  }
  TALLY_TRY(const std::optional<std::string_view> chat, file.get_string("tokenizer.chat_template"));
  if (chat) state->chat_template = std::string(*chat);
  return Tokenizer(std::move(state));
}

}  // namespace tally::text
