#include "engine/disk/slot_file.h"

#include "base/check.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace tally::engine {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFileMagic = 0x31564b594c4c4154;  // "TALLYKV1"
constexpr uint64_t kSlotMagic = 0x31544f4c53564b54;  // "TKVSLOT1"

uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

struct FileHeader {
  uint64_t magic = kFileMagic, payload_bytes = 0, slots = 0, epoch = 0;
  base::Digest fingerprint{};
  uint64_t hash = 0;  // of what is before it
};
static_assert(sizeof(FileHeader) == 72);

struct SlotHeader {
  uint64_t magic = kSlotMagic, number = 0, epoch = 0, slot = 0;
  DiskKey key{};
  uint64_t payload_hash[2] = {};
  uint64_t hash = 0;  // of what is before it
};
static_assert(sizeof(SlotHeader) <= SlotFile::kSlotHeaderBytes);

template <class Header>
uint64_t hash_of(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, hash));
}

// The whole of it, whatever the kernel gives at once. False: an error, or the end of the file.
bool transfer(ssize_t (*call)(int, const iovec*, int, off_t), int fd, std::span<iovec> pieces,
              uint64_t offset) {
  constexpr size_t kPiecesMax = 1024;  // IOV_MAX
  while (!pieces.empty()) {
    const int n = static_cast<int>(std::min(pieces.size(), kPiecesMax));
    const ssize_t done = call(fd, pieces.data(), n, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    offset += static_cast<uint64_t>(done);
    auto left = static_cast<size_t>(done);
    while (!pieces.empty() && left >= pieces.front().iov_len) {
      left -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
    if (left > 0) {
      pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + left;
      pieces.front().iov_len -= left;
    }
  }
  return true;
}

bool transfer_one(ssize_t (*call)(int, const iovec*, int, off_t), int fd, void* data, size_t bytes,
                  uint64_t offset) {
  iovec one{data, bytes};
  return transfer(call, fd, {&one, 1}, offset);
}

Error io_error(const std::string& path, std::string_view what) {
  return {ErrorCode::kIo,
          fmt::format("--kv-disk: {}: {}: {}", base::escape_for_log(path), what, std::strerror(errno))};
}

}  // namespace

uint64_t SlotFile::file_bytes(uint64_t payload_bytes, uint64_t slots) {
  return kPage + slots * pages(kSlotHeaderBytes + payload_bytes);
}

uint32_t SlotFile::slots_within(uint64_t bytes, uint64_t payload_bytes) {
  const uint64_t slots = bytes < kPage ? 0 : (bytes - kPage) / pages(kSlotHeaderBytes + payload_bytes);
  return static_cast<uint32_t>(std::min<uint64_t>(slots, UINT32_MAX - 1));
}

uint64_t SlotFile::offset(uint32_t slot) const { return file_bytes(shape_.payload_bytes, slot); }

Result<SlotFile> SlotFile::open(const std::string& path, const SlotFileShape& shape) {
  TALLY_CHECK(shape.slots > 0 && shape.payload_bytes > 0, "a file of slots", shape.slots,
              shape.payload_bytes);
  // Only for the owner: who reads the cache can guess at the texts it stands for.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (fd < 0) return io_error(path, "cannot be opened");
  SlotFile file(fd, shape);
  TALLY_TRY_VOID(file.start(path));
  return file;
}

Result<void> SlotFile::start(const std::string& path) {
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return io_error(path, "cannot be locked");
    return Error{ErrorCode::kConfig,
                 fmt::format("--kv-disk: {} is in use by another server: each needs a directory of its own",
                             base::escape_for_log(path))};
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return io_error(path, "cannot be looked at");
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::kIo,
                 fmt::format("--kv-disk: {} is not a regular file", base::escape_for_log(path))};
  }
  is_kept_ = read_header();
  if (!is_kept_ && ::ftruncate(fd_, 0) != 0) return io_error(path, "cannot be emptied");
  return take_space(path);
}

