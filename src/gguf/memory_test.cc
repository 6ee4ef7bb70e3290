// Memory outside the data is bounded by the header that is really there.

#include "gguf/gguf.h"
#include "gguf/test_bytes.h"
#include "gguf/test_memory.h"
#include "gguf/writer.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

namespace {
std::atomic<size_t> live_bytes{0}, peak_bytes{0};
}  // namespace

// Counts the bytes in use. Not inlined: the compiler would see new paired with free.
[[gnu::noinline]] void* operator new(size_t size) {
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  const size_t live = live_bytes += malloc_usable_size(p);
  if (live > peak_bytes) peak_bytes = live;
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  if (p != nullptr) live_bytes -= malloc_usable_size(p);
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { operator delete(p); }
[[gnu::noinline]] void* operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { operator delete(p); }

namespace tally::gguf {

MemoryPeak::MemoryPeak() : start_(live_bytes) { peak_bytes = start_; }
size_t MemoryPeak::bytes() const { return peak_bytes - start_; }

namespace {

// G29, G21.
TEST(Memory, TenMillionStringsStayWithinFourHeaders) {
  constexpr uint64_t kCount = 10'000'000, kPiece = 100'000;
  MemoryFile file(Bytes()
                      .raw("GGUF")
                      .num(uint32_t{3})
                      .num(uint64_t{0})
                      .num(uint64_t{1})
                      .array("tokens", ValueType::kString, kCount)
                      .text());
  const std::string piece(kPiece * 8, '\0');  // empty strings: the most views for the bytes
  for (uint64_t i = 0; i < kCount; i += kPiece) file.append(piece);
  const MemoryPeak memory;
  const auto opened = File::open(file.path());
  const size_t peak = memory.bytes();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened->get_strings("tokens"))->size(), kCount);
  EXPECT_LE(peak, 4 * opened->header_bytes() + (size_t{64} << 20));
}

TEST(Memory, SmallIntegersAreNotWidenedInMemory) {
  constexpr uint64_t kCount = 30'000'000;
  MemoryFile file(Bytes()
                      .raw("GGUF")
                      .num(uint32_t{3})
                      .num(uint64_t{0})
                      .num(uint64_t{1})
                      .array("bytes", ValueType::kU8, kCount)
                      .text());
  file.append(std::string(kCount, '\7'));
  const MemoryPeak memory;
  const auto opened = File::open(file.path());
  const size_t peak = memory.bytes();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_LE(peak, 4 * opened->header_bytes());
}

TEST(Memory, StringsAcrossBlocksOfTheReaderAreWhole) {
  std::mt19937 random(3);
  std::vector<std::string> strings;
  for (int i = 0; i < 300; ++i)
    strings.push_back(
        std::string(random() % (i % 50 == 0 ? 3'000'000 : 40'000), static_cast<char>('a' + i % 26)));
  Writer writer;
  writer.set_strings("strings", strings);
  writer.set_uint("last", 77);
  const auto opened = open_bytes(writer.bytes());
  ASSERT_TRUE(opened) << opened.error().message;
  const auto& read = **opened->get_strings("strings");
  ASSERT_EQ(read.size(), strings.size());
  EXPECT_TRUE(std::equal(read.begin(), read.end(), strings.begin()));
  EXPECT_EQ(*opened->require_uint("last", 0, 100), 77u);
}

}  // namespace
}  // namespace tally::gguf
