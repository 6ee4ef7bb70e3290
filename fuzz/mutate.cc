// Drives a fuzz target without libFuzzer: each seed file as it is, then mutations of it drawn from a fixed seed.
//   gguf_fuzz ROUNDS FILE...
// Ends non-zero only by a crash or a sanitizer report of the target.

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kSeedBytesMax = 1u << 16;  // the interesting part of a model file is its head

void feed(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// A few flips, insertions, deletions, copies and extreme integers.
std::string mutate(std::string bytes, std::mt19937_64& rng) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : rng() % n; };
  for (size_t n = 1 + below(6); n > 0; --n) {
    const size_t at = below(bytes.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1: bytes.insert(at, 1, static_cast<char>(rng())); break;
      case 2: bytes.erase(at, 1 + below(16)); break;
      case 3: bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(64))); break;
      case 4: bytes.resize(at); break;
      default:
        for (size_t i = at; i < bytes.size() && i < at + 8; ++i) bytes[i] = static_cast<char>(below(2) == 0 ? 0xFF : 0);
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 0;
  const std::string_view count = argc > 2 ? argv[1] : "";
  if (std::from_chars(count.data(), count.data() + count.size(), rounds).ec != std::errc() || argc < 3) {
    std::fprintf(stderr, "usage: %s ROUNDS FILE...\n", argv[0]);
    return 64;
  }
  std::mt19937_64 rng(1);
  for (int i = 2; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    std::string seed((std::istreambuf_iterator<char>(in)), {});
    if (seed.empty()) return 66;
    feed(seed);
    seed.resize(std::min(seed.size(), kSeedBytesMax));
    for (int r = 0; r < rounds; ++r) feed(mutate(seed, rng));
  }
  return 0;
}
