#include "text/jinja/text_ops.h"

#include "text/jinja/print.h"

#include <algorithm>

namespace tally::text::jinja {

const Str& text_of(const Val& v, std::string_view what) {
  require_defined(v);
  if (!v.is(Kind::kString)) fail(std::string(what) + " must be a string, not " + std::string(type_name(v)));
  return v.str();
}

Val strip_value(Runtime& runtime, const Str& text, Side side, const Val* chars) {
  runtime.meter().text(text.size());
  Piece rest;
  if (chars == nullptr || chars->is(Kind::kNone)) {
    rest = strip(text.bytes(), side, nullptr);
  } else {
    const std::string_view set = text_of(*chars, "the argument of strip").bytes();
    runtime.meter().search(text.size(), set.size() * 4);
    rest = strip(text.bytes(), side, &set);
  }
  return runtime.string(text.slice(rest.from, rest.to));
}

Val replace_all(Runtime& runtime, const Str& text, const Str& old, const Str& by, int64_t count) {
  Builder out(runtime);
  const std::string& bytes = text.bytes();
  runtime.meter().search(bytes.size(), old.size());
  size_t from = 0;
  while (count != 0) {
    size_t at = 0, next = 0;
    if (old.empty()) {  // before each character, and at the end
      out.append(by);
      if (from >= bytes.size()) break;
      at = from;
      next = from + char_length(bytes, from);
      out.append(text, at, next);
    } else {
      at = bytes.find(old.bytes(), from);
      if (at == std::string::npos) break;
      out.append(text, from, at);
      out.append(by);
      next = at + old.size();
    }
    from = next;
    if (count > 0) --count;
  }
  out.append(text, from);
  return out.finish();
}

Val format_text(Runtime& runtime, const Str& format, const ValList& values) {
  Builder out(runtime);
  size_t used = 0, from = 0;
  for (size_t at; (at = format.bytes().find('%', from)) != std::string::npos;) {
    out.append(format, from, at);
    const char kind = at + 1 < format.size() ? format.bytes()[at + 1] : '\0';
    from = std::min(at + 2, format.size());
    if (kind == '%') {
      out.append(format, at, at + 1);
      continue;
    }
    if (kind != 's' && kind != 'd' && kind != 'i') fail("only %s, %d, %i and %% can be formatted");
    if (used == values.size()) fail("not enough arguments for format string");
    const Val& value = values[used++];
    if (kind == 's')
      print_to(out, value);
    else
      print_to(out, Val::integer(to_integer(value, "the value of %d"), value.trusted));
  }
  if (used != values.size()) fail("not all arguments converted during string formatting");
  out.append(format, from);
  return out.finish();
}

Val list_of_pieces(Runtime& runtime, const Str& text, const std::vector<Piece>& pieces) {
  runtime.heap().ask(pieces.size() * sizeof(Val));
  ValList items;
  items.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    runtime.meter().text(piece.to - piece.from);
    items.push_back(runtime.string(text.slice(piece.from, piece.to)));
  }
  return runtime.list(std::move(items));
}

Val pairs_of(Runtime& runtime, const Val& dict) {
  ValList items;
  for (const auto& [key, value] : dict.dict().items) {
    runtime.meter().step();
    items.push_back(runtime.list({key, value}, true));
  }
  return runtime.list(std::move(items));
}

}  // namespace tally::text::jinja
