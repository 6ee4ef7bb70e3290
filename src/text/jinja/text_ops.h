#pragma once
// What the string methods and the filters of the same name share.

#include "text/jinja/runtime.h"

#include <string_view>
#include <vector>

namespace tally::text::jinja {

// The string in `v`, or a Fault that names `what`.
const Str& text_of(const Val& v, std::string_view what);

// `chars`: null or none for white space.
Val strip_value(Runtime& runtime, const Str& text, Side side, const Val* chars);
// count < 0: all. An empty `old` is put between all characters.
Val replace_all(Runtime& runtime, const Str& text, const Str& old, const Str& by, int64_t count);
// Python's % on strings: %s, %d and %i take the next value, %% is a percent sign.
Val format_text(Runtime& runtime, const Str& format, const ValList& values);
Val list_of_pieces(Runtime& runtime, const Str& text, const std::vector<Piece>& pieces);
// Items of a mapping as (key, value) tuples.
Val pairs_of(Runtime& runtime, const Val& dict);

}  // namespace tally::text::jinja
