// Any bytes as a constraint: it is refused with a message, or it can be followed, token after allowed token.

#include "base/check.h"
#include "sample/constraint.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using tally::TokenId;
using tally::sample::ConstraintSpec;

constexpr size_t kStepsMax = 24;

const tally::sample::ConstraintVocabulary& vocabulary() {
  static const tally::sample::ConstraintVocabulary made = [] {
    tally::sample::ConstraintVocabulary v;
    v.bytes = {"", "{\"", "\":", "\"}", "true", "ab"};
    for (int byte = 0; byte < 256; ++byte) v.bytes.emplace_back(1, static_cast<char>(byte));
    v.end_ids = {TokenId{0}};
    return v;
  }();
  return made;
}

tally::sample::ConstraintLimits small_limits() {
  tally::sample::ConstraintLimits limits;
  limits.compile_us = 50'000, limits.step_us = 50'000;
  limits.compile_bytes = limits.held_bytes = size_t{16} << 20;
  limits.forget_bytes = 0;  // a short text has its matcher forget as a long one does
  return limits;
}

}  // namespace

// The first byte says of which kind the rest is.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tally::sample::ConstraintCompiler compiler(vocabulary(), small_limits(), {});
  if (size == 0) return 0;
  constexpr uint8_t kKinds = 5;
  const ConstraintSpec spec{static_cast<ConstraintSpec::Kind>(data[0] % kKinds),
                            std::string(reinterpret_cast<const char*>(data) + 1, size - 1)};
  const auto made = compiler.compile(spec);
  if (!made) {
    TALLY_CHECK(!made.error().message.empty(), "an error without a message");
    return 0;
  }
  tally::sample::ConstraintMatcher matcher(*made);
  std::vector<TokenId> tokens;
  while (tokens.size() < kStepsMax && matcher.follow(tokens)) {
    size_t chosen = 0;
    for (size_t id = 1; id < vocabulary().bytes.size(); ++id) {
      const bool allowed = (matcher.allowed()[id / 32] >> (id % 32)) & 1;
      if (allowed && (chosen == 0 || (id * 31 + tokens.size()) % 7 == 0)) chosen = id;
    }
    const bool end = matcher.allowed()[0] & 1;
    TALLY_CHECK(end == matcher.may_end(), "the end is allowed where the text may end", end);
    TALLY_CHECK(end || chosen != 0, "alive without a token");
    if (chosen == 0) break;
    tokens.push_back(TokenId{static_cast<int32_t>(chosen)});
  }
  return 0;
}
