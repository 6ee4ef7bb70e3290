#include "fuzz/mutator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace {

// ---- Bytes
// -------------------------------------------------------------------------------------------------

// Numbers at the edges of types and of checks, and the floats that are none.
constexpr uint64_t kTelling[] = {0,
                                 1,
                                 2,
                                 3,
                                 4,
                                 7,
                                 8,
                                 16,
                                 31,
                                 32,
                                 33,
                                 64,
                                 127,
                                 128,
                                 255,
                                 256,
                                 257,
                                 1u << 16,
                                 0xFFFF,
                                 0x7C00,
                                 0x7E00,
                                 0xFC00,
                                 0x0001,
                                 0x7F7FFFFF,
                                 1u << 20,
                                 1u << 30,
                                 0x7FFFFFFF,
                                 0x80000000,
                                 0xFFFFFFFF,
                                 0x7F800000,
                                 0xFF800000,
                                 0x7FC00000,
                                 0x00000001'00000000,
                                 0x00000100'00000000,
                                 0x7FFFFFFF'FFFFFFFF,
                                 0x80000000'00000000,
                                 0xFFFFFFFF'FFFFFFFF,
                                 0x7FF00000'00000000};

void store(std::string& bytes, size_t at, size_t width, uint64_t value) {
  if (at < bytes.size())
    std::memcpy(bytes.data() + at, &value, std::min({width, sizeof value, bytes.size() - at}));
}

void bend_bytes(std::string& bytes, std::span<const std::string> others, Random& random) {
  const size_t at = random.below(bytes.size() + 1);
  switch (random.below(9)) {
    case 0:
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      return;
    case 2:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random.next());
      return;
    case 3:
      bytes.insert(at, 1 + random.below(4), static_cast<char>(random.next()));
      return;
    case 4:
      bytes.erase(at, 1 + random.below(16));
      return;
    case 5:
      bytes.insert(at, bytes.substr(random.below(bytes.size() + 1), random.below(64)));
      return;
    case 6:
      bytes.resize(at);
      return;
    case 7: {
      const std::string& other = others[random.below(others.size())];
      const std::string piece = other.substr(random.below(other.size() + 1), 1 + random.below(64));
      bytes.insert(at, piece);
      return;
    }
    default: {
      const size_t width = size_t{1} << random.below(4);
      store(bytes, at / width * width, width, kTelling[random.below(std::size(kTelling))]);
    }
  }
}

// ---- GGUF
// --------------------------------------------------------------------------------------------------

struct Range {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

// Where the parts of a file lie, as far as they could be followed.
struct Layout {
  struct Item {
    Range whole, value;  // the value with its type
  };
  std::vector<Item> items, tensors;  // of a tensor, `value` is all behind its name
  size_t header_end = 0;
  bool whole = false;  // the header could be followed to its end
};

class Walk {
 public:
  explicit Walk(std::string_view bytes) : bytes_(bytes) {}

  Layout layout() {
    Layout out;
    const auto tensors = number(8, 8), items = number(16, 8);
    if (!tensors || !items) return out;
    at_ = 24;
    for (uint64_t i = 0; i < *items; ++i) {
      const size_t begin = at_;
      if (!skip_string()) return out;
      const size_t value = at_;
      if (!skip_value()) return out;
      out.items.push_back({{begin, at_}, {value, at_}});
    }
    for (uint64_t i = 0; i < *tensors; ++i) {
      const size_t begin = at_;
      if (!skip_string()) return out;
      const size_t value = at_;
      const auto rank = number(at_, 4);
      if (!rank || *rank > 8 || !skip(4 + *rank * 8 + 4 + 8)) return out;
      out.tensors.push_back({{begin, at_}, {value, at_}});
    }
    out.header_end = at_;
    out.whole = true;
    return out;
  }

 private:
  std::optional<uint64_t> number(size_t at, size_t width) const {
    if (at > bytes_.size() || width > bytes_.size() - at) return std::nullopt;
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at, width);
    return value;
  }
  bool skip(uint64_t n) {
    if (n > bytes_.size() - at_) return false;
    at_ += n;
    return true;
  }
  bool skip_string() {
    const auto length = number(at_, 8);
    return length && *length <= bytes_.size() && skip(8 + *length);
  }
  bool skip_value() {
    constexpr size_t kString = 8, kArray = 9;
    constexpr uint64_t kWidths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const auto type = number(at_, 4);
    if (!type || *type >= std::size(kWidths) || !skip(4)) return false;
    if (*type == kString) return skip_string();
    if (*type != kArray) return skip(kWidths[*type]);
    const auto element = number(at_, 4), count = number(at_ + 4, 8);
    if (!element || !count || *element >= std::size(kWidths) || *count > bytes_.size() || !skip(12))
      return false;
    if (*element != kString) return *element != kArray && skip(*count * kWidths[*element]);
    for (uint64_t i = 0; i < *count; ++i) {
      if (!skip_string()) return false;
    }
    return true;
  }