// The space is taken now: a disk that fills up later takes nothing from what was promised.
Result<void> SlotFile::take_space(const std::string& path) {
  const auto bytes = static_cast<off_t>(file_bytes(shape_.payload_bytes, shape_.slots));
  struct stat status {};
  struct statvfs disk {};
  if (::fstat(fd_, &status) != 0 || ::fstatvfs(fd_, &disk) != 0) return io_error(path, "cannot be looked at");
  constexpr uint64_t kBlock = 512;  // of st_blocks
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  const uint64_t has = static_cast<uint64_t>(status.st_blocks) * kBlock;
  if (static_cast<uint64_t>(bytes) > has + free) {
    return Error{ErrorCode::kIo, fmt::format("--kv-disk: {}: {} bytes cannot be had: the disk has {} free",
                                             base::escape_for_log(path), bytes, free)};
  }
  if (::ftruncate(fd_, bytes) != 0) return io_error(path, "cannot be made that large");
  if (const int failed = ::posix_fallocate(fd_, 0, bytes); failed != 0) {
    errno = failed;
    const Error error = io_error(path, fmt::format("{} bytes cannot be had", bytes));
    if (!is_kept_) (void)!::ftruncate(fd_, 0);
    return error;
  }
  if (!is_kept_ && !write_header()) return io_error(path, "cannot be written");
  return {};
}

SlotFile::SlotFile(SlotFile&& other) noexcept { *this = std::move(other); }

SlotFile& SlotFile::operator=(SlotFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  shape_ = other.shape_, epoch_ = other.epoch_.load(), is_kept_ = other.is_kept_;
  return *this;
}

SlotFile::~SlotFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool SlotFile::read_header() {
  FileHeader h;
  if (!transfer_one(::preadv, fd_, &h, sizeof(h), 0)) return false;
  if (h.magic != kFileMagic || h.hash != hash_of(h)) return false;
  if (h.payload_bytes != shape_.payload_bytes || h.slots != shape_.slots ||
      h.fingerprint != shape_.fingerprint)
    return false;
  epoch_ = h.epoch;
  return true;
}

bool SlotFile::write_header() const {
  FileHeader h{.payload_bytes = shape_.payload_bytes,
               .slots = shape_.slots,
               .epoch = epoch_,
               .fingerprint = shape_.fingerprint};
  h.hash = hash_of(h);
  return transfer_one(::pwritev, fd_, &h, sizeof(h), 0);
}

std::vector<SlotFile::Found> SlotFile::scan() const {
  std::vector<Found> found;
  for (uint32_t slot = 0; slot < shape_.slots; ++slot) {
    SlotHeader h;
    if (!transfer_one(::preadv, fd_, &h, sizeof(h), offset(slot))) continue;
    if (h.magic != kSlotMagic || h.hash != hash_of(h) || h.epoch != epoch_ || h.slot != slot) continue;
    found.push_back({slot, h.key, h.number});
  }
  return found;
}

bool SlotFile::write(uint32_t slot, const DiskKey& key, uint64_t number, std::span<std::byte> slot_bytes) {
  TALLY_CHECK(slot < shape_.slots && slot_bytes.size() == kSlotHeaderBytes + shape_.payload_bytes,
              "a slot and its bytes", slot, slot_bytes.size());
  const auto payload = slot_bytes.subspan(kSlotHeaderBytes);
  const XXH128_hash_t hash = XXH3_128bits(payload.data(), payload.size());
  SlotHeader h{.number = number, .epoch = epoch_, .slot = slot, .key = key};
  h.payload_hash[0] = hash.low64, h.payload_hash[1] = hash.high64;
  h.hash = hash_of(h);
  std::memset(slot_bytes.data(), 0, kSlotHeaderBytes);
  std::memcpy(slot_bytes.data(), &h, sizeof(h));
  return transfer_one(::pwritev, fd_, slot_bytes.data(), slot_bytes.size(), offset(slot));
}

bool SlotFile::read(uint32_t slot, const DiskKey& key, std::span<const std::span<std::byte>> pieces) const {
  std::byte head[kSlotHeaderBytes];
  std::vector<iovec> parts{{head, sizeof(head)}};
  for (const std::span<std::byte> piece : pieces) parts.push_back({piece.data(), piece.size()});
  if (!transfer(::preadv, fd_, parts, offset(slot))) return false;
  SlotHeader h;
  std::memcpy(&h, head, sizeof(h));
  if (h.magic != kSlotMagic || h.hash != hash_of(h) || h.epoch != epoch_ || h.slot != slot || h.key != key)
    return false;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (const std::span<std::byte> piece : pieces)
    XXH3_128bits_update(state.get(), piece.data(), piece.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return hash.low64 == h.payload_hash[0] && hash.high64 == h.payload_hash[1];
}

bool SlotFile::forget_all() {
  ++epoch_;
  return write_header() && ::fdatasync(fd_) == 0;
}

}  // namespace tally::engine
