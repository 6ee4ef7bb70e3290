#pragma once
// Operators, with Python's meaning.

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace tally::text::jinja {

// Arithmetic and ~. `left` may be grown in place if nobody else holds it.
Val arithmetic(Runtime& runtime, Op op, Val left, const Val& right);
// Comparisons, in, not in.
bool compares(Runtime& runtime, Op op, const Val& left, const Val& right);
bool contains(Runtime& runtime, const Val& container, const Val& item);
Val negate(const Val& v);

// subject[start:stop:step]; a part that is not given is none.
struct SliceParts {
  Val start, stop, step;
};
Val slice(Runtime& runtime, const Val& subject, const SliceParts& parts);

// What a for statement or a list filter walks over: items, keys, characters; nothing for undefined.
// Errors: kinds that cannot be walked.
ValList to_items(Runtime& runtime, const Val& v);
// len(v). Errors: kinds without a length.
int64_t length_of(Runtime& runtime, const Val& v);

}  // namespace tally::text::jinja
