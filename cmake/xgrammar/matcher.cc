// XGrammar's matcher, with what it lacks: a way to forget. Its parser keeps its states after each byte since
// the beginning, to go back there; but what may come next depends on few of them. They are the last, and, as
// rules that are not complete yet go on in the rule that asked for them, those of the rows where such rules
// began.
#include "grammar_matcher.cc"

#include <unordered_set>

namespace tally {
namespace {

namespace its {

// A member that its class keeps to itself: an explicit instantiation may name it.
template <typename Name, auto kMember>
struct Reach {
  friend constexpr auto member(Name) { return kMember; }
};
#define TALLY_REACH(Class, name)          \
  struct name {                           \
    friend constexpr auto member(name);   \
  };                                      \
  template struct Reach<name, &xgrammar::Class::name>

TALLY_REACH(EarleyParser, rule_id_to_completable_states_);
TALLY_REACH(EarleyParser, scanable_state_history_);
TALLY_REACH(EarleyParser, is_completed_);
TALLY_REACH(EarleyParser, char_count_history_);
TALLY_REACH(EarleyParser, char_budget_entry_history_);
TALLY_REACH(EarleyParser, has_char_budget_rules_);
TALLY_REACH(EarleyParser, has_budget_rules_);
TALLY_REACH(EarleyParser, capture_tracking_);
TALLY_REACH(EarleyParser, capture_event_history_);
TALLY_REACH(GrammarMatcher::Impl, token_length_history);
TALLY_REACH(GrammarMatcher::Impl, has_budget_marker_rules_);
TALLY_REACH(GrammarMatcher::Impl, row_byte_end_);
TALLY_REACH(GrammarMatcher::Impl, accepted_bytes_);
TALLY_REACH(GrammarMatcher::Impl, budget_body_match_cache_);
}  // namespace its

using xgrammar::Compact2DArray;
using xgrammar::ParserState;
using Parent = std::pair<int32_t, ParserState>;  // a rule, and the state that goes on when it is complete

int64_t parents_of(int32_t row, int32_t rule) { return (int64_t{row} << 32) | static_cast<uint32_t>(rule); }

// The parents that the rows from `first` on lead back to: by row, ascending, and of each those in use.
class Parents {
 public:
  Parents(const Compact2DArray<Parent>& all, const Compact2DArray<ParserState>& states, int32_t first)
      : all_(all), kept_(all.size()), is_wanted_(all.size()) {
    for (int32_t row = all.size() - 1; row >= 0; --row) {
      if (row >= first) {
        for (const ParserState& state : states[row]) want(state);
        for (const Parent& parent : all[row]) want(parent.second);
        kept_[row].assign(all[row].begin(), all[row].end());
      } else if (is_wanted_[row]) {
        collect(row);
      }
      if (row >= first || is_wanted_[row]) rows_.push_back(row);
    }
    std::reverse(rows_.begin(), rows_.end());
  }

  const std::vector<int32_t>& rows() const { return rows_; }
  const std::vector<Parent>& of(int32_t row) const { return kept_[row]; }

 private:
  void want(const ParserState& state) {
    if (state.rule_start_pos == ParserState::kNoPrevInputPos) return;
    is_wanted_[state.rule_start_pos] = true;
    wanted_.insert(parents_of(state.rule_start_pos, state.rule_id));
  }

  // A parent may have its own in the same row, before or behind it.
  void collect(int32_t row) {
    const auto parents = all_[row];
    std::vector<bool> taken(parents.size());
    for (bool more = true; more;) {
      more = false;
      for (int32_t i = 0; i < parents.size(); ++i) {
        if (taken[i] || wanted_.count(parents_of(row, parents[i].first)) == 0) continue;
        taken[i] = more = true;
        want(parents[i].second);
      }
    }
    for (int32_t i = 0; i < parents.size(); ++i)
      if (taken[i]) kept_[row].push_back(parents[i]);
  }

