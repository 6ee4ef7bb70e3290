#include "model/layer_ring.h"

#include "base/check.h"
#include "base/clock.h"

#include <algorithm>

namespace tally::model {
namespace {

uint32_t round_up(uint32_t n, uint32_t step) { return (n + step - 1) / step * step; }

double seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

LayerRing::LayerRing(LayerFile file, std::span<std::byte> memory, uint64_t slot_bytes)
    : file_(std::move(file)),
      memory_(memory),
      slot_bytes_(slot_bytes),
      slots_(slots_for(file_.slices())),
      turns_(round_up(file_.slices(), slots_)),
      in_slot_(slots_) {
  TALLY_CHECK(slots_ > 0 && memory.size() >= slots_ * slot_bytes, "a ring of slots", slots_, memory.size());
  for (uint32_t i = 0; i < std::min(slots_, kReaders); ++i) readers_.emplace_back([this] { read(); });
}

LayerRing::~LayerRing() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  room_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

void LayerRing::read() {
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [&] { return is_over_ || (!fault_ && next_ < left_ + slots_); });
    if (is_over_) return;
    const uint64_t counted = next_++;
    const auto slice = static_cast<uint32_t>(counted % turns_);
    if (slice >= file_.slices()) {  // an empty turn
      room_.notify_all();
      continue;
    }
    if (reading_++ == 0) reading_since_us_ = base::now_us();
    lock.unlock();
    const uint64_t bytes = file_.slice_bytes(slice), slot = counted % slots_;
    const auto done = file_.read(slice, memory_.subspan(slot * slot_bytes_, bytes));
    lock.lock();
    if (--reading_ == 0) stats_.read_s += seconds(base::now_us() - reading_since_us_);
    stats_.read_bytes += bytes;
    if (done) {
      in_slot_[slot] = counted + 1;
    } else if (!fault_) {
      fault_ = done.error();
    }
    filled_.notify_all();
  }
}

bool LayerRing::enter(uint32_t turn) {
  std::unique_lock lock(mutex_);
  const uint64_t counted = pass_ + turn;
  const auto is_there = [&] { return in_slot_[counted % slots_] == counted + 1; };
  if (is_there()) return true;
  const int64_t begin = base::now_us();
  // Of two reads under way the first may yet succeed.
  filled_.wait(lock, [&] { return is_there() || (fault_ && reading_ == 0); });
  stats_.waited_s += seconds(base::now_us() - begin);
  return is_there();
}

void LayerRing::leave(uint32_t turn) {
  {
    const std::lock_guard lock(mutex_);
    left_ = pass_ + turn + 1;
  }
  room_.notify_all();
}

void LayerRing::end_pass() {
  {
    const std::lock_guard lock(mutex_);
    pass_ += turns_, left_ = pass_;
    ++stats_.passes;
  }
  room_.notify_all();
}

void LayerRing::give_up() {
  {
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_ = base::Error{base::ErrorCode::kUnavailable, "reading layers was given up"};
  }
  filled_.notify_all();
}

uint64_t LayerRing::pass_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < file_.slices(); ++i) bytes += file_.slice_bytes(i);
  return bytes;
}

std::optional<base::Error> LayerRing::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

RingStats LayerRing::stats() const {
  const std::lock_guard lock(mutex_);
  RingStats s = stats_;
  if (reading_ > 0) s.read_s += seconds(base::now_us() - reading_since_us_);
  return s;
}

}  // namespace tally::model
