#pragma once
// The header of one file, parsed and checked.  Source: ggml docs/gguf.md.

#include "base/result.h"
#include "gguf/gguf.h"
#include "gguf/header_reader.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::gguf {

inline constexpr uint32_t kVersionMin = 2;
inline constexpr uint32_t kVersionMax = 3;
inline constexpr uint64_t kAlignmentDefault = 32;
inline constexpr uint64_t kAlignmentMax = uint64_t{1} << 20;  // ours
inline constexpr std::string_view kMagic = "GGUF";

// Indices of names in ascending order, for lookup in n log n whatever the names are (a hash could be made to
// collide).
class NameIndex {
 public:
  NameIndex() = default;
  explicit NameIndex(const std::vector<std::string_view>& names);
  // npos if absent.
  size_t find(std::string_view name) const;
  // Position of the first name that stood before, or npos.
  size_t find_duplicate() const;

  static constexpr size_t npos = SIZE_MAX;

 private:
  std::vector<std::pair<std::string_view, uint32_t>> sorted_;
};

struct Header {
  uint32_t version = 0;
  uint64_t header_bytes = 0;
  std::vector<Metadata> metadata;
  NameIndex metadata_index;
  std::vector<TensorInfo> tensors;  // shard is 0
  HeaderBytes bytes;                // what the views point into

  const Metadata* find(std::string_view key) const;  // nullptr if absent
};

// Errors: kBadData, kIo. Every rule of the format for one file: counts, strings, types, alignment, shapes,
// extents.
base::Result<Header> read_header(int fd, uint64_t file_bytes, const std::string& path);

}  // namespace tally::gguf