  const Compact2DArray<Parent>& all_;
  std::vector<std::vector<Parent>> kept_;
  std::vector<int32_t> rows_;
  std::vector<bool> is_wanted_;
  std::unordered_set<int64_t> wanted_;
};

// Rows without what is not asked for again.
template <typename T, typename Row>
Compact2DArray<T> packed(const std::vector<int32_t>& rows, const Row& row_of) {
  std::vector<T> data;
  std::vector<int32_t> begins = {0};
  begins.reserve(rows.size() + 1);
  for (const int32_t row : rows) {
    const auto& from = row_of(row);
    data.insert(data.end(), from.begin(), from.end());
    begins.push_back(static_cast<int32_t>(data.size()));
  }
  return Compact2DArray<T>::FromDataAndIndptr(std::move(data), std::move(begins));
}

template <typename Values>
void keep_rows(const std::vector<int32_t>& rows, Values& values) {
  Values kept;
  for (const int32_t row : rows) kept.push_back(values[row]);
  values = std::move(kept);
}

void forget(xgrammar::GrammarMatcher::Impl& m, size_t tokens_kept) {
  auto& lengths = m.*member(its::token_length_history{});
  auto& parents = m.*member(its::rule_id_to_completable_states_{});
  auto& states = m.*member(its::scanable_state_history_{});
  if (lengths.size() <= tokens_kept) return;
  int32_t first = parents.size() - 1;
  for (size_t i = lengths.size() - tokens_kept; i < lengths.size(); ++i) first -= lengths[i];

  const Parents used(parents, states, first);
  std::vector<int32_t> place(parents.size());
  for (size_t i = 0; i < used.rows().size(); ++i) place[used.rows()[i]] = static_cast<int32_t>(i);
  const auto moved = [&](ParserState state) {
    if (state.rule_start_pos != ParserState::kNoPrevInputPos)
      state.rule_start_pos = place[state.rule_start_pos];
    return state;
  };
  auto parents_left = packed<Parent>(used.rows(), [&](int32_t row) {
    std::vector<Parent> out = used.of(row);
    for (Parent& parent : out) parent.second = moved(parent.second);
    return out;
  });
  auto states_left = packed<ParserState>(used.rows(), [&](int32_t row) {
    std::vector<ParserState> out;
    if (row < first) return out;
    for (const ParserState& state : states[row]) out.push_back(moved(state));
    return out;
  });
  keep_rows(used.rows(), m.*member(its::is_completed_{}));
  if (m.*member(its::has_char_budget_rules_{})) {
    keep_rows(used.rows(), m.*member(its::char_count_history_{}));
    keep_rows(used.rows(), m.*member(its::char_budget_entry_history_{}));
  }
  if (m.*member(its::has_budget_marker_rules_{})) {
    keep_rows(used.rows(), m.*member(its::row_byte_end_{}));
    (m.*member(its::budget_body_match_cache_{})).clear();  // by row; made anew
  }
  parents = std::move(parents_left);
  states = std::move(states_left);
  // Budgets count tokens from the beginning.
  if (!(m.*member(its::has_budget_rules_{}))) lengths.erase(lengths.begin(), lengths.end() - tokens_kept);
}

// Captures are for who asks what a part matched; nobody does.
void end_captures(xgrammar::GrammarMatcher::Impl& m) {
  if (!(m.*member(its::capture_tracking_{}))) return;
  m.*member(its::capture_tracking_{}) = false;
  m.*member(its::capture_event_history_{}) = {};
  if (m.*member(its::has_budget_marker_rules_{})) return;
  (m.*member(its::accepted_bytes_{})).clear();
  m.*member(its::row_byte_end_{}) = {0};
}

}  // namespace
}  // namespace tally

extern "C" void tally_xgrammar_forget(xgrammar::GrammarMatcher* matcher, size_t tokens_kept) {
  tally::end_captures(*matcher->ImplPtr());
  tally::forget(*matcher->ImplPtr(), tokens_kept);
}
