// tally tokenize: text -> ids, or ids -> text with --decode. Without arguments it reads stdin.
#include "base/utf8.h"
#include "cli.h"
#include "gguf/gguf.h"
#include "loading.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tally::apps {
namespace {

std::string all_of(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1) return std::string((std::istreambuf_iterator<char>(std::cin)), {});
  std::string text = arguments[1];
  for (size_t i = 2; i < arguments.size(); ++i) text += " " + arguments[i];
  return text;
}

base::Result<std::vector<TokenId>> read_ids(const text::Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> ids;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const auto id = base::parse_uint(word);
    if (!id || !tokenizer.contains(static_cast<int64_t>(std::min<uint64_t>(*id, INT64_MAX)))) {
      return base::Error{base::ErrorCode::kBadData,
                         fmt::format("'{}' is no token id: 0..{} are allowed", base::escape_for_log(word, 64),
                                     tokenizer.vocab_size() - 1)};
    }
    ids.push_back(TokenId{static_cast<int32_t>(*id)});
  }
  return ids;
}

}  // namespace

int run_tokenize(const Invocation& call) {
  const auto model = model_argument(call.arguments, SIZE_MAX);
  if (!model) return fail(model.error());
  const auto file = gguf::File::open(*model);
  if (!file) return fail(file.error());
  const auto tokenizer = text::Tokenizer::load(*file);
  if (!tokenizer) return fail(tokenizer.error());
  const std::string text = all_of(call.arguments);
  const bool json = call.settings.on("json"), special = call.settings.on("special");

  const auto ids = call.settings.on("decode")
                       ? read_ids(*tokenizer, text)
                       : tokenizer->encode(text, call.settings.on("add-special"), special);
  if (!ids) return fail(ids.error());
  if (call.settings.on("decode")) {
    const std::string decoded = tokenizer->decode(*ids, !special);
    if (json) {
      fmt::print("{}\n", nlohmann::json{{"prompt", decoded}}.dump());
    } else {
      fmt::print("{}\n", decoded);
    }
    return 0;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const TokenId id : *ids) list.push_back(raw(id));
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"count", ids->size()}, {"tokens", list}}.dump());
    return 0;
  }
  for (const TokenId id : *ids)
    fmt::print("{:>7}  {}\n", raw(id), base::escape_for_log(tokenizer->bytes_with_special(id)));
  return 0;
}

}  // namespace tally::apps
