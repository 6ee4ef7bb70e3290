#pragma once
// The file of packed layers that --weights stream reads in every pass: what the kernels want, made from the
// GGUF once. (Private to the room.)
//
//   file = header and a checksum for each slice, padded to 4,096 bytes | slice 0 | slice 1 | ...
//
// A slice is the matrices of one layer, padded to 4,096 bytes. The file has its name once it is whole.

#include "base/direct_file.h"
#include "base/result.h"
#include "base/sha256.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::model {

using SliceHash = std::array<uint64_t, 2>;  // XXH3, 128 bits

class LayerFile {
 public:
  struct Shape {
    base::Digest fingerprint{};         // of all that decides the bytes
    std::vector<uint64_t> slice_bytes;  // each a multiple of DirectFile::kAlign
  };
  // Makes a slice somewhere, as long as the shape says, on whole pages.
  using Pack = std::function<base::Result<std::span<const std::byte>>(uint32_t slice)>;

  LayerFile() = default;
  // The file at `path` if it was made with this shape; none if there is no such file, or one of another
  // model. Checks the header alone. Errors: kIo.
  static base::Result<std::optional<LayerFile>> open(const std::string& path, const Shape& shape);
  // Makes it. Errors: kIo (names the file, what it takes and what the disk has), those of `pack`.
  static base::Result<LayerFile> make(const std::string& path, const Shape& shape, const Pack& pack);

  uint32_t slices() const { return static_cast<uint32_t>(shape_.slice_bytes.size()); }
  uint64_t slice_bytes(uint32_t slice) const { return shape_.slice_bytes[slice]; }
  bool is_direct() const { return file_.is_direct(); }
  const std::string& path() const { return file_.path(); }
  // Any number of threads. `out` is as long as the slice. Errors: kIo (also: not the bytes that were
  // written).
  base::Result<void> read(uint32_t slice, std::span<std::byte> out) const;

 private:
  explicit LayerFile(const Shape& shape);
  uint64_t header_bytes() const;

  Shape shape_;
  std::vector<uint64_t> offset_;
  std::vector<SliceHash> hash_;
  base::DirectFile file_;
};

}  // namespace tally::model
