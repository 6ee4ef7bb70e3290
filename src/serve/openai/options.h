#pragma once
// The fields chat and text completions share. Private to openai/.

#include "serve/openai/json.h"
#include "serve/openai/requests.h"

#include <string_view>
#include <vector>

namespace tally::serve::openai {

enum class Route : uint8_t { kChat, kCompletion };

// Fills `out`; what is wrong, or not built, goes to fields.error().
void read_options(Fields& fields, Route route, size_t vocab_size, Options& out);
// A list of ids of the vocabulary; `param` names it in messages.
std::vector<TokenId> read_ids(Fields& fields, const JsonArray& list, std::string_view param,
                              size_t vocab_size);

}  // namespace tally::serve::openai
