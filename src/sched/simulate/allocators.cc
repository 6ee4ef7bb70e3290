#include "sched/simulate/allocators.h"

#include "base/check.h"

#include <algorithm>
#include <bit>

namespace tally::sched::simulate {

namespace {
constexpr uint32_t kExtentMin = 16;  // slots
}  // namespace

AddressSpace::AddressSpace(uint32_t size) : holes_{{0, size}}, free_(size) {}

std::optional<Extent> AddressSpace::take(uint32_t size) {
  TALLY_CHECK(size >= 1, "an extent of nothing", size);
  const auto hole = std::ranges::find_if(holes_, [&](const Extent& h) { return h.size >= size; });
  if (hole == holes_.end()) return std::nullopt;
  const Extent out{hole->at, size};
  hole->at += size, hole->size -= size;
  if (hole->size == 0) holes_.erase(hole);
  free_ -= size;
  return out;
}

void AddressSpace::give(Extent extent) {
  auto next = std::ranges::lower_bound(holes_, extent.at, {}, &Extent::at);
  const bool joins_next = next != holes_.end() && extent.at + extent.size == next->at;
  TALLY_CHECK(next == holes_.end() || extent.at + extent.size <= next->at, "freed twice", extent.at);
  free_ += extent.size;
  if (next != holes_.begin()) {
    const auto previous = next - 1;
    TALLY_CHECK(previous->at + previous->size <= extent.at, "freed twice", extent.at);
    if (previous->at + previous->size == extent.at) {
      previous->size += extent.size;
      if (joins_next) previous->size += next->size, holes_.erase(next);
      return;
    }
  }
  if (joins_next) {
    next->at = extent.at, next->size += extent.size;
  } else {
    holes_.insert(next, extent);
  }
}

uint32_t AddressSpace::longest() const {
  uint32_t out = 0;
  for (const Extent& hole : holes_) out = std::max(out, hole.size);
  return out;
}

ContiguousPlanner::ContiguousPlanner(const Trace& trace, const Scenario& scenario)
    : trace_(trace), scenario_(scenario), space_(scenario.pool_tokens) {
  TALLY_CHECK(scenario.scheme == Scheme::kMaxLength || scenario.scheme == Scheme::kPowerOfTwo,
              "no contiguous scheme", static_cast<int>(scenario.scheme));
  scenario_.seqs_max =
      std::min(scenario.seqs_max, scenario.step_tokens);  // every decoding one has a row in every step
}

// Slots for a sequence of so many tokens.
uint32_t ContiguousPlanner::extent_size(uint32_t tokens) const {
  if (scenario_.scheme == Scheme::kMaxLength) return scenario_.model_len_max;
  return std::min(std::max(kExtentMin, std::bit_ceil(tokens)), std::max(scenario_.model_len_max, kExtentMin));
}

std::optional<Extent> ContiguousPlanner::take(uint32_t tokens) {
  const uint32_t size = extent_size(tokens);
  const std::optional<Extent> out = space_.take(size);
  if (!out && space_.free() >= size) in_pieces_ = true;
  return out;
}

Refusal ContiguousPlanner::submit(size_t request, SeqId first) {
  const TraceRequest& r = trace_.requests[request];
  if (uint64_t{r.prompt} + r.output > scenario_.model_len_max) return Refusal::kPromptTooLong;
  if (r.choices > scenario_.seqs_max) return Refusal::kTooManyChoices;
  // Enough that it comes to its end when it is alone.
  if (uint64_t{extent_size(r.prompt)} * r.choices > scenario_.pool_tokens ||
      extent_size(r.prompt + r.output - 1) > scenario_.pool_tokens)
    return Refusal::kPoolTooSmall;
  auto member = std::make_unique<Member>();
  member->seq = first;
  member->arrival = r.arrival;
  member->prompt = member->known = r.prompt;
  member->end = r.prompt + r.output;
  member->unborn = r.choices - 1;
  waiting_.push_back(std::move(member));
  return Refusal::kNone;
}

void ContiguousPlanner::add_rows(Member& member, uint32_t rows) {
  if (member.rows == 0) {
    member.group = static_cast<uint32_t>(planned_.size());
    planned_.push_back(&member);
    plan_.rows.push_back({.seq = member.seq, .position = member.computed, .decode = member.decoding});
    if (!member.scheduled) plan_.admitted.push_back(member.seq);
    member.scheduled = true;
  }
  member.rows += rows;
  PlannedRows& group = plan_.rows[member.group];
  group.rows = member.rows;
  const uint32_t end = member.computed + member.rows;
  group.recomputed = std::min(end, std::max(member.peak, member.computed)) - member.computed;
  group.wants_logits = end == member.known;
}

// Drops the latest one, with the choices that wait for its prompt: it has nothing left and waits again.
void ContiguousPlanner::preempt_last(SeqId by) {
  size_t at = running_.size() - 1;
  while (!running_[at]->born) --at;
  for (size_t i = at; i < running_.size(); ++i) space_.give(running_[i]->extent);
  MemberPtr victim = std::move(running_[at]);
  running_.resize(at);
  ++counts_.preemptions;
  plan_.preempted.push_back({victim->seq, by, 0, victim->computed});
  victim->computed = 0;
  victim->decoding = false;
  const auto place = std::ranges::find_if(waiting_, [&](const MemberPtr& w) { return victim->before(*w); });
  waiting_.insert(place, std::move(victim));
}

// Moves a sequence to a longer piece. False: it was the latest, and has been preempted itself.
bool ContiguousPlanner::grow(size_t at) {
  Member& member = *running_[at];
  for (;;) {
    if (const std::optional<Extent> longer = take(member.known)) {
      space_.give(member.extent);
      member.extent = *longer;
      ++counts_.copies;
      counts_.copied_tokens += member.computed;
      return true;
    }
    const bool self = at + 1 == running_.size();
    preempt_last(member.seq);
    if (self) return false;
  }
}

bool ContiguousPlanner::admit_first() {
  Member& root = *waiting_.front();
  if (running_.size() + 1 + root.unborn > scenario_.seqs_max) return false;
  std::vector<Extent> extents;
  while (extents.size() < 1 + size_t{root.unborn}) {
    const std::optional<Extent> extent = take(root.known);
    if (!extent) {
      for (const Extent& e : extents) space_.give(e);
      return false;
    }
    extents.push_back(*extent);
  }
  size_t at = 0;
  while (at < running_.size() && running_[at]->before(root)) ++at;
  running_.insert(running_.begin() + static_cast<ptrdiff_t>(at), std::move(waiting_.front()));
  waiting_.pop_front();
  root.extent = extents[0];
  for (uint32_t c = 1; c <= root.unborn; ++c) {
    auto choice = std::make_unique<Member>(root);
    choice->seq = SeqId{raw(root.seq) + c};
    choice->unborn = 0;
    choice->born = false;
    choice->extent = extents[c];
    running_.insert(running_.begin() + static_cast<ptrdiff_t>(at + c), std::move(choice));
  }
  return true;
}

void ContiguousPlanner::admit() {
  if (scenario_.batching == Batching::kStatic && !running_.empty()) return;
  while (!waiting_.empty() && admit_first()) {
  }
}

void ContiguousPlanner::plan_prefills(uint32_t left) {
  order_.clear();
  for (const MemberPtr& member : running_) {
    if (member->born && !member->decoding) order_.push_back(member.get());
  }
  if (order_.empty() || left == 0) return;
  const auto give = [&](Member& member, uint32_t most) {
    const uint32_t rows = std::min(most, member.remaining() - member.rows);
    if (rows > 0) add_rows(member, rows);
    left -= rows;
  };
  give(*order_.front(), (left + 3) / 4);
  std::ranges::sort(order_, [](const Member* a, const Member* b) {
    return a->remaining() != b->remaining() ? a->remaining() < b->remaining() : a->before(*b);
  });
  for (Member* member : order_) give(*member, left);
}

const StepPlan& ContiguousPlanner::plan(Tick) {
  plan_.rows.clear(), plan_.ended.clear(), plan_.preempted.clear();
  plan_.admitted.clear(), plan_.begins.clear();
  planned_.clear();
  in_pieces_ = false;
  // Whoever is preempted for growth stands behind the one that grows, and has no row yet.
  uint32_t decodes = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i]->decoding) continue;
    if (running_[i]->known > running_[i]->extent.size && !grow(i)) break;
    add_rows(*running_[i], 1);
    ++decodes;
  }
  if (plan_.preempted.empty() || running_.empty()) admit();
  plan_prefills(scenario_.step_tokens - decodes);
  for (size_t i = 0; i < planned_.size(); ++i) {
    PlannedRows& group = plan_.rows[i];
    if (!group.wants_logits || planned_[i]->unborn == 0) continue;
    group.begins_at = static_cast<uint32_t>(plan_.begins.size());
    group.begins = planned_[i]->unborn;
    for (uint32_t c = 1; c <= group.begins; ++c) plan_.begins.push_back(SeqId{raw(group.seq) + c});
  }
  return plan_;
}

