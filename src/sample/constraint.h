#pragma once
// What an answer may look like, as sets of allowed tokens. A ConstraintSpec is compiled once for a vocabulary
// and shared; each sequence follows it with a matcher of its own, which says before every token which may
// come next. Grammars are compiled and matched by XGrammar, of which nothing is seen here.
//
// A token is allowed if the text so far and its bytes can be the beginning of a text of the grammar; an end
// id if the text so far is one. Tokens without bytes (control tokens) are never allowed.

#include "base/ids.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::sample {

struct ConstraintSpec {
  enum class Kind : uint8_t {
    kJsonObject,     // any JSON object; `text` is empty
    kJsonSchema,     // JSON by a schema: what it does not name is not there
    kRegex,          // the whole answer, without anchors
    kGrammar,        // EBNF in XGrammar's form (GBNF's), from the rule `root`
    kStructuralTag,  // JSON of XGrammar: text with tagged parts
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  bool operator==(const ConstraintSpec&) const = default;
};
// The name of what constraints hold, in the runtime account.
inline constexpr std::string_view kConstraintPart = "constraints";

// One of these texts.
ConstraintSpec choice_of(std::span<const std::string> texts);

struct ConstraintLimits {
  size_t text_bytes = size_t{256} << 10;     // of a spec
  uint32_t nesting = 128;                    // of brackets in it
  uint32_t repetition = 8192;                // the largest bound of a repetition, at any depth
  uint32_t pattern_repetition = 256;         // the same in a pattern inside a schema, which is unfolded
  int64_t compile_us = 1'000'000;            // of one compilation, as its thread runs
  size_t compile_bytes = size_t{32} << 20;   // held at once while it is under way
  size_t held_bytes = size_t{64} << 20;      // of all that is compiled, kept or in use
  size_t matcher_bytes = size_t{1} << 20;    // of one matcher, but for the tokens it has followed
  size_t forget_bytes = size_t{64} << 10;    // by so much it grows until it forgets again
  uint32_t matchers = 64;                    // how many there may be at once, by who uses this
  int64_t step_us = 50'000;                  // of one matcher before one token, as its thread runs
  int64_t ahead_us = 2'000;                  // the same to look ahead, which only saves time
  // What all of it together may come to.
  size_t room_bytes() const { return compile_bytes + held_bytes + matchers * matcher_bytes; }
};

// Compiled. Immutable; any number of matchers on any threads.
class Constraint {
 public:
  struct State;
  explicit Constraint(std::unique_ptr<const State> state);
  ~Constraint();
  size_t bytes() const;
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<const State> state_;
};

// What a vocabulary is to a grammar. Bytes: of each id in generated text, empty for those that give none.
struct ConstraintVocabulary {
  std::vector<std::string> bytes;
  std::vector<TokenId> end_ids;  // ascending
};

// Threads: all members from any thread. compile() runs for up to compile_us on a thread that it starts.
class ConstraintCompiler {
 public:
  // `booked(bytes)` is told of every change of what is held, matchers included and the tables of the
  // vocabulary not, until this ends; from any thread, it must not block.
  ConstraintCompiler(const ConstraintVocabulary& vocabulary, const ConstraintLimits& limits,
                     std::function<void(int64_t bytes)> booked);
  ~ConstraintCompiler();
  // What the tables for a vocabulary take: as planned, and as they are.
  static size_t planned_bytes(const ConstraintVocabulary& vocabulary);
  size_t table_bytes() const;

  // What is there already. Null: it has to be compiled, or compile() says why it cannot be had.
  std::shared_ptr<const Constraint> find(const ConstraintSpec& spec);
  // Errors: kBadData, a message for who wrote the spec: it is not well formed, allows no text, or takes more
  // time or memory than it may; kUnavailable: the constraints in use leave no room.
  base::Result<std::shared_ptr<const Constraint>> compile(const ConstraintSpec& spec);
  // Ends compilations that are under way, and refuses others (kUnavailable).
  void end();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

// One sequence on its way through a constraint. What it holds does not grow with the text, but for its
// tokens: it keeps what the rest of the text depends on. Threads: one at a time.
class ConstraintMatcher {
 public:
  explicit ConstraintMatcher(std::shared_ptr<const Constraint> constraint);
  ~ConstraintMatcher();
  // Of each token followed, at most.
  static constexpr size_t token_bytes() { return 3 * sizeof(TokenId); }  // a vector that grows

  // Follows `generated` and the drafts behind it, from where they part from what was followed before, and
  // finds what may come next.
  // Where the text may end, `stop_ids` may come too. False: nothing may come after these, though it may after
  // others; or following takes more time or memory than it may, and then it is dead for good. Going back far
  // is following anew.
  bool follow(std::span<const TokenId> generated, std::span<const TokenId> stop_ids = {},
              std::span<const TokenId> drafts = {});
  // How the text that must come behind `generated` may be cut into tokens: a guess, of as many as `into` has
  // room for. Returns how many; 0 where more than one text may come. allowed() does not hold behind it. Where
  // looking takes too much it is dead, though another that follows the same need not be.
  size_t forced(std::span<const TokenId> generated, std::span<TokenId> into);
  // Of the last follow(): bit i % 32 of word i / 32 is set if id i may come next.
  std::span<const uint32_t> allowed() const;
  // The text so far is one of the grammar.
  bool may_end() const;
  bool is_dead() const;  // nothing can be followed any more
  // It is dead, as what the rest depends on is more than it may hold: parts that are not complete, inside
  // each other.
  bool is_full() const;
  size_t bytes() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace tally::sample
