#pragma once
// A string that knows where each of its bytes came from: from the template (trusted) or from a caller's input
// (untrusted). Every operation of the evaluator that makes a string from strings goes through append, so the
// border can never be lost.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tally::text::jinja {

class Str {
 public:
  Str() = default;
  Str(std::string_view bytes, bool trusted) : bytes_(bytes), first_trusted_(trusted) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // What this occupies, for the budget of live bytes.
  size_t memory_bytes() const { return bytes_.size() + borders_.size() * sizeof(size_t); }

  // An empty string is trusted: it says nothing.
  bool all_trusted() const { return bytes_.empty() || (first_trusted_ && borders_.empty()); }

  void append(std::string_view bytes, bool trusted);
  // Bytes [from, to) of `other`, each with the trust it had there.
  void append(const Str& other, size_t from = 0, size_t to = std::string::npos);
  Str slice(size_t from, size_t to) const;

  // Calls f(std::string_view run, bool trusted) for the runs of bytes [from, to), in order.
  template <class F>
  void for_runs(size_t from, size_t to, F&& f) const {
    bool trusted = first_trusted_;
    size_t begin = 0;
    for (size_t i = 0; i <= borders_.size() && begin < to; ++i) {
      const size_t end = i < borders_.size() ? borders_[i] : bytes_.size();
      const size_t low = begin < from ? from : begin;
      const size_t high = end < to ? end : to;
      if (low < high) f(std::string_view(bytes_).substr(low, high - low), trusted);
      begin = end;
      trusted = !trusted;
    }
  }

 private:
  std::string bytes_;
  std::vector<size_t> borders_;  // ascending offsets; trust flips at each
  bool first_trusted_ = true;    // of the run that starts at 0
};

// The pieces of `text` as offsets, all after Python's str methods (code points, Unicode white space).
struct Piece {
  size_t from = 0, to = 0;
};
enum class Side : unsigned char { kLeft, kRight, kBoth };

size_t char_length(std::string_view text, size_t at);  // bytes of the character at `at`
size_t count_chars(std::string_view text);
bool is_space(char32_t c);

// Without `chars`: white space.
Piece strip(std::string_view text, Side side, const std::string_view* chars);
// splits_max < 0: no limit. `separator` must not be empty.
std::vector<Piece> split_by(std::string_view text, std::string_view separator, long splits_max,
                            bool from_right);
std::vector<Piece> split_space(std::string_view text, long splits_max);
std::vector<Piece> split_lines(std::string_view text, bool keep_ends);

enum class Letters : unsigned char { kUpper, kLower, kTitle, kCapitalized, kSwapped, kJinjaTitle };
// Simple case mapping, run by run. kTitle: Python's str.title; kJinjaTitle: the filter's rule (words end at
// space - ( { [ <).
Str change_case(const Str& text, Letters letters);

enum class CharClass : unsigned char { kDigit, kAlpha, kAlnum, kSpace, kUpper, kLower };
// As str.isdigit and its kin: false for an empty string.
bool all_chars(std::string_view text, CharClass wanted);

}  // namespace tally::text::jinja