  const std::string_view bytes_;
  size_t at_ = 0;
};

void add_to_count(std::string& bytes, size_t at, uint64_t change) {
  uint64_t count = 0;
  std::memcpy(&count, bytes.data() + at, sizeof count);
  store(bytes, at, sizeof count, count + change);
}

// The number itself, near it, or a telling one.
uint64_t near(uint64_t value, Random& random) {
  switch (random.below(6)) {
    case 0:
      return value + 1;
    case 1:
      return value - 1;
    case 2:
      return value * 2;
    case 3:
      return value / 2;
    case 4:
      return uint64_t{1} << random.below(12);
    default:
      return kTelling[random.below(std::size(kTelling))];
  }
}

void bend_number(std::string& bytes, size_t at, size_t width, Random& random) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, width);
  store(bytes, at, width, near(value, random));
}

void bend_metadata(std::string& bytes, const Layout& layout, Random& random) {
  const Layout::Item& item = layout.items[random.below(layout.items.size())];
  const Layout::Item& other = layout.items[random.below(layout.items.size())];
  const size_t number_at = item.value.begin + 4;
  switch (random.below(6)) {
    case 0:
    case 1: {  // another number in the value
      const size_t width = std::min<size_t>(item.value.end - number_at, random.below(2) == 0 ? 4 : 8);
      return bend_number(bytes, number_at, width, random);
    }
    case 2: {  // anywhere in it
      const size_t at = number_at + random.below(item.value.end - number_at);
      return bend_number(bytes, at, std::min<size_t>(item.value.end - at, 4), random);
    }
    case 3:  // the value of another key
      bytes.replace(item.value.begin, item.value.size(),
                    std::string(bytes, other.value.begin, other.value.size()));
      return;
    case 4:  // gone
      bytes.erase(item.whole.begin, item.whole.size());
      return add_to_count(bytes, 16, ~uint64_t{0});
    default:  // there twice, perhaps under a name that differs in one letter
      bytes.insert(other.whole.begin, std::string(bytes, item.whole.begin, item.whole.size()));
      if (random.below(2) == 0) {
        const size_t name_at = other.whole.begin + 8 + random.below(item.value.begin - item.whole.begin - 8);
        bytes[name_at] = static_cast<char>(bytes[name_at] ^ 1);
      }
      return add_to_count(bytes, 16, 1);
  }
}

void bend_tensor(std::string& bytes, const Layout& layout, Random& random) {
  const Layout::Item& item = layout.tensors[random.below(layout.tensors.size())];
  const Layout::Item& other = layout.tensors[random.below(layout.tensors.size())];
  const size_t dims = (item.value.size() - 16) / 8, dims_at = item.value.begin + 4;
  constexpr uint32_t kTypes[] = {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 24, 28, 30, 39};
  switch (random.below(6)) {
    case 0:
      return bend_number(bytes, dims_at + 8 * random.below(dims), 8, random);
    case 1:
      return store(bytes, item.value.end - 12, 4, kTypes[random.below(std::size(kTypes))]);
    case 2:
      return bend_number(bytes, item.value.end - 8, 8, random);
    case 3:  // shape, type and place of another
      bytes.replace(item.value.begin, item.value.size(),
                    std::string(bytes, other.value.begin, other.value.size()));
      return;
    case 4:
      bytes.erase(item.whole.begin, item.whole.size());
      return add_to_count(bytes, 8, ~uint64_t{0});
    default: {
      const size_t name_at = item.whole.begin + 8 + random.below(item.value.begin - item.whole.begin - 8);
      bytes[name_at] = static_cast<char>(bytes[name_at] ^ (1 << random.below(7)));
    }
  }
}

// Half of the changes keep the file a file; most of those are to numbers.
bool bend_gguf(std::string& bytes, Random& random) {
  const Layout layout = Walk(bytes).layout();
  const size_t kind = random.below(8);
  if (kind < 3 && !layout.items.empty()) return bend_metadata(bytes, layout, random), true;
  if (kind < 5 && !layout.tensors.empty()) return bend_tensor(bytes, layout, random), true;
  if (kind < 7 && layout.whole && layout.header_end < bytes.size()) {  // values that are no numbers, or large
    const size_t at = layout.header_end + random.below(bytes.size() - layout.header_end);
    store(bytes, at / 2 * 2, size_t{2} << random.below(2), kTelling[random.below(std::size(kTelling))]);
    return true;
  }
  return false;
}

}  // namespace

std::string mutate(std::string bytes, std::span<const std::string> others, Random& random) {
  const size_t changes = size_t{1} << random.below(3);
  for (size_t i = 0; i < changes; ++i) {
    if (bytes.starts_with("GGUF") && bend_gguf(bytes, random)) continue;
    bend_bytes(bytes, others, random);
  }
  return bytes;
}
