#pragma once
// What an open File consists of.

#include "base/result.h"
#include "gguf/gguf.h"
#include "gguf/header.h"

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tally::gguf {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_s = 0, modified_ns = 0;

  static FileIdentity of(const struct stat& status);
  bool operator==(const FileIdentity&) const = default;
};

struct Shard {
  std::string path;
  Fd fd;
  FileIdentity identity;  // at open
  Header header;
};

// Errors: kNoInput (cannot be opened, not a regular file), kBadData, kIo.
base::Result<Shard> open_shard(const std::string& path, bool follow_links);

struct File::State {
  std::vector<Shard> shards;  // at least one
  std::vector<TensorInfo> tensors;
  NameIndex tensor_index;

  const Metadata* find_metadata(std::string_view key) const;  // nullptr if absent
};

}  // namespace tally::gguf
