#pragma once
// Reads of a file past the page cache (O_DIRECT), and how fast a disk gives bytes that way. Where the file
// system refuses O_DIRECT, reads go through the page cache.

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tally::base {

class DirectFile {
 public:
  // Offsets, lengths and addresses of reads are multiples of it.
  static constexpr size_t kAlign = 4096;
  static constexpr size_t align(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  DirectFile() = default;
  // Errors: kNoInput.
  static Result<DirectFile> open(const std::string& path);
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile();

  const std::string& path() const { return path_; }
  bool is_direct() const { return is_direct_; }
  // Errors: kIo, which names the file and the byte; also where the file ends before. Any number of threads.
  Result<void> read(std::span<std::byte> out, uint64_t offset) const;

 private:
  int fd_ = -1;
  bool is_direct_ = false;
  std::string path_;
};

struct ReadRate {
  double bytes_per_s = 0;
  uint64_t bytes = 0;      // that were read
  bool is_direct = false;  // false: perhaps of the page cache
};
// Bytes a second of reads one after the other, two under way at a time, over at most `budget_ms`. Requires:
// a file of some MiB. Errors: kNoInput, kIo, kBadData (shorter than a piece), kUnavailable (memory).
Result<ReadRate> measure_read_rate(const std::string& path, uint32_t budget_ms);

}  // namespace tally::base
