#include "engine/step_log.h"

#include <algorithm>
#include <bit>

namespace tally::engine {

static_assert(std::is_trivially_copyable_v<StepRecord> && sizeof(StepRecord) % sizeof(uint64_t) == 0,
              "a record is words");

void StepLog::add(const StepRecord& record) {
  const auto words = std::bit_cast<std::array<uint64_t, kWords>>(record);
  Slot& slot = slots_[record.step % kKept];
  slot.step.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.step.store(record.step, std::memory_order_release);
  last_.store(record.step, std::memory_order_release);
}

bool StepLog::copy(uint64_t step, StepRecord& out) const {
  const Slot& slot = slots_[step % kKept];
  if (slot.step.load(std::memory_order_acquire) != step) return false;
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.step.load(std::memory_order_relaxed) != step) return false;
  out = std::bit_cast<StepRecord>(words);
  return true;
}

StepPage StepLog::read(uint64_t since, size_t max) const {
  StepPage page;
  page.last = last();
  page.first = page.last < kKept ? 1 : page.last - kKept + 1;
  // A number of the future is one of an engine that ran before this one.
  page.dropped = since + 1 < page.first || since > page.last;
  const uint64_t begin = page.dropped ? page.first : since + 1;
  for (uint64_t step = begin; step <= page.last && page.steps.size() < max; ++step) {
    StepRecord record;
    if (copy(step, record)) {
      page.steps.push_back(record);
    } else {  // overtaken by the engine: it and what came before it are gone
      page.steps.clear();
      page.dropped = true;
    }
  }
  return page;
}

}  // namespace tally::engine
