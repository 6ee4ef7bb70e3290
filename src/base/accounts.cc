#include "base/accounts.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace tally::base {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr std::string_view kNames[] = {"weights", "kv", "activations", "runtime"};

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

AccountPart& part_of(std::vector<AccountPart>& parts, std::string_view name) {
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.name == name; });
  return found == parts.end() ? parts.emplace_back(AccountPart{.name = std::string(name)}) : *found;
}

// One byte in each 4 KiB page: the kernel maps a huge page at the first touch where it can.
void touch_pages(std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4096) static_cast<volatile std::byte*>(data)[i] = std::byte{0};
}

}  // namespace

std::string_view account_name(Account account) { return kNames[static_cast<size_t>(account)]; }

uint64_t Accounts::arena_bytes(uint64_t bytes) { return round_up(std::max<uint64_t>(bytes, 1), 4096); }

void Accounts::plan(Account account, std::string_view part, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  AccountUse& use = state_[static_cast<size_t>(account)];
  AccountPart& p = part_of(use.parts, part);
  use.planned += bytes - p.planned;
  p.planned = bytes;
}

void Accounts::add(Account account, std::string_view part, int64_t bytes) {
  AccountUse& use = state_[static_cast<size_t>(account)];
  AccountPart& p = part_of(use.parts, part);
  use.reserved += static_cast<uint64_t>(bytes), p.reserved += static_cast<uint64_t>(bytes);
  use.peak = std::max(use.peak, use.reserved), p.peak = std::max(p.peak, p.reserved);
  p.bookings += bytes > 0;
}

Result<Arena> Accounts::reserve(Account account, std::string_view part, size_t bytes,
                                FirstTouch first_touch) {
  const size_t size = arena_bytes(bytes);
  {
    const std::lock_guard lock(mutex_);
    uint64_t total = 0;
    for (const AccountUse& use : state_) total += use.reserved;
    if (size > cap_bytes_ || total > cap_bytes_ - size) {
      return Error{ErrorCode::kUnavailable,
                   fmt::format("{} ({}) needs {} bytes, but {} of the cap of {} are taken",
                               account_name(account), part, size, total, cap_bytes_)};
    }
    add(account, part, static_cast<int64_t>(size));
  }
  Arena arena;
  arena.accounts_ = this;
  arena.account_ = account;
  arena.part_ = part;
  arena.size_ = size;
  // Room to start at a huge-page border; what is cut off at both ends goes back at once.
  const size_t mapped = round_up(size, kHugePage) + kHugePage;
  void* raw_map =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw_map == MAP_FAILED) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{} ({}): the system refuses {} bytes", account_name(account), part, size)};
  }
  auto* base = static_cast<std::byte*>(raw_map);
  const size_t lead =
      round_up(reinterpret_cast<uintptr_t>(base), kHugePage) - reinterpret_cast<uintptr_t>(base);
  if (lead > 0) ::munmap(base, lead);
  arena.data_ = base + lead;
  arena.mapped_ = size >= kHugePage ? round_up(size, kHugePage) : size;
  const size_t tail = mapped - lead - arena.mapped_;
  if (tail > 0) ::munmap(arena.data_ + arena.mapped_, tail);
  // Huge pages only where a whole one is used, so that the account stays true to 4 KiB below that.
  if (size >= kHugePage) ::madvise(arena.data_, size / kHugePage * kHugePage, MADV_HUGEPAGE);
  if (first_touch == FirstTouch::kNow) touch_pages(arena.data_, size);
  return arena;
}

void Accounts::book(Account account, std::string_view part, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  add(account, part, bytes);
}

void Accounts::set_used(Account account, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  state_[static_cast<size_t>(account)].used = bytes;
}

AccountUse Accounts::use(Account account) const {
  const std::lock_guard lock(mutex_);
  AccountUse use = state_[static_cast<size_t>(account)];
  if (use.used == 0) use.used = use.reserved;
  return use;
}

uint64_t Accounts::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const AccountUse& use : state_) total += use.reserved;
  return total;
}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapped_ = std::exchange(other.mapped_, 0);
    accounts_ = std::exchange(other.accounts_, nullptr);
    account_ = other.account_;
    part_ = std::move(other.part_);
  }
  return *this;
}

Arena::~Arena() { release(); }

bool Arena::touch(ThreadPool& pool, const std::function<bool(uint64_t)>& progress) {
  constexpr size_t kSlice = size_t{256} << 20;
  for (size_t begin = 0; begin < size_; begin += kSlice) {
    const size_t bytes = std::min(kSlice, size_ - begin);
    pool.parallel_for(round_up(bytes, kHugePage) / kHugePage, [&](size_t page, size_t) {
      const size_t at = page * kHugePage;
      touch_pages(data_ + begin + at, std::min(kHugePage, bytes - at));
    });
    if (progress && !progress(begin + bytes)) return false;
  }
  return true;
}

void Arena::release() {
  if (data_ != nullptr) ::munmap(data_, mapped_);
  if (accounts_ != nullptr) accounts_->book(account_, part_, -static_cast<int64_t>(size_));
  data_ = nullptr;
  accounts_ = nullptr;
}

ProcessMemory process_memory() {
  ProcessMemory m;
  const std::pair<std::string_view, uint64_t*> lines[] = {
      {"VmSize:", &m.virtual_size}, {"VmRSS:", &m.rss},   {"RssAnon:", &m.rss_anon},
      {"RssFile:", &m.rss_file},    {"VmSwap:", &m.swap},
  };
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    uint64_t kib = 0;
    for (const auto& [name, field] : lines) {
      if (key == name && status >> kib) *field = kib * 1024;
    }
    status.ignore(4096, '\n');
  }
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    std::istringstream in(line);
    std::string key;
    uint64_t kib = 0;
    if (in >> key >> kib && key == "AnonHugePages:") m.anon_huge = kib * 1024;
  }
  return m;
}

}  // namespace tally::base
