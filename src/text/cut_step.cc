#include "text/cut_step.h"

namespace tally::text {
namespace {

// A text that is looked at from one place to another.
class Scanner {
 public:
  Scanner(const UnicodeClasses& classes, std::string_view text) : classes_(classes), text_(text) {}

  size_t end() const { return text_.size(); }
  char byte(size_t at) const { return text_[at]; }
  Character at(size_t at) const { return character_at(classes_, text_, at); }

  // End of the run, from `at` on, of characters that have one of `bits` (or none of them, if !wanted).
  size_t run(size_t at, unsigned bits, bool wanted) const {
    while (at < text_.size()) {
      const Character c = this->at(at);
      if (((c.bits & bits) != 0) != wanted) break;
      at += c.length;
    }
    return at;
  }

  // End of at most `max` numbers (0: any count).
  size_t numbers(size_t at, size_t max) const {
    if (max == 0) return run(at, kNumber, true);
    for (size_t i = 0; i < max && at < text_.size(); ++i) {
      const Character c = this->at(at);
      if ((c.bits & kNumber) == 0) break;
      at += c.length;
    }
    return at;
  }

  // Bytes of a contraction after the apostrophe at `at`; 0 if there is none.
  size_t contraction(size_t at, bool any_case) const {
    const auto letter = [&](size_t i) -> char {
      if (i >= text_.size()) return 0;
      const char c = text_[i];
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char a = letter(at + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    const char b = letter(at + 2);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
  }

  // End of the part that \s+(?!\S) | \s+ takes of a run of whitespace that begins at `at`.
  size_t spaces(size_t at) const {
    size_t last = at, stop = at;
    while (stop < text_.size()) {
      const Character c = this->at(stop);
      if ((c.bits & kSpace) == 0) break;
      last = stop;
      stop += c.length;
    }
    // The last one is left to join what follows, unless nothing follows or it is the only one.
    return stop == text_.size() || last == at ? stop : last;
  }

 private:
  const UnicodeClasses& classes_;
  std::string_view text_;
};

size_t gpt2_end(const Scanner& s, size_t at) {
  if (s.byte(at) == '\'') {
    if (const size_t n = s.contraction(at, false)) return at + n;
  }
  const size_t head = s.byte(at) == ' ' ? at + 1 : at;
  if (head < s.end()) {
    const unsigned bits = s.at(head).bits;
    if (bits & kLetter) return s.run(head, kLetter, true);
    if (bits & kNumber) return s.run(head, kNumber, true);
    if (!(bits & kSpace)) return s.run(head, kLetter | kNumber | kSpace, false);
  }
  return s.spaces(at);
}

// \s*[\r\n]+ : end after the last newline of the run of whitespace; `at` if it has none.
size_t newlines_end(const Scanner& s, size_t at) {
  size_t end = at;
  for (size_t i = at; i < s.end();) {
    const Character c = s.at(i);
    if ((c.bits & kSpace) == 0) break;
    i += c.length;
    if (c.bits & kNewline) end = i;
  }
  return end;
}

// TAIL; at least one character, whitespace or not.
size_t tail_end(const Scanner& s, size_t at) {
  const size_t end = newlines_end(s, at);
  return end > at ? end : s.spaces(at);
}

size_t words_end(const Scanner& s, size_t at, const CutStep& step) {
  if (s.byte(at) == '\'') {
    if (const size_t n = s.contraction(at, true)) return at + n;
  }
  const unsigned letters = step.marks_are_letters ? kLetter | kMark : unsigned{kLetter};
  const Character first = s.at(at);
  if (first.bits & letters) return s.run(at, letters, true);
  const size_t second = at + first.length;
  if ((first.bits & (kNumber | kNewline)) == 0 && second < s.end() && (s.at(second).bits & letters)) {
    return s.run(second, letters, true);
  }
  if (first.bits & kNumber) return s.numbers(at, step.run_max);

  const unsigned not_punctuation = letters | kNumber | kSpace;
  size_t head = at;
  if (s.byte(at) == ' ' && second < s.end()) head = second;
  if ((s.at(head).bits & not_punctuation) == 0) {
    const size_t end = s.run(head, not_punctuation, false);
    return step.punctuation_takes_newlines ? s.run(end, kNewline, true) : end;
  }
  return tail_end(s, at);
}

bool is_cut_punctuation(const Scanner& s, size_t at, bool backtick) {
  const char c = s.byte(at);
  if (c == '$' || c == '+' || c == '<' || c == '=' || c == '>' || c == '^' || c == '~' || c == '|')
    return true;
  return (backtick && c == '`') || (s.at(at).bits & kPunctuation);
}

size_t punctuation_end(const Scanner& s, size_t at, bool backtick) {
  const bool inside = is_cut_punctuation(s, at, backtick);
  do {
    at += s.at(at).length;
  } while (at < s.end() && is_cut_punctuation(s, at, backtick) == inside);
  return at;
}

size_t three_digits_end(const Scanner& s, size_t at) {
  const auto three = [&](size_t i) {
    const auto digit = [&](size_t k) { return k < s.end() && s.byte(k) >= '0' && s.byte(k) <= '9'; };
    return digit(i) && digit(i + 1) && digit(i + 2);
  };
  if (three(at)) return at + 3;
  while (at < s.end() && !three(at)) ++at;
  return at;
}

// U*V+ from `from` on; npos if that does not match. A greedy U* gives back what V+ needs.
size_t upper_lower_end(const Scanner& s, size_t from) {
  size_t last = std::string_view::npos;  // end of the last character that is in V too
  size_t at = from;
  while (at < s.end()) {
    const Character c = s.at(at);
    if ((c.bits & (kUpper | kUncased)) == 0) break;
    at += c.length;
    if (c.bits & kUncased) last = at;
  }
  if (at < s.end() && (s.at(at).bits & kLower)) return s.run(at, kLower | kUncased, true);
  return last;
}

// U+V*, as above.
size_t upper_end(const Scanner& s, size_t from) {
  const size_t at = s.run(from, kUpper | kUncased, true);
  return at == from ? std::string_view::npos : s.run(at, kLower | kUncased, true);
}

size_t cased_words_end(const Scanner& s, size_t at, const CutStep& step) {
  constexpr size_t kNoMatch = std::string_view::npos;
  const Character first = s.at(at);
  const size_t second = at + first.length;
  const bool may_lead = (first.bits & (kNewline | kLetter | kNumber)) == 0;
  size_t end = may_lead ? upper_lower_end(s, second) : kNoMatch;
  if (end == kNoMatch) end = upper_lower_end(s, at);
  if (end == kNoMatch && may_lead) end = upper_end(s, second);
  if (end == kNoMatch) end = upper_end(s, at);
  if (end != kNoMatch) {
    const bool quoted = step.contraction_after && end < s.end() && s.byte(end) == '\'';
    return quoted ? end + s.contraction(end, true) : end;
  }
  if (first.bits & kNumber) return s.numbers(at, step.run_max);

  constexpr unsigned kNotPunctuation = kLetter | kNumber | kSpace;
  const size_t head = s.byte(at) == ' ' && second < s.end() ? second : at;
  if (s.at(head).bits & kNotPunctuation) return tail_end(s, at);
  end = s.run(head, kNotPunctuation, false);
  while (end < s.end() && (s.byte(end) == '\r' || s.byte(end) == '\n' || s.byte(end) == '/')) ++end;
  return end;
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

size_t punctuated_words_end(const Scanner& s, size_t at) {
  constexpr unsigned kWord = kLetter | kMark, kSign = kPunctuation | kSymbol;
  const auto next_is_word = [&](size_t i, const Character& c) {
    return i + c.length < s.end() && (s.at(i + c.length).bits & kWord);
  };
  const Character first = s.at(at);
  const size_t second = at + first.length;
  const bool ascii = static_cast<uint8_t>(s.byte(at)) < 0x80;
  if (ascii && (first.bits & kSign) && second < s.end() && is_ascii_letter(s.byte(second))) {
    size_t end = second + 1;
    while (end < s.end() && is_ascii_letter(s.byte(end))) ++end;
    return end;
  }
  if ((first.bits & (kNewline | kLetter | kSign)) == 0 && next_is_word(at, first)) {
    return s.run(second, kWord, true);
  }
  if (first.bits & kWord) return s.run(at, kWord, true);
  const size_t head = s.byte(at) == ' ' && second < s.end() ? second : at;
  if (s.at(head).bits & kSign) return s.run(s.run(head, kSign, true), kNewline, true);
  if (first.bits & kSpace) return tail_end(s, at);
  // Numbers and characters without a class, up to one that leads a word.
  size_t end = second;
  while (end < s.end()) {
    const Character c = s.at(end);
    if ((c.bits & (kWord | kSign | kSpace)) || next_is_word(end, c)) break;
    end += c.length;
  }
  return end;
}

// End of a piece of a step whose matches are \s?X+ or " ?X+", X being any of `bits` (or none, if !wanted);
// `lead` says what may stand in front.
template <class Lead>
size_t led_runs_end(const Scanner& s, size_t at, unsigned bits, bool wanted, const Lead& lead) {
  const auto inside = [&](size_t i) { return i < s.end() && ((s.at(i).bits & bits) != 0) == wanted; };
  // Where X begins if a match begins at i; the end of the text if none does.
  const auto match = [&](size_t i) {
    if (lead(i)) {
      const size_t next = i + s.at(i).length;
      if (inside(next)) return next;
    }
    return inside(i) ? i : s.end();
  };
  if (const size_t begin = match(at); begin < s.end()) return s.run(begin, bits, wanted);
  do {
    at += s.at(at).length;
  } while (at < s.end() && match(at) == s.end());
  return at;
}

size_t runs_end(const Scanner& s, size_t at, const CutStep& step) {
  if (step.space_before) {
    return led_runs_end(s, at, step.set, true, [&](size_t i) { return (s.at(i).bits & kSpace) != 0; });
  }
  if ((s.at(at).bits & step.set) == 0) return s.run(at, step.set, false);
  if (step.run_max == 0) return s.run(at, step.set, true);
  size_t end = at;
  for (size_t i = 0; i < step.run_max && end < s.end(); ++i) {
    const Character c = s.at(end);
    if ((c.bits & step.set) == 0) break;
    end += c.length;
  }
  return end;
}

size_t trailing_space_end(const Scanner& s, size_t at) {
  size_t begin = at;  // of the whitespace that reaches to the end of the text
  for (size_t i = at; i < s.end();) {
    const Character c = s.at(i);
    i += c.length;
    if ((c.bits & kSpace) == 0) begin = i;
  }
  return begin == at ? s.end() : begin;
}

size_t line_end(const Scanner& s, size_t at) {
  const bool newline = s.byte(at) == '\n';
  while (at < s.end() && (s.byte(at) == '\n') == newline) ++at;
  return at;
}

}  // namespace

size_t piece_end(const CutStep& step, const UnicodeClasses& classes, std::string_view text, size_t at) {
  const Scanner s(classes, text);
  switch (step.kind) {
    case CutKind::kGpt2:
      return gpt2_end(s, at);
    case CutKind::kWords:
      return words_end(s, at, step);
    case CutKind::kCasedWords:
      return cased_words_end(s, at, step);
    case CutKind::kPunctuatedWords:
      return punctuated_words_end(s, at);
    case CutKind::kRuns:
      return runs_end(s, at, step);
    case CutKind::kThreeAsciiDigits:
      return three_digits_end(s, at);
    case CutKind::kPunctuationRuns:
      return punctuation_end(s, at, step.backtick);
    case CutKind::kTrailingSpace:
      return trailing_space_end(s, at);
    case CutKind::kLines:
      return line_end(s, at);
    case CutKind::kUnstopped:
      return led_runs_end(s, at, kSpace | kBloomStop, false, [&](size_t i) { return s.byte(i) == ' '; });
    case CutKind::kNone:
      break;
  }
  return text.size();
}

}  // namespace tally::text
