#include "engine/disk/disk_tier.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace tally::engine {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

// Raised whenever a change of arithmetic changes the bits of keys and values.
constexpr int kArithmetic = 1;
constexpr uint64_t kStagingBytes = uint64_t{32} << 20;  // blocks on their way to the writer
constexpr uint64_t kStagingBlocksMin = 4;
constexpr uint64_t kSlotTableBytes = 192;  // of index, order and state of a slot

uint64_t slot_bytes(uint64_t block_bytes) { return SlotFile::kSlotHeaderBytes + block_bytes; }

uint64_t staging_blocks(uint64_t block_bytes) {
  return std::max(kStagingBlocksMin, kStagingBytes / slot_bytes(block_bytes));
}

std::string_view bytes_of(const void* data, size_t n) { return {static_cast<const char*>(data), n}; }

DiskKey root_key(const kv::Namespace& space) {
  return base::sha256(bytes_of(space.data(), sizeof(space)));
}

DiskKey next_key(const DiskKey& parent, std::span<const TokenId> ids) {
  std::string text(bytes_of(parent.data(), parent.size()));
  text += bytes_of(ids.data(), ids.size_bytes());
  return base::sha256(text);
}

base::Digest fingerprint(const DiskTierConfig& config, const kv::PoolShape& shape) {
  std::string text = fmt::format("kv {} {} {}", kArithmetic, config.model, config.block_tokens);
  for (const tensor::KvLayout& l : shape.layers) {
    text += fmt::format("|{} {} {} {} {}", tensor::kv_codec_info(l.codec).name, l.kv_heads, l.key_dim,
                        l.value_dim, l.block_bytes);
  }
  return base::sha256(text);
}

}  // namespace

uint64_t DiskTier::bytes(uint64_t block_bytes, uint32_t blocks, uint64_t file_bytes) {
  return base::Accounts::arena_bytes(staging_blocks(block_bytes) * slot_bytes(block_bytes)) +
         SlotFile::slots_within(file_bytes, block_bytes) * kSlotTableBytes +
         blocks * (sizeof(DiskKey) + 1);
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskTierConfig& config, const kv::PoolShape& shape,
                                                 base::Accounts& accounts) {
  const uint64_t block_bytes = shape.block_bytes();
  const uint32_t slots = SlotFile::slots_within(config.bytes, block_bytes);
  if (slots == 0) {
    return Error{ErrorCode::kConfig,
                 fmt::format("--kv-disk-size {}: one KV block takes {} bytes there", config.bytes,
                             SlotFile::file_bytes(block_bytes, 1))};
  }
  std::error_code failed;
  const std::filesystem::path directory(config.directory);
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    return Error{ErrorCode::kIo, fmt::format("--kv-disk {}: {}", base::escape_for_log(config.directory),
                                             failed.message())};
  }
  const base::Digest of = fingerprint(config, shape);
  // A file for each model and KV type: they do not take each other's place.
  const std::string name = "kv-" + base::hex(of).substr(0, 16) + ".tally";
  TALLY_TRY(SlotFile file, SlotFile::open((directory / name).string(), {of, block_bytes, slots}));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(file), shape, config));
  const uint64_t n = staging_blocks(block_bytes), each = slot_bytes(block_bytes);
  TALLY_TRY(tier->staging_, accounts.reserve(base::Account::kRuntime, "kv disk", n * each));
  accounts.book(base::Account::kRuntime, "kv disk",
                static_cast<int64_t>(bytes(block_bytes, shape.blocks, config.bytes) -
                                     base::Accounts::arena_bytes(n * each)));
  for (uint64_t i = n; i-- > 0;) tier->buffers_.push_back(tier->staging_.data() + i * each);
  tier->restore();
  tier->writer_ = std::thread([t = tier.get()] { t->write_behind(); });
  return tier;
}

DiskTier::DiskTier(SlotFile file, const kv::PoolShape& shape, const DiskTierConfig& config)
    : file_(std::move(file)),
      shape_(shape),
      block_tokens_(config.block_tokens),
      keys_(shape.blocks),
      is_known_(shape.blocks),
      slots_(SlotFile::slots_within(config.bytes, shape.block_bytes())) {
  stats_.slots = slots_.size();
}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    work_.notify_one();
  }
  if (writer_.joinable()) writer_.join();
}

size_t DiskTier::KeyHash::operator()(const DiskKey& key) const {
  size_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
  return hash;
}

// What an earlier process left, in its order of use.
void DiskTier::restore() {
  std::vector<SlotFile::Found> found = file_.scan();
  std::ranges::sort(found, {}, &SlotFile::Found::number);
  for (const SlotFile::Found& f : found) {
    if (!index_.emplace(f.key, f.slot).second) continue;  // written twice, by a slot that was given up
    slots_[f.slot].key = f.key;
    set_state(f.slot, SlotState::kReady);
    uses_ = std::max(uses_, f.number);
  }
  for (uint32_t slot = static_cast<uint32_t>(slots_.size()); slot-- > 0;) {
    if (slots_[slot].state == SlotState::kFree) free_slots_.push_back(slot);
  }
  base::log_info("kv disk: {} of {} blocks are there from an earlier run", index_.size(), slots_.size());
}

