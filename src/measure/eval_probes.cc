#include "measure/eval_probes.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tally::measure {
namespace {

class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }
  // Without a leading zero.
  std::string number(size_t digits) {
    std::string out(1, static_cast<char>('1' + below(9)));
    while (out.size() < digits) out += static_cast<char>('0' + below(10));
    return out;
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::mt19937_64 random_;
};

// Words that are one token, or two, in most vocabularies.
constexpr std::string_view kWords[] = {"silver",  "garden", "winter", "orange", "bridge",  "castle",
                                       "forest",  "window", "letter", "candle", "summer",  "yellow",
                                       "island",  "mirror", "copper", "ribbon", "basket",  "pepper",
                                       "feather", "hammer", "rocket", "velvet", "thunder", "walnut"};

// Prose of about `bytes`, in whole sentences, with `lines` spread evenly over it.
std::string bury(std::string_view filler, size_t bytes, const std::vector<std::string>& lines) {
  size_t own = 0;
  for (const std::string& line : lines) own += line.size() + 1;
  const size_t prose = bytes > own ? bytes - own : 0;
  std::string out;
  size_t at = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t until = std::min(filler.size(), prose * (i + 1) / (lines.size() + 1));
    const size_t end = filler.find(". ", until);
    if (end != std::string_view::npos && end + 1 > at && until > at) {
      out += filler.substr(at, end + 1 - at);
      out += '\n';
      at = end + 2;
    }
    out += lines[i] + '\n';
  }
  const size_t end = filler.find(". ", std::min(filler.size(), prose));
  if (end != std::string_view::npos && end + 1 > at)
    out += std::string(filler.substr(at, end + 1 - at)) + '\n';
  return out;
}

// Documents of a quarter and of the whole of what the context leaves beside a question.
std::vector<uint32_t> document_lengths(uint32_t context) {
  const uint32_t room = context - std::min(context, kForkTokens + context / 16);
  return {room / 4, room};
}

std::string depth_cell(uint32_t length, size_t at, size_t count) {
  const size_t quarter = 1 + 4 * at / count;
  return fmt::format("{} tokens, quarter {}", length, quarter);
}

std::string sum_of(const std::string& a, const std::string& b) {
  std::string out;
  int carry = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()) || carry > 0; ++i) {
    const auto digit = [i](const std::string& n) { return i < n.size() ? n[n.size() - 1 - i] - '0' : 0; };
    const int sum = digit(a) + digit(b) + carry;
    out += static_cast<char>('0' + sum % 10);
    carry = sum / 10;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// "k = 3\nm = k\np = m\n" and the name that has the value at last.
struct Chain {
  std::string lines, name, value;
};
Chain make_chain(size_t length, Draws& draws) {
  std::vector<char> names;
  for (char c = 'a'; c <= 'z'; ++c) names.push_back(c);
  draws.shuffle(names);
  Chain chain{"", std::string(1, names[0]), draws.number(2)};
  chain.lines = fmt::format("{} = {}\n", names[0], chain.value);
  const std::string other = draws.number(2);
  for (size_t i = 1; i < length; ++i) {
    chain.lines += fmt::format("{} = {}\n", names[i], names[i - 1]);
    chain.name = names[i];
    // A second value goes by, that is not asked for.
    if (i == 1) chain.lines += fmt::format("{} = {}\n", names[20], other);
  }
  return chain;
}

}  // namespace

size_t Probe::items() const {
  size_t n = 0;
  for (const Document& d : documents) n += d.questions.size();
  return n;
}

Probe make_recall(const ProbeRequest& request) {
  constexpr size_t kKeys[] = {4, 16};  // in the short document few, that small models can tell apart
  static_assert(kKeys[1] <= std::size(kWords));
  Draws draws(request.seed);
  Probe probe{"recall", {}};
  const std::vector<uint32_t> lengths = document_lengths(request.context);
  // Each key of a document is asked for once, until there are questions enough.
  for (size_t left = request.questions; left > 0;) {
    const size_t kind = probe.documents.size() % lengths.size(), count = kKeys[kind];
    std::vector<std::string> keys, lines, values(std::begin(kWords), std::end(kWords));
    for (size_t i = 0; i < count; ++i) keys.push_back(fmt::format("K{}", static_cast<char>('A' + i)));
    draws.shuffle(keys), draws.shuffle(values);
    for (size_t i = 0; i < count; ++i)
      lines.push_back(fmt::format("The password of agent {} is {}.", keys[i], values[i]));
    const uint32_t length = lengths[kind];
    Document document{bury(request.filler, static_cast<size_t>(length * request.bytes_per_token), lines), {}};
    const size_t asked = std::min(left, count);
    for (size_t q = 0; q < asked; ++q) {
      const size_t at = q * count / asked;
      document.questions.push_back({fmt::format("The password of agent {} is", keys[at]), values[at],
                                    fmt::format("{} keys, {}", count, depth_cell(length, at, count))});
    }
    left -= asked;
    probe.documents.push_back(std::move(document));
  }
  return probe;
}

Probe make_needle(const ProbeRequest& request) {
  constexpr size_t kDepths = 4;
  Draws draws(request.seed + 1);
  Probe probe{"needle", {}};
  const uint32_t length = document_lengths(request.context).front();
  const auto bytes = static_cast<size_t>(length * request.bytes_per_token);
  for (size_t at = 0; at < kDepths; ++at) {
    const std::string value = draws.number(4);
    std::vector<std::string> lines(kDepths, "");
    lines[at] = fmt::format("The secret number of this text is {}.", value);
    probe.documents.push_back(
        {bury(request.filler, bytes, lines),
         {{"The secret number of this text is", value, depth_cell(length, at, kDepths)}}});
  }
  return probe;
}

Probe make_tracking(const ProbeRequest& request) {
  constexpr size_t kShots = 4, kLengthMin = 2, kLengths = 4;
  Draws draws(request.seed + 2);
  Document document;
  const auto question = [&](const Chain& chain) {
    return fmt::format("{}value of {} is", chain.lines, chain.name);
  };
  for (size_t shot = 0; shot < kShots; ++shot) {
    const Chain chain = make_chain(kLengthMin + shot % kLengths, draws);
    document.text += fmt::format("{} {}\n\n", question(chain), chain.value);
  }
  for (uint32_t q = 0; q < request.questions; ++q) {
    const size_t length = kLengthMin + q % kLengths;
    const Chain chain = make_chain(length, draws);
    document.questions.push_back({question(chain), chain.value, fmt::format("{} assignments", length)});
  }
  return {"tracking", {std::move(document)}};
}

Probe make_arithmetic(const ProbeRequest& request) {
  constexpr size_t kShots = 8, kDigitsMin = 2, kDigits = 7;
  Draws draws(request.seed + 3);
  Document document;
  const auto draw = [&](size_t digits) {
    const std::string a = draws.number(digits), b = draws.number(digits);
    return Question{fmt::format("{} + {} =", a, b), sum_of(a, b), fmt::format("{} digits", digits)};
  };
  for (size_t shot = 0; shot < kShots; ++shot) {
    const Question example = draw(kDigitsMin + shot % kDigits);
    document.text += fmt::format("{} {}\n", example.text, example.answer);
  }
  for (uint32_t q = 0; q < request.questions; ++q)
    document.questions.push_back(draw(kDigitsMin + q % kDigits));
  return {"arithmetic", {std::move(document)}};
}

std::string first_word(std::string_view text) {
  const auto is_part = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  const auto begin = std::find_if(text.begin(), text.end(), is_part);
  return {begin, std::find_if_not(begin, text.end(), is_part)};
}

}  // namespace tally::measure
