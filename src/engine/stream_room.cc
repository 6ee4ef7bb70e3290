#include "engine/stream_room.h"

#include "base/check.h"

#include <utility>

namespace tally::engine {

void StreamRoom::close() {
  const std::lock_guard lock(mutex_);
  accounts_ = nullptr;
}

void StreamRoom::book(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (accounts_ != nullptr) accounts_->book(base::Account::kRuntime, kStreamPart, bytes);
}

StreamShare::StreamShare(std::shared_ptr<StreamRoom> room, uint64_t promised)
    : room_(std::move(room)), promised_(promised) {
  if (!room_) return;
  const uint64_t before = room_->promised_.fetch_add(promised, std::memory_order_relaxed);
  TALLY_CHECK(before + promised <= room_->bytes_max_, "more is promised than there is room for", before,
              promised);
}

StreamShare& StreamShare::operator=(StreamShare&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  room_ = std::move(other.room_);
  promised_ = std::exchange(other.promised_, 0), used_ = std::exchange(other.used_, 0);
  return *this;
}

void StreamShare::use(uint64_t bytes) {
  if (!room_ || bytes == used_) return;
  TALLY_CHECK(bytes <= promised_, "an answer holds more than it was promised", bytes, promised_);
  room_->book(static_cast<int64_t>(bytes) - static_cast<int64_t>(used_));
  used_ = bytes;
}

void StreamShare::settle() {
  if (!room_) return;
  room_->promised_.fetch_sub(promised_ - used_, std::memory_order_relaxed);
  promised_ = used_;
}

void StreamShare::give_back() {
  use(0);
  settle();
  room_.reset();
}

}  // namespace tally::engine
