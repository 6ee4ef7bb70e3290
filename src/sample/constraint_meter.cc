#include "sample/constraint_meter.h"

#include "base/check.h"
#include "base/clock.h"

#include <malloc.h>

#include <algorithm>
#include <new>

namespace tally::sample {
namespace {

// The library calls plain functions: whom they count for is known by the thread alone.
thread_local Meter* running = nullptr;

constexpr int64_t kAllocationsBetweenLooks = 256;  // at the clock, which is a system call

void look_at_clock(Meter& meter) {
  meter.out_of_time = meter.out_of_time || base::thread_cpu_us() > meter.deadline_us ||
                      (meter.stop != nullptr && meter.stop->load(std::memory_order_relaxed));
}

bool spent(Meter& meter) {
  meter.peak_bytes = std::max(meter.peak_bytes, meter.live_bytes);
  meter.out_of_bytes = meter.out_of_bytes || meter.live_bytes > meter.live_bytes_max;
  if (++meter.allocations % kAllocationsBetweenLooks == 0) look_at_clock(meter);
  return meter.out_of_bytes || meter.out_of_time;
}

}  // namespace

Meter::Running::Running(Meter& meter) {
  TALLY_CHECK(running == nullptr, "a meter inside another");
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  meter.deadline_us = meter.cpu_us_max == kNever ? kNever : base::thread_cpu_us() + meter.cpu_us_max;
  running = &meter;
}

Meter::Running::~Running() {
  look_at_clock(*running);
  running = nullptr;
}

}  // namespace tally::sample

using tally::sample::running;

extern "C" {

void* tally_xgrammar_allocate(size_t size);
void tally_xgrammar_release(void* memory, size_t size);
void tally_xgrammar_warn(const char* message);

void* tally_xgrammar_allocate(size_t size) {
  void* memory = ::operator new(size);
  if (running == nullptr) return memory;
  running->live_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  if (!tally::sample::spent(*running)) return memory;
  tally_xgrammar_release(memory, size);
  throw std::bad_alloc();
}

void tally_xgrammar_release(void* memory, size_t) {
  if (memory != nullptr && running != nullptr)
    running->live_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  ::operator delete(memory);
}

void tally_xgrammar_warn(const char* message) {
  if (running != nullptr && running->warning.empty()) running->warning = message;
}

}  // extern "C"
