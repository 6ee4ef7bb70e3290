#pragma once
// What was usual before paging: a sequence's keys and values in one piece. The address space is real, so that
// holes too short for anyone, and copies to a longer piece, are too.

#include "sched/simulate/planner.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace tally::sched::simulate {

struct Extent {
  uint32_t at = 0, size = 0;  // slots
};

// Slots [0, size), given in pieces: each time the first hole that is long enough.
class AddressSpace {
 public:
  explicit AddressSpace(uint32_t size);
  // Requires: size >= 1. Empty: no hole is long enough.
  std::optional<Extent> take(uint32_t size);
  // Requires: a piece that was taken.
  void give(Extent extent);
  uint32_t free() const { return free_; }
  uint32_t longest() const;  // hole

 private:
  std::vector<Extent> holes_;  // by place, never side by side
  uint32_t free_ = 0;
};

// Schedules like the scheduler that serves, as far as this memory allows: a row for each decoding sequence,
// then admission while a piece is found, then prompt rows, a quarter for the oldest and the rest shortest
// first. No one passes the head of the line. A sequence that cannot grow takes the place of the latest ones,
// or gives up its own: all of it, for a piece cannot be given up in part. Choices each have their own piece
// from admission on, and the prompt is copied to them.
class ContiguousPlanner final : public Planner {
 public:
  // Requires: a contiguous scheme.
  ContiguousPlanner(const Trace& trace, const Scenario& scenario);

  Refusal submit(size_t request, SeqId first) override;
  const StepPlan& plan(Tick now) override;
  SlotUse slots() const override;
  std::span<const Ended> commit(std::span<const Outcome> outcomes, Tick now) override;
  PlannerCounts counts() const override { return counts_; }
  bool idle() const override { return waiting_.empty() && running_.empty(); }

 private:
  struct Member {
    SeqId seq{};
    Tick arrival = 0;
    uint32_t prompt = 0, known = 0, end = 0;  // tokens; end: known at its end
    uint32_t computed = 0, peak = 0;          // peak: before it was preempted
    uint32_t rows = 0, group = 0;             // in this step, and its place in plan_.rows
    uint32_t unborn = 0;                      // choices behind it in running_, which begin with its prompt
    bool born = true, decoding = false, scheduled = false;
    Extent extent;

    uint32_t remaining() const { return known - computed; }
    bool before(const Member& other) const {
      return arrival != other.arrival ? arrival < other.arrival : raw(seq) < raw(other.seq);
    }
  };
  using MemberPtr = std::unique_ptr<Member>;

  uint32_t extent_size(uint32_t tokens) const;
  std::optional<Extent> take(uint32_t tokens);
  bool grow(size_t at);
  void preempt_last(SeqId by);
  void admit();
  bool admit_first();
  void plan_prefills(uint32_t left);
  void add_rows(Member& member, uint32_t rows);
  void begin_choices(Member& root);
  void end(Member& member);

  const Trace& trace_;
  Scenario scenario_;
  AddressSpace space_;
  std::vector<MemberPtr> running_;  // by (arrival, seq); unborn choices behind their root
  std::deque<MemberPtr> waiting_;   // likewise, without unborn ones
  std::vector<Member*> planned_;    // of each entry of plan_.rows
  std::vector<Member*> order_;      // scratch of the prompt rows
  StepPlan plan_;
  std::vector<Ended> ended_;
  PlannerCounts counts_;
  bool in_pieces_ = false;  // in this step someone found enough slots, and no hole that is long enough
};

}  // namespace tally::sched::simulate