SlotUse ContiguousPlanner::slots() const {
  SlotUse out;
  out.running = static_cast<uint32_t>(running_.size());
  for (const MemberPtr& m : running_) {
    const uint32_t stored = m->computed + m->rows;
    out.allocated += m->extent.size;
    out.stored += stored;
    out.reserved += std::min(m->extent.size, m->end - 1) - stored;
  }
  if (in_pieces_) out.external = space_.free();
  return out;
}

// The choices of a prompt begin with a copy of it.
void ContiguousPlanner::begin_choices(Member& root) {
  const auto at = std::ranges::find_if(running_, [&](const MemberPtr& m) { return m.get() == &root; });
  for (uint32_t c = 1; c <= root.unborn; ++c) {
    Member& choice = **(at + c);
    choice.computed = choice.peak = root.computed;
    choice.known = root.known;
    choice.born = choice.decoding = choice.scheduled = true;
    ++counts_.copies;
    counts_.copied_tokens += root.computed;
  }
  root.unborn = 0;
}

void ContiguousPlanner::end(Member& member) {
  space_.give(member.extent);
  ended_.push_back({member.seq, EndReason::kLength});
}

std::span<const Ended> ContiguousPlanner::commit(std::span<const Outcome> outcomes, Tick) {
  ended_.clear();
  size_t used = 0;
  for (size_t i = 0; i < planned_.size(); ++i) {
    Member& member = *planned_[i];
    counts_.recomputed_tokens += plan_.rows[i].recomputed;
    used += plan_.rows[i].outcomes();
    member.computed += member.rows;
    member.peak = std::max(member.peak, member.computed);
    member.rows = 0;
    if (!plan_.rows[i].wants_logits) continue;
    ++member.known;
    member.decoding = true;
    if (member.unborn > 0) begin_choices(member);
  }
  TALLY_CHECK(used == outcomes.size(), "an outcome for each row with logits", used, outcomes.size());
  for (const MemberPtr& member : running_)
    if (member->decoding && member->known == member->end) end(*member);
  std::erase_if(running_, [](const MemberPtr& m) { return m->decoding && m->known == m->end; });
  return ended_;
}

}  // namespace tally::sched::simulate
