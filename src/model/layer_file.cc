#include "model/layer_file.h"

#include "base/utf8.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace tally::model {
namespace {

namespace fs = std::filesystem;
using base::DirectFile;
using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint64_t kMagic = 0x315059414c594c54;  // "TLYLAYP1"

struct Header {
  uint64_t magic = kMagic, slices = 0;
  base::Digest fingerprint{};
  uint64_t hash = 0;  // of what is before it, then of the slices' hashes
};

SliceHash hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.low64, h.high64};
}

uint64_t seal(const Header& header, const std::vector<SliceHash>& hashes) {
  const uint64_t head = XXH3_64bits(&header, offsetof(Header, hash));
  return XXH3_64bits_withSeed(hashes.data(), hashes.size() * sizeof(SliceHash), head);
}

Error io_error(const std::string& path, std::string_view what) {
  return {ErrorCode::kIo, fmt::format("--weights stream: {}: {}: {}", base::escape_for_log(path), what,
                                      std::strerror(errno))};
}

// What is not there unless it was kept: it has no name until then, so that nothing is left of it even if the
// process is killed. Where the file system wants a name, it has another one until then.
class Draft {
 public:
  explicit Draft(const std::string& path)
      : path_(path),
        draft_path_(fmt::format("{}.{}", path, ::getpid())),
        fd_(::open((fs::path(path).parent_path() / ".").c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600)),
        has_name_(fd_ < 0) {
    if (has_name_) fd_ = ::open(draft_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (has_name_) ::unlink(draft_path_.c_str());
  }
  bool is_open() const { return fd_ >= 0; }
  uint64_t free_bytes() const {
    struct statvfs disk{};
    return ::fstatvfs(fd_, &disk) == 0 ? uint64_t{disk.f_bavail} * disk.f_frsize : UINT64_MAX;
  }
  bool write(std::span<const std::byte> bytes, uint64_t offset) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n)), offset += static_cast<uint64_t>(n);
    }
    return true;
  }
  bool keep() {
    if (::fsync(fd_) != 0 || !take_name()) return false;
    has_name_ = std::rename(draft_path_.c_str(), path_.c_str()) != 0;
    return !has_name_;
  }

 private:
  // A link takes no other's place, a renamed file does: so both.
  bool take_name() {
    if (has_name_) return true;
    const std::string open_file = fmt::format("/proc/self/fd/{}", fd_);
    ::unlink(draft_path_.c_str());  // of a killed process
    has_name_ = ::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, draft_path_.c_str(), AT_SYMLINK_FOLLOW) == 0;
    return has_name_;
  }

  const std::string path_, draft_path_;
  int fd_;
  bool has_name_;
};

}  // namespace

LayerFile::LayerFile(const Shape& shape) : shape_(shape), hash_(shape.slice_bytes.size()) {
  uint64_t at = header_bytes();
  for (const uint64_t bytes : shape.slice_bytes) offset_.push_back(at), at += bytes;
}

uint64_t LayerFile::header_bytes() const {
  return DirectFile::align(sizeof(Header) + shape_.slice_bytes.size() * sizeof(SliceHash));
}

Result<std::optional<LayerFile>> LayerFile::open(const std::string& path, const Shape& shape) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return std::optional<LayerFile>();
    return io_error(path, "cannot be opened");
  }
  LayerFile file(shape);
  Header header;
  const size_t hashes = file.hash_.size() * sizeof(SliceHash);
  const bool is_read = ::pread(fd, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)) &&
                       ::pread(fd, file.hash_.data(), hashes, sizeof(header)) == static_cast<ssize_t>(hashes);
  ::close(fd);
  if (!is_read || header.magic != kMagic || header.slices != shape.slice_bytes.size() ||
      header.fingerprint != shape.fingerprint || header.hash != seal(header, file.hash_))
    return std::optional<LayerFile>();
  TALLY_TRY(file.file_, DirectFile::open(path));
  return std::optional<LayerFile>(std::move(file));
}

Result<LayerFile> LayerFile::make(const std::string& path, const Shape& shape, const Pack& pack) {
  LayerFile file(shape);
  Draft draft(path);
  if (!draft.is_open()) return io_error(path, "cannot be made");
  const uint64_t bytes =
      shape.slice_bytes.empty() ? file.header_bytes() : file.offset_.back() + shape.slice_bytes.back();
  if (const uint64_t free = draft.free_bytes(); free < bytes) {
    return Error{ErrorCode::kIo, fmt::format("--weights stream: {} takes {} bytes, and the disk has {} free",
                                             base::escape_for_log(path), bytes, free)};
  }
  for (uint32_t i = 0; i < file.slices(); ++i) {
    TALLY_TRY(const std::span<const std::byte> slice, pack(i));
    file.hash_[i] = hash_of(slice);
    if (!draft.write(slice, file.offset_[i])) return io_error(path, "cannot be written");
  }
  Header header{.slices = file.slices(), .fingerprint = shape.fingerprint};
  header.hash = seal(header, file.hash_);
  if (!draft.write(std::as_bytes(std::span(&header, 1)), 0) ||
      !draft.write(std::as_bytes(std::span(file.hash_)), sizeof(header)) || !draft.keep())
    return io_error(path, "cannot be written");
  TALLY_TRY(file.file_, DirectFile::open(path));
  return file;
}

Result<void> LayerFile::read(uint32_t slice, std::span<std::byte> out) const {
  TALLY_TRY_VOID(file_.read(out, offset_[slice]));
  if (hash_of(out) == hash_[slice]) return {};
  return Error{ErrorCode::kIo, fmt::format("{}: {} bytes at {} are not those that were written",
                                           base::escape_for_log(path()), out.size(), offset_[slice])};
}

}  // namespace tally::model