void DiskTier::forget_keys() {
  std::fill(is_known_.begin(), is_known_.end(), false);
  leaving_.clear();
}

void DiskTier::follow(const kv::Ledger& ledger) {
  const kv::EventRing& events = ledger.events();
  if (seen_ + 1 < events.first()) forget_keys();  // more than the ring holds has happened
  for (uint64_t n = std::max(seen_ + 1, events.first()); n <= events.last(); ++n) {
    const kv::Event& e = events[n];
    const uint32_t id = raw(e.block.id);
    switch (e.kind) {
      case kv::Event::Kind::kBlockStored: {
        const bool is_first = e.parent == kv::kRoot;
        if (is_first ? !ledger.is_entry(e.block) : !is_known_[raw(e.parent.id)]) break;
        const DiskKey parent = is_first ? root_key(ledger.entry_space(e.block)) : keys_[raw(e.parent.id)];
        keys_[id] = next_key(parent, events.ids(n));
        is_known_[id] = true;
        break;
      }
      case kv::Event::Kind::kBlockRemoved:
        if (is_known_[id]) leaving_.push_back({e.block.id, keys_[id]});
        is_known_[id] = false;
        break;
      case kv::Event::Kind::kAllBlocksCleared:
        forget_keys();
        wipes_ = true;
        break;
    }
  }
  seen_ = events.last();
}

// After a reset of the index: nothing that it held may be found again.
void DiskTier::wipe() {
  if (!wipes_) return;
  wipes_ = false;
  const std::lock_guard lock(mutex_);
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].state == SlotState::kReady) free_slot(slot);
    // What is being written or read goes when that is over.
    if (slots_[slot].state != SlotState::kFree) slots_[slot].is_damaged = true;
  }
  jobs_.push_back({});
  work_.notify_one();
}

void DiskTier::save(const kv::View& view) {
  wipe();
  for (const Leaving& leaving : leaving_) hand_over(leaving, view);
  leaving_.clear();
}

void DiskTier::follow_to_end(const kv::Ledger& ledger) {
  follow(ledger);
  struct Entry {
    uint32_t depth = 0, id = 0;
  };
  std::vector<Entry> entries;
  for (uint32_t id = 0; id < is_known_.size(); ++id) {
    if (is_known_[id]) entries.push_back({ledger.info(BlockId{id}).depth, id});
  }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return a.depth != b.depth ? a.depth < b.depth : a.id < b.id;
  });
  for (const Entry& e : entries) leaving_.push_back({BlockId{e.id}, keys_[e.id]});
}

void DiskTier::save_all(const kv::View& view, int64_t deadline_us) {
  wipe();
  bool is_done = true;
  for (size_t i = 0; i < leaving_.size() && is_done; ++i) {
    is_done = wait_for_buffers(1, deadline_us);
    if (is_done) hand_over(leaving_[i], view);
  }
  leaving_.clear();
  if (!wait_for_buffers(staging_blocks(shape_.block_bytes()), deadline_us) || !is_done)
    base::log_warn("kv disk: stopped before all blocks were saved");
}

// False: the time has come, or nothing can be written.
bool DiskTier::wait_for_buffers(size_t n, int64_t deadline_us) {
  std::unique_lock lock(mutex_);
  const auto left = std::chrono::microseconds(std::max<int64_t>(0, deadline_us - base::now_us()));
  return idle_.wait_for(lock, left, [&] { return buffers_.size() >= n || is_broken_; }) && !is_broken_;
}

// A block that leaves: into the file, if it is not there.
void DiskTier::hand_over(const Leaving& leaving, const kv::View& view) {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    if (is_broken_ || !choose_slot(leaving.key, job)) return;
  }
  std::byte* to = job.buffer + SlotFile::kSlotHeaderBytes;
  for (uint32_t l = 0; l < shape_.layers.size(); ++l) {
    const size_t n = shape_.layers[l].block_bytes;
    std::memcpy(to, view.layer(LayerIdx{l}) + raw(leaving.block) * n, n);
    to += n;
  }
  const std::lock_guard lock(mutex_);
  jobs_.push_back(job);
  work_.notify_one();
}

// Requires: mutex_ is held. False: there already, or no buffer or slot can be had.
bool DiskTier::choose_slot(const DiskKey& key, Job& job) {
  if (const auto there = index_.find(key); there != index_.end()) {
    touch(there->second);
    return false;
  }
  if (buffers_.empty() || (free_slots_.empty() && order_.empty())) {
    ++stats_.dropped_blocks;
    return false;
  }
  if (free_slots_.empty()) free_slot(order_.begin()->second);
  job.slot = free_slots_.back(), job.buffer = buffers_.back();
  free_slots_.pop_back(), buffers_.pop_back();
  job.key = key, job.number = ++uses_;
  slots_[job.slot].key = key;
  set_state(job.slot, SlotState::kWriting);
  index_.emplace(key, job.slot);
  return true;
}

