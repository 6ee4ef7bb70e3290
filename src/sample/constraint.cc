#include "sample/constraint.h"

#include "base/check.h"
#include "base/signal_stack.h"
#include "sample/constraint_held.h"
#include "sample/constraint_text.h"

#include <fmt/format.h>
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace tally::sample {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using Kind = ConstraintSpec::Kind;

// Parsers recurse along rules that refer to each other, of which a text can hold thousands. Untouched pages
// of a stack cost nothing.
constexpr size_t kStackBytes = size_t{256} << 20;

// Runs `work` on a thread with a stack of its own, and waits for it. What it throws is memory that the
// process does not have.
Result<void> on_deep_stack(const std::function<void()>& work) {
  struct Job {
    const std::function<void()>& work;
    bool failed = false;
  } job{work};
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread{};
  const int failed = ::pthread_create(
      &thread, &attributes,
      [](void* argument) -> void* {
        Job& given = *static_cast<Job*>(argument);
        base::take_signal_stack();
        try {
          given.work();
        } catch (const std::exception&) {
          given.failed = true;
        }
        return nullptr;
      },
      &job);
  ::pthread_attr_destroy(&attributes);
  if (failed != 0) return Error{ErrorCode::kUnavailable, "no thread to compile on could be started"};
  ::pthread_join(thread, nullptr);
  if (job.failed) return Error{ErrorCode::kUnavailable, "there is no memory to compile it"};
  return {};
}

xgrammar::CompiledGrammar build(xgrammar::GrammarCompiler& compiler, const ConstraintSpec& spec) {
  constexpr bool kAnyBlanks = true, kOnlyNamed = true;
  switch (spec.kind) {
    case Kind::kJsonObject:
      return compiler.CompileJSONSchema(R"({"type":"object"})", kAnyBlanks, std::nullopt, std::nullopt,
                                        !kOnlyNamed);
    case Kind::kJsonSchema:
      return compiler.CompileJSONSchema(spec.text, kAnyBlanks, std::nullopt, std::nullopt, kOnlyNamed);
    case Kind::kRegex:
      return compiler.CompileRegex(spec.text);
    case Kind::kGrammar:
      return compiler.CompileGrammar(spec.text);
    case Kind::kStructuralTag:
      return compiler.CompileStructuralTag(spec.text);
  }
  TALLY_UNREACHABLE("kind of a constraint");
}

std::shared_ptr<const Blanks> find_blanks(const std::vector<std::string>& words) {
  auto out = std::make_shared<Blanks>();
  out->only.resize(mask_words(words.size()));
  out->trailing.resize(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t last = word.find_last_not_of(" \t\n\r");
    const size_t count = last == std::string::npos ? word.size() : word.size() - last - 1;
    out->trailing[i] = static_cast<uint8_t>(std::min<size_t>(count, UINT8_MAX));
    if (count == word.size() && !word.empty()) out->only[i / 32] |= 1u << (i % 32);
  }
  return out;
}

// Of a spec that compiles.
std::string judge_recursion(const ConstraintSpec& spec) {
  for (const std::string& grammar : grammars_of(spec)) {
    const std::string rule = left_recursive_rule(xgrammar::Grammar::FromEBNF(grammar).ToString());
    if (!rule.empty())
      return "the rule \"" + rule + "\" begins with itself: write what repeats as (...)* or to the right";
  }
  return "";
}

// A compilation on its way.
struct Attempt {
  std::optional<xgrammar::CompiledGrammar> grammar;
  Meter meter;
  std::string message;  // what is wrong with the spec
  int64_t bytes = 0;
};

}  // namespace

ConstraintSpec choice_of(std::span<const std::string> texts) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < texts.size(); ++i) {
    grammar += i == 0 ? "\"" : " | \"";
    for (const char c : texts[i]) {
      if (c == '"' || c == '\\') {
        grammar += '\\';
        grammar += c;
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
        grammar += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      } else {
        grammar += c;
      }
    }
    grammar += '"';
  }
  return {Kind::kGrammar, grammar};
}

Constraint::Constraint(std::unique_ptr<const State> state) : state_(std::move(state)) {
  state_->held->add(HeldBytes::Of::kConstraints, static_cast<int64_t>(state_->bytes));
}
Constraint::~Constraint() {
  state_->held->add(HeldBytes::Of::kConstraints, -static_cast<int64_t>(state_->bytes));
}
size_t Constraint::bytes() const { return state_->bytes; }

struct ConstraintCompiler::State {
  struct Entry {
    std::string key;
    std::shared_ptr<const Constraint> constraint;
  };

