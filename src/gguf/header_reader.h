#pragma once
// Read the header of a file front to back by bounded reads, and keep the bytes, so that views into them stay
// valid. Nothing is allocated for bytes the file does not have.

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tally::gguf {

// Most header bytes of one file (ours): 10 million tokens take about 200 MB.
inline constexpr uint64_t kHeaderBytesMax = uint64_t{1} << 30;

// Owns the header bytes read so far, in pieces. A taken piece of bytes lies in one block and never moves.
class HeaderBytes {
 public:
  // Where a later second look starts.
  struct Mark {
    size_t block = 0, at = 0;
  };

  // Walks again over what was taken since `mark`, with the same sizes in the same order, and no checks.
  class Replay {
   public:
    Replay(const HeaderBytes& bytes, Mark mark) : bytes_(bytes), mark_(mark) {}
    std::string_view take(size_t n);

   private:
    const HeaderBytes& bytes_;
    Mark mark_;
  };

 private:
  friend class HeaderReader;
  struct Block {
    std::unique_ptr<char[]> data;
    size_t capacity = 0;
    size_t filled = 0;
    size_t taken = 0;  // what follows was copied to the start of the next block, if there is one
  };
  std::vector<Block> blocks_;
};

// Does not own the file descriptor.
class HeaderReader {
 public:
  HeaderReader(int fd, uint64_t file_bytes, std::string path);

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return file_bytes_ - offset_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // What the following bytes belong to; named in errors, so `name` must stay valid.
  void set_subject(std::string_view kind, std::string_view name) { kind_ = kind, name_ = name; }

  // The next n bytes. Errors: kBadData (past the end of the file, or the header grows past kHeaderBytesMax),
  // kIo.
  base::Result<std::string_view> take(uint64_t n, std::string_view what);

  template <class T>
  base::Result<T> take_number(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    TALLY_TRY(const std::string_view bytes, take(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  // A string with its length, which must be in [1 or 0, bytes_max].
  struct StringLimits {
    uint64_t bytes_min = 0;
    uint64_t bytes_max = 0;
  };
  base::Result<std::string_view> take_string(std::string_view what, StringLimits limits);

  HeaderBytes::Mark mark() const;
  HeaderBytes::Replay replay(HeaderBytes::Mark mark) const { return {bytes_, mark}; }
  HeaderBytes release() { return std::move(bytes_); }

  // "path: byte N: key 'k': message".
  base::Error bad_data(uint64_t at, std::string_view message) const;
  // The file ends before `want` bytes of `what`.
  base::Error past_end(uint64_t at, std::string_view what, uint64_t want) const;

 private:
  base::Result<void> fill(size_t n);

  const int fd_;
  const uint64_t file_bytes_;
  const std::string path_;
  uint64_t offset_ = 0;
  std::string_view kind_, name_;
  HeaderBytes bytes_;
};

// Reads exactly `size` bytes at `offset`. Errors: kIo, kBadData (end of file).
base::Result<void> read_exactly(int fd, const std::string& path, uint64_t offset, char* out, size_t size);

}  // namespace tally::gguf
