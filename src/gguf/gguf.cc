#include "gguf/gguf.h"

#include "base/utf8.h"
#include "gguf/file_state.h"
#include "gguf/split.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

namespace tally::gguf {
namespace {

base::Error no_input(const std::string& path, std::string_view why) {
  return {base::ErrorCode::kNoInput, fmt::format("{}: {}", base::escape_for_log(path), why)};
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  return "a socket";
}

}  // namespace

base::Result<Shard> open_shard(const std::string& path, bool follow_links) {
  Shard shard;
  shard.path = path;
  if (path.find('\0') != std::string::npos) return no_input(path, "the path holds a NUL");
  // O_NONBLOCK: the open of a FIFO must not wait for a writer.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow_links ? 0 : O_NOFOLLOW);
  shard.fd = Fd(open(path.c_str(), flags));
  if (shard.fd.get() < 0) {
    if (errno == ELOOP && !follow_links)
      return no_input(path, "is a symbolic link, which a further shard may not be");
    return no_input(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  struct stat status{};
  if (fstat(shard.fd.get(), &status) != 0)
    return no_input(path, fmt::format("fstat: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode))
    return no_input(path, fmt::format("is {}, not a regular file", kind_of(status.st_mode)));
  shard.identity = FileIdentity::of(status);
  TALLY_TRY(shard.header, read_header(shard.fd.get(), shard.identity.bytes, path));
  return shard;
}

FileIdentity FileIdentity::of(const struct stat& status) {
  FileIdentity identity;
  identity.device = status.st_dev;
  identity.inode = status.st_ino;
  identity.bytes = static_cast<uint64_t>(status.st_size);
  identity.modified_s = status.st_mtim.tv_sec;
  identity.modified_ns = status.st_mtim.tv_nsec;
  return identity;
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

File::File(std::unique_ptr<State> state) : state_(std::move(state)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

base::Result<File> File::open(const std::string& path) {
  try {
    auto state = std::make_unique<State>();
    TALLY_TRY(Shard first, open_shard(path, true));
    state->shards.push_back(std::move(first));
    TALLY_TRY_VOID(open_siblings(state->shards));
    std::vector<std::string_view> names;
    for (size_t i = 0; i < state->shards.size(); ++i) {
      for (TensorInfo& tensor : state->shards[i].header.tensors) {
        tensor.shard = static_cast<uint32_t>(i);
        state->tensors.push_back(tensor);
        names.push_back(tensor.name);
      }
      std::vector<TensorInfo>().swap(state->shards[i].header.tensors);
    }
    state->tensor_index = NameIndex(names);
    if (const size_t twice = state->tensor_index.find_duplicate(); twice != NameIndex::npos) {
      const TensorInfo& tensor = state->tensors[twice];
      return base::Error{base::ErrorCode::kBadData,
                         fmt::format("{}: byte {}: tensor '{}' is in two shards",
                                     base::escape_for_log(state->shards[tensor.shard].path),
                                     tensor.record_offset, base::escape_for_log(tensor.name))};
    }
    return File(std::move(state));
  } catch (const std::bad_alloc&) {
    return base::Error{base::ErrorCode::kUnavailable,
                       fmt::format("{}: not enough memory for the header", base::escape_for_log(path))};
  }
}

uint32_t File::version() const { return state_->shards[0].header.version; }
const std::string& File::path() const { return state_->shards[0].path; }

uint64_t File::file_bytes() const {
  uint64_t sum = 0;
  for (const Shard& shard : state_->shards) sum += shard.identity.bytes;
  return sum;
}

uint64_t File::header_bytes() const {
  uint64_t sum = 0;
  for (const Shard& shard : state_->shards) sum += shard.header.header_bytes;
  return sum;
}

std::span<const Metadata> File::metadata() const { return state_->shards[0].header.metadata; }
std::span<const TensorInfo> File::tensors() const { return state_->tensors; }

const Metadata* File::State::find_metadata(std::string_view key) const { return shards[0].header.find(key); }

const Value* File::find(std::string_view key) const {
  const Metadata* item = state_->find_metadata(key);
  return item == nullptr ? nullptr : &item->value;
}

const TensorInfo* File::find_tensor(std::string_view name) const {
  const size_t i = state_->tensor_index.find(name);
  return i == NameIndex::npos ? nullptr : &state_->tensors[i];
}

base::Result<void> File::read_tensor(const TensorInfo& tensor, uint64_t begin,
                                     std::span<std::byte> out) const {
  TALLY_CHECK(tensor.shard < state_->shards.size(), "tensor of another file", tensor.shard);
  TALLY_CHECK(begin <= tensor.bytes && out.size() <= tensor.bytes - begin, "read past the end of a tensor",
              begin, out.size(), tensor.bytes);
  const Shard& shard = state_->shards[tensor.shard];
  return read_exactly(shard.fd.get(), shard.path, tensor.file_offset + begin,
                      reinterpret_cast<char*>(out.data()), out.size());
}

base::Result<void> File::check_unchanged() const {
  for (const Shard& shard : state_->shards) {
    struct stat status{};
    if (fstat(shard.fd.get(), &status) != 0) {
      return base::Error{base::ErrorCode::kIo, fmt::format("{}: fstat: {}", base::escape_for_log(shard.path),
                                                           std::strerror(errno))};
    }
    const FileIdentity now = FileIdentity::of(status);
    if (now == shard.identity) continue;
    return base::Error{
        base::ErrorCode::kBadData,
        fmt::format("{}: the file changed while it was read: {} bytes at open, {} now, {}",
                    base::escape_for_log(shard.path), shard.identity.bytes, now.bytes,
                    now.bytes == shard.identity.bytes ? "modified meanwhile" : "resized meanwhile")};
  }
  return {};
}

}  // namespace tally::gguf