  ConstraintLimits limits;
  std::shared_ptr<HeldBytes> held;
  std::vector<TokenId> end_ids;
  size_t vocab = 0, table_bytes = 0;
  std::shared_ptr<const Blanks> blanks;
  std::atomic<bool> ending{false};
  std::optional<xgrammar::GrammarCompiler> compiler;  // const use from many threads: it keeps nothing

  std::mutex mutex;
  std::list<Entry> entries;  // guarded by mutex; last used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key;  // guarded by mutex

  static std::string key_of(const ConstraintSpec& spec) {
    return static_cast<char>('0' + static_cast<int>(spec.kind)) + spec.text;
  }
  std::shared_ptr<const Constraint> find(const std::string& key);
  Result<std::shared_ptr<const Constraint>> keep(const ConstraintSpec& spec, const Attempt& done);
  bool make_room(size_t bytes);
  void attempt(const ConstraintSpec& spec, Attempt& out);
  std::string judge_beginning(const xgrammar::CompiledGrammar& grammar) const;
};

ConstraintCompiler::ConstraintCompiler(const ConstraintVocabulary& vocabulary, const ConstraintLimits& limits,
                                       std::function<void(int64_t bytes)> booked)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.limits = limits;
  s.held = std::make_shared<HeldBytes>(std::move(booked));
  s.end_ids = vocabulary.end_ids;
  s.vocab = vocabulary.bytes.size();
  s.blanks = find_blanks(vocabulary.bytes);
  std::vector<int32_t> ends;
  for (const TokenId id : vocabulary.end_ids) ends.push_back(raw(id));
  Meter meter;
  {
    const Meter::Running running(meter);
    const xgrammar::TokenizerInfo info(vocabulary.bytes, xgrammar::VocabType::RAW, std::nullopt, ends);
    s.compiler.emplace(info, 1, false);
  }
  s.table_bytes = static_cast<size_t>(meter.live_bytes) + s.blanks->trailing.size() +
                  s.blanks->only.size() * sizeof(uint32_t);
}

ConstraintCompiler::~ConstraintCompiler() { state_->held->close(); }

size_t ConstraintCompiler::table_bytes() const { return state_->table_bytes; }

size_t ConstraintCompiler::planned_bytes(const ConstraintVocabulary& vocabulary) {
  // By id and in order; places in three lists; its blanks. What a string does not hold in itself has a block
  // of the allocator.
  constexpr size_t kPerToken =
      sizeof(std::string) + sizeof(std::pair<int32_t, std::string>) + 3 * sizeof(int32_t);
  constexpr size_t kInside = 15, kBlock = 16;
  const size_t tokens = vocabulary.bytes.size();
  size_t bytes = tokens * (kPerToken + 1) + mask_words(tokens) * sizeof(uint32_t);
  for (const std::string& word : vocabulary.bytes)
    if (word.size() > kInside) bytes += 2 * ((word.size() + 1 + kBlock) / kBlock * kBlock);
  return bytes;
}

std::shared_ptr<const Constraint> ConstraintCompiler::State::find(const std::string& key) {
  const std::lock_guard lock(mutex);
  const auto at = by_key.find(key);
  if (at == by_key.end()) return nullptr;
  entries.splice(entries.begin(), entries, at->second);
  return at->second->constraint;
}

std::shared_ptr<const Constraint> ConstraintCompiler::find(const ConstraintSpec& spec) {
  return state_->find(State::key_of(spec));
}

// Drops what nobody uses, the longest unused first, until `bytes` more fit. False: they never would, and
// nothing is dropped. Requires: mutex is held.
bool ConstraintCompiler::State::make_room(size_t bytes) {
  size_t needed = held->total(HeldBytes::Of::kConstraints) + bytes;
  std::vector<std::list<Entry>::iterator> idle;
  for (auto at = entries.end(); needed > limits.held_bytes && at != entries.begin();) {
    if ((--at)->constraint.use_count() > 1) continue;
    needed -= std::min(needed, at->constraint->bytes());
    idle.push_back(at);
  }
  if (needed > limits.held_bytes) return false;
  for (const auto& entry : idle) {
    by_key.erase(entry->key);
    entries.erase(entry);
  }
  return true;
}

