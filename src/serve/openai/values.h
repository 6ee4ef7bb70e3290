#pragma once
// Parsed JSON in other forms. Private to openai/.

#include "serve/openai/json.h"
#include "text/chat.h"

#include <string>

namespace tally::serve::openai {

// As templates see it.
text::Value to_value(const Json& json);
// As text, on one line, members in their order.
std::string to_text(const Json& json);

}  // namespace tally::serve::openai
