#pragma once
// What the answers of a model with a format of its own may be: forced tool calls, and any form behind
// thoughts.

#include "sample/constraint.h"
#include "serve/openai/tools.h"
#include "text/output.h"

#include <string>

namespace tally::serve::openai {

// Both write structural tags of XGrammar, as JSON: thoughts, if the model has any, and then what is asked
// for. Source: XGrammar 0.2.9, docs/structural_tag.

// Calls in the model's own format, with arguments after their schema, and nothing else. One call if one is
// named or `use.parallel` is off. Requires (checked): use.is_forced(), and a format of tools.
std::string call_constraint(const ToolUse& use, const text::OutputFormat& format, bool in_thoughts);
// What `spec` allows. As it is, if the model has no thoughts, or if it is no constraint at all: its compiler
// will say so.
sample::ConstraintSpec after_thoughts(const sample::ConstraintSpec& spec, const text::OutputFormat& format,
                                      bool in_thoughts);

}  // namespace tally::serve::openai
