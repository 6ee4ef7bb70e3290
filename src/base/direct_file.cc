#include "base/direct_file.h"

#include "base/accounts.h"
#include "base/clock.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace tally::base {

Result<DirectFile> DirectFile::open(const std::string& path) {
  DirectFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  file.is_direct_ = file.fd_ >= 0;
  if (file.fd_ < 0 && errno == EINVAL) file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.fd_ < 0) {
    return Error{ErrorCode::kNoInput,
                 fmt::format("{}: cannot be opened: {}", escape_for_log(path), std::strerror(errno))};
  }
  return file;
}

DirectFile::DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  std::swap(fd_, other.fd_), std::swap(is_direct_, other.is_direct_), std::swap(path_, other.path_);
  return *this;
}

DirectFile::~DirectFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> DirectFile::read(std::span<std::byte> out, uint64_t offset) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Error{ErrorCode::kIo,
                   fmt::format("{}: {} bytes at {} cannot be read: {}", escape_for_log(path_), out.size(),
                               offset, n == 0 ? "the file ends before" : std::strerror(errno))};
    }
    out = out.subspan(static_cast<size_t>(n)), offset += static_cast<uint64_t>(n);
  }
  return {};
}

Result<ReadRate> measure_read_rate(const std::string& path, uint32_t budget_ms) {
  constexpr size_t kPiece = size_t{2} << 20;
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    return Error{ErrorCode::kNoInput,
                 fmt::format("{}: cannot be looked at: {}", escape_for_log(path), std::strerror(errno))};
  }
  const uint64_t pieces = static_cast<uint64_t>(status.st_size) / kPiece;
  if (pieces == 0) {
    return Error{ErrorCode::kBadData,
                 fmt::format("{}: {} bytes are too few to measure a disk with, it takes {}",
                             escape_for_log(path), status.st_size, kPiece)};
  }
  TALLY_TRY(const DirectFile file, DirectFile::open(path));
  // On huge pages, as what files are read into: with small ones the kernel's work for each page would be
  // measured, which may be less than half of what the disk gives.
  Accounts own(2 * Accounts::arena_bytes(kPiece));
  std::array<Arena, 2> buffers;
  for (Arena& buffer : buffers) {
    TALLY_TRY(buffer, own.reserve(Account::kRuntime, "read rate", kPiece));
  }
  std::atomic<uint64_t> next{0}, read{0};
  std::mutex mutex;
  std::optional<Error> failed;  // guarded by mutex
  const int64_t begin = now_us(), until = begin + int64_t{budget_ms} * 1000;
  const auto run = [&](const Arena& buffer) {
    while (now_us() < until) {
      const uint64_t piece = next++;
      if (piece >= pieces) return;
      if (const auto done = file.read({buffer.data(), kPiece}, piece * kPiece); !done) {
        const std::lock_guard lock(mutex);
        failed = done.error();
        return;
      }
      read += kPiece;
    }
  };
  {
    std::jthread other([&] { run(buffers[1]); });
    run(buffers[0]);
  }
  if (failed) return *failed;
  const double seconds = static_cast<double>(std::max<int64_t>(1, now_us() - begin)) * 1e-6;
  return ReadRate{static_cast<double>(read.load()) / seconds, read.load(), file.is_direct()};
}

}  // namespace tally::base
