#pragma once
// What a request says about the form of its answer: response_format, structured_outputs. Private to openai/.

#include "serve/openai/json.h"
#include "serve/openai/requests.h"

#include <string>

namespace tally::serve::openai {

// At most one constraint; what is wrong goes to fields.error().
void read_constraint(Fields& fields, Options& out);

// Gives the answer its one constraint; `param` is the field that asks for it. A second one goes to
// fields.error().
void set_constraint(Fields& fields, Options& out, sample::ConstraintSpec spec, const std::string& param);

// The first thing in a schema that can be told to be wrong, or not supported, without compiling it: a
// sentence with the path, which begins with `path`. Empty: nothing.
std::string judge_schema(const Json& schema, const std::string& path);

}  // namespace tally::serve::openai