// Everything of XGrammar that a compilation makes is made and, but for the result, freed here.
void ConstraintCompiler::State::attempt(const ConstraintSpec& spec, Attempt& out) {
  out.meter.live_bytes_max = static_cast<int64_t>(limits.compile_bytes);
  out.meter.cpu_us_max = limits.compile_us;
  out.meter.stop = &ending;
  std::string recursion;
  try {
    const Meter::Running running(out.meter);
    out.grammar.emplace(build(*compiler, spec));
    out.bytes = out.meter.live_bytes;
    recursion = judge_recursion(spec);
  } catch (const std::exception& e) {
    out.message = plain_message(e.what());
  }
  if (out.meter.out_of_time)
    out.message = fmt::format("it takes more than {} ms to compile", limits.compile_us / 1000);
  if (out.meter.out_of_bytes)
    out.message = fmt::format("it takes more than {} MiB to compile", limits.compile_bytes >> 20);
  if (out.message.empty() && !out.meter.warning.empty()) out.message = plain_message(out.meter.warning);
  if (out.message.empty()) out.message = judge_beginning(*out.grammar);
  if (out.message.empty()) out.message = recursion;
  if (!out.message.empty()) out.grammar.reset();
  // What a large one left is given back, or a different schema each time would never stop growing the
  // process.
  constexpr int64_t kWorthTrimming = int64_t{1} << 20;
  if (out.meter.peak_bytes - out.bytes > kWorthTrimming) ::malloc_trim(0);
}

// What may come first: something besides the end, found within half of what a matcher may take. The other
// half is for what comes later.
std::string ConstraintCompiler::State::judge_beginning(const xgrammar::CompiledGrammar& grammar) const {
  std::vector<uint32_t> mask(mask_words(vocab));
  Meter meter;
  meter.live_bytes_max = static_cast<int64_t>(limits.matcher_bytes / 2 - mask.size() * sizeof(uint32_t));
  meter.cpu_us_max = limits.step_us;
  meter.stop = &ending;
  try {
    const Meter::Running running(meter);
    xgrammar::GrammarMatcher matcher(grammar);
    fill_mask(matcher, mask);
  } catch (const std::exception&) {
    meter.out_of_bytes = true;
  }
  if (meter.out_of_bytes || meter.out_of_time) {
    return fmt::format("it takes more than {} ms or {} KiB to follow", limits.step_us / 1000,
                       limits.matcher_bytes >> 11);
  }
  const auto any = [&] {
    return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  };
  if (!any()) return "it allows no text that this model's tokens can begin";
  for (const TokenId id : end_ids) {
    const auto i = static_cast<uint32_t>(raw(id));
    mask[i / 32] &= ~(1u << (i % 32));
  }
  return any() ? "" : "it allows nothing but the empty text";
}

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::State::keep(const ConstraintSpec& spec,
                                                                          const Attempt& done) {
  std::string key = key_of(spec);
  const bool is_json = spec.kind != Kind::kRegex && spec.kind != Kind::kGrammar;
  constexpr size_t kRecordBytes = sizeof(Entry) + sizeof(Constraint::State) + 128;
  auto state = std::make_unique<Constraint::State>(
      Constraint::State{*done.grammar, limits, vocab,
                        static_cast<size_t>(std::max<int64_t>(0, done.bytes)) + key.size() + kRecordBytes,
                        is_json ? blanks : nullptr, held});
  if (state->bytes > limits.held_bytes) {
    return Error{ErrorCode::kBadData, fmt::format("compiled it has {} bytes, at most {} are allowed",
                                                  state->bytes, limits.held_bytes)};
  }
  const std::lock_guard lock(mutex);
  if (const auto at = by_key.find(key); at != by_key.end()) return at->second->constraint;
  if (!make_room(state->bytes)) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("the constraints of running requests leave no room for another of {} bytes, {} "
                             "are allowed together",
                             state->bytes, limits.held_bytes)};
  }
  auto constraint = std::make_shared<const Constraint>(std::move(state));
  entries.push_front({std::move(key), constraint});
  by_key.emplace(entries.front().key, entries.begin());
  return constraint;
}

void ConstraintCompiler::end() { state_->ending = true; }

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::compile(const ConstraintSpec& spec) {
  if (auto found = state_->find(State::key_of(spec))) return found;
  if (state_->end_ids.empty())
    return Error{ErrorCode::kBadData, "this model has no token that could end a constrained answer"};
  TALLY_TRY_VOID(judge_text(spec, state_->limits));
  Attempt attempt;
  TALLY_TRY_VOID(on_deep_stack([&] { state_->attempt(spec, attempt); }));
  if (state_->ending) return Error{ErrorCode::kUnavailable, "the server is ending"};
  if (!attempt.message.empty()) return Error{ErrorCode::kBadData, attempt.message};
  return state_->keep(spec, attempt);
}

}  // namespace tally::sample
