// Filters that make a string or a number.

#include "text/jinja/filter_tables.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"

#include <array>
#include <charconv>
#include <cmath>

namespace tally::text::jinja {
namespace {

bool flag(const Args& args, size_t index, std::string_view name) {
  const Val* v = args.find(index, name);
  return v != nullptr && truth(*v);
}

Val trim(Runtime& runtime, const Val& v, const Args& args) {
  return strip_value(runtime, to_string(runtime, v).str(), Side::kBoth, args.find(0, "chars"));
}

template <Letters letters>
Val cased(Runtime& runtime, const Val& v, const Args&) {
  const Val text = to_string(runtime, v);
  runtime.meter().text(text.str().size() * 4);
  return runtime.string(change_case(text.str(), letters));
}

Val as_string(Runtime& runtime, const Val& v, const Args&) { return to_string(runtime, v); }

Val replace(Runtime& runtime, const Val& v, const Args& args) {
  const Val *old = args.find(0, "old"), *by = args.find(1, "new"), *count = args.find(2, "count");
  if (old == nullptr || by == nullptr) fail("replace takes two strings");
  const Val text = to_string(runtime, v), from = to_string(runtime, *old), to = to_string(runtime, *by);
  const bool all = count == nullptr || count->is(Kind::kNone);
  return replace_all(runtime, text.str(), from.str(), to.str(), all ? -1 : to_integer(*count, "count"));
}

Val indent(Runtime& runtime, const Val& v, const Args& args) {
  const Val text = to_string(runtime, v);
  const Val* width = args.find(0, "width");
  Str pad("    ", true);
  if (width != nullptr && width->is(Kind::kString)) {
    pad = width->str();
  } else if (width != nullptr) {
    const int64_t n = to_integer(*width, "the width of indent");
    runtime.heap().ask(n < 0 ? 0 : static_cast<size_t>(n));
    pad = Str(std::string(n < 0 ? 0 : static_cast<size_t>(n), ' '), true);
  }
  const bool first = flag(args, 1, "first"), blank = flag(args, 2, "blank");
  const std::string& bytes = text.str().bytes();
  std::vector<Piece> lines = split_lines(bytes, false);
  const bool ends_line = !bytes.empty() && (lines.empty() || lines.back().to < bytes.size());
  if (lines.empty() || ends_line) lines.push_back({bytes.size(), bytes.size()});
  Builder out(runtime);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out.append("\n", text.str().all_trusted());
    const bool pads = i == 0 ? first : blank || lines[i].from != lines[i].to;
    if (pads) out.append(pad);
    out.append(text.str(), lines[i].from, lines[i].to);
  }
  return out.finish();
}

Val json(Runtime& runtime, const Val& v, const Args& args) {
  JsonStyle style;
  // Hugging Face's tojson: ensure_ascii, indent, separators, sort_keys.
  style.ascii_only = flag(args, 0, "ensure_ascii");
  const Val *indent_arg = args.find(1, "indent"), *separators = args.find(2, "separators");
  if (indent_arg == nullptr && !args.values.empty() && args.values[0].is(Kind::kInt)) {
    indent_arg = &args.values[0];  // plain Jinja's tojson(2)
    style.ascii_only = false;
  }
  if (indent_arg != nullptr && !indent_arg->is(Kind::kNone)) {
    style.indent = to_integer(*indent_arg, "the indent of tojson");
    if (style.indent < 0 || style.indent > 64)
      fail("tojson: indent is 0 to 64, not " + std::to_string(style.indent));
    style.item_separator = ",";
  }
  if (separators != nullptr && separators->is(Kind::kList)) {
    if (separators->list().items.size() != 2) fail("tojson: separators are two strings");
    style.item_separator = text_of(separators->list().items[0], "a separator").bytes();
    style.key_separator = text_of(separators->list().items[1], "a separator").bytes();
  }
  style.sort_keys = flag(args, 3, "sort_keys");
  return to_json(runtime, v, style);
}

Val otherwise(Runtime& runtime, const Val& v, const Args& args) {
  const bool absent = v.is(Kind::kUndefined) || (flag(args, 1, "boolean") && !truth(v));
  if (!absent) return v;
  const Val* value = args.find(0, "default_value");
  return value != nullptr ? *value : runtime.string("", true);
}

// HTML escapes, for templates that ask for them.
Val escape(Runtime& runtime, const Val& v, const Args&) {
  const Val text = to_string(runtime, v);
  Builder out(runtime);
  text.str().for_runs(0, text.str().size(), [&](std::string_view run, bool trusted) {
    for (size_t i = 0; i < run.size(); ++i) {
      switch (run[i]) {
        case '&':
          out.append("&amp;", trusted);
          break;
        case '<':
          out.append("&lt;", trusted);
          break;
        case '>':
          out.append("&gt;", trusted);
          break;
        case '"':
          out.append("&#34;", trusted);
          break;
        case '\'':
          out.append("&#39;", trusted);
          break;
        default:
          out.append(run.substr(i, 1), trusted);
      }
    }
  });
  return out.finish();
}

// A number read from all of `text` (blanks around it aside); NaN if there is none.
double read_real(std::string_view text) {
  const Piece piece = strip(text, Side::kBoth, nullptr);
  text = text.substr(piece.from, piece.to - piece.from);
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : std::nan("");
}

Val to_int(Runtime&, const Val& v, const Args& args) {
  const Val* given = args.find(0, "default");
  const Val fallback = given != nullptr ? *given : Val::integer(0);
  if (v.is(Kind::kInt) || v.is(Kind::kBool)) return Val::integer(to_integer(v, ""), v.trusted);
  if (v.is(Kind::kString)) {
    const std::string_view all = v.str().bytes();
    const Piece piece = strip(all, Side::kBoth, nullptr);
    std::string_view text = all.substr(piece.from, piece.to - piece.from);
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size())
      return Val::integer(value, v.str().all_trusted());
  }
  const double real = v.is(Kind::kFloat)    ? v.f
                      : v.is(Kind::kString) ? read_real(v.str().bytes())
                                            : std::nan("");
  if (!(std::fabs(real) < 9.2e18)) return fallback;
  return Val::integer(static_cast<int64_t>(real), all_trusted(v));
}

