#pragma once
// tool_choice "required" and a named function, as what the answer may be.

#include "serve/openai/tools.h"
#include "text/output.h"

#include <string>

namespace tally::serve::openai {

// A structural tag of XGrammar, as JSON: thoughts, if the model has any, and then calls in the model's own
// format with arguments after their schema, and nothing else. One call if one is named or `use.parallel` is
// off. Requires (checked): use.is_forced(), and a format of tools.
// Source: XGrammar 0.2.9, docs/structural_tag.
std::string call_constraint(const ToolUse& use, const text::OutputFormat& format, bool in_thoughts);

}  // namespace tally::serve::openai
