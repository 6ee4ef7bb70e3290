#include "gguf/header_reader.h"

#include "base/utf8.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tally::gguf {
namespace {

// The first read is small, so that a file of another kind is refused after little work; later ones grow with
// the header.
constexpr size_t kFirstBlockBytes = size_t{64} << 10;
constexpr size_t kBlockBytes = size_t{1} << 20;

}  // namespace

base::Result<void> read_exactly(int fd, const std::string& path, uint64_t offset, char* out, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd, out + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return base::Error{base::ErrorCode::kIo,
                         fmt::format("{}: byte {}: read failed: {}", base::escape_for_log(path),
                                     offset + done, std::strerror(errno))};
    }
    if (got == 0) {
      return base::Error{base::ErrorCode::kBadData,
                         fmt::format("{}: byte {}: the file was truncated at {} while it was read",
                                     base::escape_for_log(path), offset, offset + done)};
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

std::string_view HeaderBytes::Replay::take(size_t n) {
  if (n == 0) return {};
  while (mark_.at == bytes_.blocks_[mark_.block].taken) mark_ = {mark_.block + 1, 0};
  const HeaderBytes::Block& block = bytes_.blocks_[mark_.block];
  TALLY_DCHECK(n <= block.taken - mark_.at, "replay takes other sizes than the first walk", n);
  const std::string_view piece(block.data.get() + mark_.at, n);
  mark_.at += n;
  return piece;
}

HeaderReader::HeaderReader(int fd, uint64_t file_bytes, std::string path)
    : fd_(fd), file_bytes_(file_bytes), path_(std::move(path)) {
  bytes_.blocks_.emplace_back();  // empty: there is always a last block
}

HeaderBytes::Mark HeaderReader::mark() const {
  return {bytes_.blocks_.size() - 1, bytes_.blocks_.back().taken};
}

base::Result<std::string_view> HeaderReader::take(uint64_t n, std::string_view what) {
  if (n > remaining()) return past_end(offset_, what, n);
  if (n > kHeaderBytesMax - offset_) {
    return bad_data(offset_, fmt::format("{} of {} bytes makes the header longer than {} bytes", what, n,
                                         kHeaderBytesMax));
  }
  const HeaderBytes::Block& last = bytes_.blocks_.back();
  if (n > last.filled - last.taken) TALLY_TRY_VOID(fill(static_cast<size_t>(n)));
  HeaderBytes::Block& block = bytes_.blocks_.back();
  const std::string_view piece(block.data.get() + block.taken, n);
  block.taken += n;
  offset_ += n;
  return piece;
}

// Makes the last block hold at least n bytes that are not taken yet. Requires: the file has them.
base::Result<void> HeaderReader::fill(size_t n) {
  const size_t left = bytes_.blocks_.back().filled - bytes_.blocks_.back().taken;
  const uint64_t available = std::min(file_bytes_, kHeaderBytesMax) - offset_;
  const uint64_t comfortable = std::clamp<uint64_t>(offset_, kFirstBlockBytes, kBlockBytes);
  const size_t capacity = std::max(n, static_cast<size_t>(std::min(available, comfortable)));

  HeaderBytes::Block next;
  next.data = std::make_unique_for_overwrite<char[]>(capacity);
  next.capacity = capacity;
  const HeaderBytes::Block& last = bytes_.blocks_.back();
  if (left > 0) std::memcpy(next.data.get(), last.data.get() + last.taken, left);
  TALLY_TRY_VOID(read_exactly(fd_, path_, offset_ + left, next.data.get() + left, capacity - left));
  next.filled = capacity;
  bytes_.blocks_.push_back(std::move(next));
  return {};
}

base::Result<std::string_view> HeaderReader::take_string(std::string_view what, StringLimits limits) {
  const uint64_t at = offset_;
  TALLY_TRY(const uint64_t length, take_number<uint64_t>(what));
  if (length < limits.bytes_min || length > limits.bytes_max) {
    return bad_data(at, fmt::format("{} has a length of {} bytes; allowed {} to {}", what, length,
                                    limits.bytes_min, limits.bytes_max));
  }
  return take(length, what);
}

base::Error HeaderReader::bad_data(uint64_t at, std::string_view message) const {
  std::string subject;
  if (!kind_.empty()) subject = fmt::format("{} '{}': ", kind_, base::escape_for_log(name_));
  return {base::ErrorCode::kBadData,
          fmt::format("{}: byte {}: {}{}", base::escape_for_log(path_), at, subject, message)};
}

base::Error HeaderReader::past_end(uint64_t at, std::string_view what, uint64_t want) const {
  return bad_data(at, fmt::format("{} needs {} bytes but {} remain: truncated at {}, or damaged", what, want,
                                  file_bytes_ - std::min(at, file_bytes_), file_bytes_));
}

}  // namespace tally::gguf
