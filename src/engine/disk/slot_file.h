#pragma once
// The file of the disk tier: KV blocks under keys, each with checksums, so that a torn or flipped slot is
// found and ignored alone. (Private to the room.)
//
//   file = header, padded to 4,096 bytes | slot 0 | slot 1 | ...
//   slot = header of 128 bytes | payload: the block of each layer, one after the other; padded to 4,096 bytes
//
// Reads and writes go through the page cache: a block is 50 to 2,000 KiB in pieces of a layer that are not
// aligned as O_DIRECT wants, and what was written a minute ago is best read from memory.

#include "base/result.h"
#include "base/sha256.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tally::engine {

// Of a block: SHA-256 over that of the block before it (at first: of the namespace) and the ids. Equal keys
// are equal texts in one namespace, without a look at the ids.
using DiskKey = base::Digest;

struct SlotFileShape {
  base::Digest fingerprint{};  // of all that decides what the bytes of a block mean
  uint64_t payload_bytes = 0;
  uint32_t slots = 0;
};

class SlotFile {
 public:
  static constexpr size_t kSlotHeaderBytes = 128;
  static uint64_t file_bytes(uint64_t payload_bytes, uint64_t slots);
  // Slots of a file of at most so many bytes.
  static uint32_t slots_within(uint64_t bytes, uint64_t payload_bytes);

  // Opens or makes the file, takes its lock and its space on the disk. What another model, KV type or size
  // left is replaced; `is_kept()` says. Errors: kIo (cannot be made, disk full), kConfig (another process has
  // it).
  static base::Result<SlotFile> open(const std::string& path, const SlotFileShape& shape);
  SlotFile(SlotFile&& other) noexcept;
  SlotFile& operator=(SlotFile&& other) noexcept;
  ~SlotFile();

  bool is_kept() const { return is_kept_; }
  // The slots whose headers are whole, in order of slot.
  struct Found {
    uint32_t slot = 0;
    DiskKey key{};
    uint64_t number = 0;  // that write() was given
  };
  std::vector<Found> scan() const;

  // `slot_bytes`: room for the header, then the payload. False: the disk did not take it.
  bool write(uint32_t slot, const DiskKey& key, uint64_t number, std::span<std::byte> slot_bytes);
  // Reads a payload into pieces that together are as long. False: the slot does not hold the key, or its bytes
  // are not those that were written.
  bool read(uint32_t slot, const DiskKey& key, std::span<const std::span<std::byte>> pieces) const;
  // Nothing that was written so far is found again. False: the disk did not take it.
  bool forget_all();

 private:
  SlotFile(int fd, const SlotFileShape& shape) : fd_(fd), shape_(shape) {}
  uint64_t offset(uint32_t slot) const;
  base::Result<void> start(const std::string& path);
  base::Result<void> take_space(const std::string& path);
  bool read_header();
  bool write_header() const;

  int fd_ = -1;
  SlotFileShape shape_;
  std::atomic<uint64_t> epoch_{1};  // slots of another are not there
  bool is_kept_ = false;
};

}  // namespace tally::engine
