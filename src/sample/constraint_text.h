#pragma once
// What is judged about a constraint's text before XGrammar reads it: size, nesting, bounds of repetitions.
// Its parsers recurse, and unfold repetitions. Parts of a structural tag are judged as they would be alone.
// Private to the room.

#include "base/result.h"
#include "sample/constraint.h"

#include <string>
#include <string_view>
#include <vector>

namespace tally::sample {

// Errors: kBadData, naming what is too large, how large it is and what is allowed.
base::Result<void> judge_text(const ConstraintSpec& spec, const ConstraintLimits& limits);

// The texts in EBNF that a spec is or holds.
std::vector<std::string> grammars_of(const ConstraintSpec& spec);

// The first rule of a grammar, as XGrammar prints it, that begins with itself, at once or by way of others:
// in a text that would be a mistake more often than not. Empty: none.
std::string left_recursive_rule(std::string_view printed);

// What XGrammar said about it, without the names of its checks.
std::string plain_message(std::string_view message);

}  // namespace tally::sample