Val to_float(Runtime&, const Val& v, const Args& args) {
  const Val* given = args.find(0, "default");
  const Val fallback = given != nullptr ? *given : Val::real(0.0);
  if (v.is(Kind::kFloat)) return v;
  if (v.is(Kind::kInt) || v.is(Kind::kBool))
    return Val::real(static_cast<double>(to_integer(v, "")), v.trusted);
  const double real = v.is(Kind::kString) ? read_real(v.str().bytes()) : std::nan("");
  return std::isnan(real) ? fallback : Val::real(real, all_trusted(v));
}

Val absolute(Runtime&, const Val& v, const Args&) {
  if (v.is(Kind::kFloat)) return Val::real(std::fabs(v.f), v.trusted);
  return to_integer(v, "the operand of abs") < 0 ? negate(v) : v;
}

Val rounded(Runtime& runtime, const Val& v, const Args& args) {
  const Val *digits = args.find(0, "precision"), *method = args.find(1, "method");
  const int64_t n = digits != nullptr ? to_integer(*digits, "the precision of round") : 0;
  if (n < -15 || n > 15) fail("round: precision is -15 to 15, not " + std::to_string(n));
  if (v.is(Kind::kInt) && n >= 0 && method == nullptr) return v;
  const Val number = to_float(runtime, v, Args());
  if (!v.is_number()) fail("round takes a number, not a " + std::string(type_name(v)));
  const double scale = std::pow(10.0, static_cast<double>(n)), scaled = number.f * scale;
  const std::string how = method != nullptr ? text_of(*method, "the method of round").bytes() : "common";
  if (how != "common" && how != "ceil" && how != "floor") fail("method must be common, ceil or floor");
  const double whole = how == "ceil"    ? std::ceil(scaled)
                       : how == "floor" ? std::floor(scaled)
                                        : std::nearbyint(scaled);
  const double value = whole / scale;
  if (!v.is(Kind::kFloat) && how == "common") return Val::integer(static_cast<int64_t>(value), v.trusted);
  return Val::real(value, v.trusted);
}

Val wordcount(Runtime& runtime, const Val& v, const Args&) {
  const Val text = to_string(runtime, v);
  runtime.meter().text(text.str().size());
  int64_t words = 0;
  for (const Piece& piece : split_space(text.str().bytes(), -1)) words += piece.to > piece.from ? 1 : 0;
  return Val::integer(words);
}

Val format(Runtime& runtime, const Val& v, const Args& args) {
  return format_text(runtime, text_of(v, "the subject of format"), args.values);
}

constexpr std::array kFilters = {
    Filter{"trim", trim},
    Filter{"upper", cased<Letters::kUpper>},
    Filter{"lower", cased<Letters::kLower>},
    Filter{"title", cased<Letters::kJinjaTitle>},
    Filter{"capitalize", cased<Letters::kCapitalized>},
    Filter{"string", as_string},
    Filter{"safe", as_string},
    Filter{"replace", replace},
    Filter{"indent", indent},
    Filter{"tojson", json},
    Filter{"default", otherwise},
    Filter{"d", otherwise},
    Filter{"escape", escape},
    Filter{"e", escape},
    Filter{"int", to_int},
    Filter{"float", to_float},
    Filter{"abs", absolute},
    Filter{"round", rounded},
    Filter{"wordcount", wordcount},
    Filter{"format", format},
};

}  // namespace

std::span<const Filter> text_filters() { return kFilters; }

}  // namespace tally::text::jinja
