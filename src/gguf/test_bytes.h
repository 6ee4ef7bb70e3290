#pragma once
// For tests: GGUF files built byte by byte, right or wrong, and given to File::open as a file in memory.

#include "base/check.h"
#include "gguf/gguf.h"
#include "gguf/value.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::gguf {

// A file without a name, gone at destruction.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(memfd_create("gguf", MFD_CLOEXEC)) {
    TALLY_CHECK(fd_ >= 0, "memfd_create");
    append(bytes);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(fd_); }

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
      TALLY_CHECK(put > 0, "write to a memory file");
      bytes.remove_prefix(static_cast<size_t>(put));
    }
  }
  void overwrite(uint64_t offset, std::string_view bytes) {
    TALLY_CHECK(pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
                    static_cast<ssize_t>(bytes.size()),
                "pwrite to a memory file");
  }
  void resize(uint64_t bytes) { TALLY_CHECK(ftruncate(fd_, static_cast<off_t>(bytes)) == 0, "ftruncate"); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

inline base::Result<File> open_bytes(std::string_view bytes) {
  const MemoryFile file(bytes);
  return File::open(file.path());
}

// Little-endian fields one after the other.
class Bytes {
 public:
  template <class T>
  Bytes& num(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  Bytes& str(std::string_view value) { return num(uint64_t{value.size()}).raw(value); }
  Bytes& type(ValueType type) { return num(static_cast<uint32_t>(type)); }
  Bytes& key(std::string_view name, ValueType value_type) { return str(name).type(value_type); }
  Bytes& array(std::string_view name, ValueType element_type, uint64_t count) {
    return key(name, ValueType::kArray).type(element_type).num(count);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A whole file of parts that a test may bend.
struct RawFile {
  struct Tensor {
    std::string name = "w";
    std::vector<uint64_t> dims = {4};
    uint32_t type = 0;  // F32
    uint64_t offset = 0;
    std::optional<uint32_t> rank = {};  // told instead of dims.size()
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count = {}, metadata_count = {};  // told instead of the truth
  std::vector<std::string> metadata = {};                          // encoded entries
  std::vector<Tensor> tensors = {};
  std::string data = {};  // after the padding

  std::string header() const {
    Bytes out;
    out.raw(magic)
        .num(version)
        .num(tensor_count.value_or(tensors.size()))
        .num(metadata_count.value_or(metadata.size()));
    for (const std::string& entry : metadata) out.raw(entry);
    for (const Tensor& tensor : tensors) {
      out.str(tensor.name).num(tensor.rank.value_or(static_cast<uint32_t>(tensor.dims.size())));
      for (const uint64_t dim : tensor.dims) out.num(dim);
      out.num(tensor.type).num(tensor.offset);
    }
    return out.text();
  }
  std::string bytes(uint64_t alignment = 32) const {
    std::string out = header();
    out.append((alignment - out.size() % alignment) % alignment, '\0');
    return out + data;
  }
};

inline std::string uint_entry(std::string_view key, uint32_t value) {
  return Bytes().key(key, ValueType::kU32).num(value).text();
}
inline std::string string_entry(std::string_view key, std::string_view value) {
  return Bytes().key(key, ValueType::kString).str(value).text();
}

}  // namespace tally::gguf