// Requires, of these: mutex_ is held.
void DiskTier::set_state(uint32_t slot, SlotState state) {
  Slot& s = slots_[slot];
  if (s.state == SlotState::kReady) order_.erase(s.use);
  s.state = state;
  if (state != SlotState::kReady) return;
  s.use = ++uses_;
  order_.emplace(s.use, slot);
}

void DiskTier::touch(uint32_t slot) {
  if (slots_[slot].state == SlotState::kReady) set_state(slot, SlotState::kReady);
}

void DiskTier::free_slot(uint32_t slot) {
  index_.erase(slots_[slot].key);
  slots_[slot].is_damaged = false;
  set_state(slot, SlotState::kFree);
  free_slots_.push_back(slot);
}

void DiskTier::write_behind() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return !jobs_.empty() || is_over_; });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    const uint64_t n = slot_bytes(shape_.block_bytes());
    const bool is_written = job.buffer == nullptr
                                ? file_.forget_all()
                                : file_.write(job.slot, job.key, job.number, {job.buffer, n});
    lock.lock();
    done(job, is_written);
  }
}

// Requires: mutex_ is held.
void DiskTier::done(const Job& job, bool is_written) {
  if (!is_written && !is_broken_) {
    base::log_error("kv disk: the file cannot be written any more: blocks that leave the pool are lost");
    is_broken_ = true;
  }
  if (job.buffer != nullptr) buffers_.push_back(job.buffer);
  idle_.notify_all();
  if (job.buffer == nullptr) return;
  if (!is_written || slots_[job.slot].is_damaged) return free_slot(job.slot);
  set_state(job.slot, SlotState::kReady);
  ++stats_.written_blocks;
  stats_.written_bytes += shape_.block_bytes();
}

std::vector<DiskKey> DiskTier::keys(const kv::Namespace& space, std::span<const TokenId> tokens) const {
  std::vector<DiskKey> keys;
  DiskKey key = root_key(space);
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_))
    keys.push_back(key = next_key(key, tokens.first(block_tokens_)));
  return keys;
}

std::vector<DiskTier::Place> DiskTier::find(std::span<const DiskKey> keys, size_t most) {
  wipe();
  std::vector<Place> places;
  const std::lock_guard lock(mutex_);
  for (const DiskKey& key : keys.first(std::min(keys.size(), most))) {
    const auto there = index_.find(key);
    if (there == index_.end()) break;
    Slot& s = slots_[there->second];
    if (s.state != SlotState::kReady && s.state != SlotState::kHeld) break;
    set_state(there->second, SlotState::kHeld);
    ++s.holds;
    places.push_back({there->second, key});
  }
  return places;
}

bool DiskTier::read(const Place& place, const kv::View& view, BlockId block) const {
  std::vector<std::span<std::byte>> pieces;
  for (uint32_t l = 0; l < shape_.layers.size(); ++l) {
    const size_t n = shape_.layers[l].block_bytes;
    pieces.emplace_back(view.layer(LayerIdx{l}) + raw(block) * n, n);
  }
  return file_.read(place.slot, place.key, pieces);
}

void DiskTier::note_read(size_t blocks, double seconds) {
  const uint64_t bytes = blocks * shape_.block_bytes();
  {
    const std::lock_guard lock(mutex_);
    stats_.read_blocks += blocks, stats_.read_bytes += bytes, stats_.read_s += seconds;
  }
  if (blocks == 0 || seconds <= 0) return;
  const double rate = static_cast<double>(bytes) / seconds;
  constexpr double kNew = 0.25;
  rate_ = rate_ == 0 ? rate : rate_ + kNew * (rate - rate_);
}

void DiskTier::note_damaged(const Place& place) {
  const std::lock_guard lock(mutex_);
  slots_[place.slot].is_damaged = true;
  ++stats_.damaged_blocks;
}

void DiskTier::release(std::span<const Place> places) {
  const std::lock_guard lock(mutex_);
  for (const Place& place : places) {
    Slot& s = slots_[place.slot];
    if (--s.holds > 0) continue;
    s.is_damaged ? free_slot(place.slot) : set_state(place.slot, SlotState::kReady);
  }
}

void DiskTier::refuse(std::span<const Place> places) {
  release(places);
  const std::lock_guard lock(mutex_);
  stats_.refused_blocks += places.size();
}

KvDiskStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  KvDiskStats s = stats_;
  s.used = index_.size();
  s.read_bytes_per_s = rate_;
  return s;
}

}  // namespace tally::engine
