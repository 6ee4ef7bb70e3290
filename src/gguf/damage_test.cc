// Files that were good once: cut, with bits flipped, with pieces moved. Cases are numbered as in the
// project's list of negative cases.

#include "gguf/gguf.h"
#include "gguf/test_bytes.h"
#include "gguf/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

namespace tally::gguf {
namespace {

using testing::HasSubstr;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Every proper prefix of a file is refused as truncated, at its own length. The padding after the last tensor
// is no part.
void expect_refused_at_every_cut(const std::string& bytes, size_t step_in_data) {
  const auto whole = open_bytes(bytes);
  ASSERT_TRUE(whole) << whole.error().message;
  uint64_t needed = whole->header_bytes();
  for (const TensorInfo& tensor : whole->tensors())
    needed = std::max(needed, tensor.file_offset + tensor.bytes);
  for (size_t size = 0; size < needed; size += size < whole->header_bytes() ? 1 : step_in_data) {
    const auto cut = open_bytes(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(cut) << size;
    ASSERT_EQ(cut.error().code, base::ErrorCode::kBadData);
    ASSERT_THAT(cut.error().message, HasSubstr("truncated at " + std::to_string(size)));
  }
  EXPECT_TRUE(open_bytes(std::string_view(bytes).substr(0, needed)));
}

std::string small_file() {
  Writer writer;
  writer.set_string("general.architecture", "llama");
  writer.set_uint("llama.block_count", 2);
  writer.set_float("llama.eps", 1e-5f);
  writer.set_bool("flag", true);
  const std::vector<std::string> tokens = {"a", "", "bcd"};
  writer.set_strings("tokens", tokens);
  writer.set_floats("scores", std::vector<float>{1, 2, 3});
  writer.set_ints("types", std::vector<int32_t>{1, -2, 3});
  writer.add_tensor("w", tensor::DType::kF32, {{3, 2, 1, 1}, 2}, std::vector<std::byte>(24));
  writer.add_tensor("q", tensor::DType::kQ8_0, {{32, 1, 1, 1}, 1}, std::vector<std::byte>(34));
  return writer.bytes();
}

TEST(Damage, G1ASmallFileCutAtEveryByte) { expect_refused_at_every_cut(small_file(), 1); }

// A sanitizer makes each opening ten to thirty times dearer: it looks at every 37th cut and fewer flips. (37 is no divisor of
// any record's size, so all kinds of places are hit.)
#if defined(TALLY_INSTRUMENTED)
constexpr size_t kCutStep = 37;
constexpr int kFlips = 600, kMutants = 6000;
#else
constexpr size_t kCutStep = 1;
constexpr int kFlips = 10'000, kMutants = 30'000;
#endif

TEST(Damage, G1ATinyModelCutAtEveryByteOfItsHeader) {
  const std::string bytes = read_file("tests/golden/tiny/tiny-f32.gguf");
  ASSERT_FALSE(bytes.empty());
  const auto whole = open_bytes(bytes);
  ASSERT_TRUE(whole) << whole.error().message;
  const size_t header = whole->header_bytes();
  MemoryFile file(std::string_view(bytes).substr(0, header));
  for (size_t size = header - 1; size >= kCutStep; size -= kCutStep) {
    file.resize(size);
    const auto cut = File::open(file.path());
    ASSERT_FALSE(cut) << size;
    ASSERT_EQ(cut.error().code, base::ErrorCode::kBadData);
    ASSERT_THAT(cut.error().message, HasSubstr("truncated at " + std::to_string(size)));
  }
}

// G27: no flip of a bit crashes or hangs; what still opens can be read through every getter and every
// tensor's first bytes.
TEST(Damage, G27RandomBitFlipsLoadOrRefuse) {
  const std::string bytes = read_file("tests/golden/tiny/tiny-q-q4_k_m.gguf");
  const auto whole = open_bytes(bytes);
  ASSERT_TRUE(whole) << whole.error().message;
  const size_t header = whole->header_bytes();
  MemoryFile file(bytes);
  std::mt19937 random(7);
  size_t loaded = 0;
  for (int i = 0; i < kFlips; ++i) {
    const size_t at = random() % header;
    const char flipped = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
    file.overwrite(at, {&flipped, 1});
    const auto opened = File::open(file.path());
    file.overwrite(at, {&bytes[at], 1});
    if (!opened) {
      ASSERT_EQ(opened.error().code, base::ErrorCode::kBadData) << opened.error().message;
      continue;
    }
    ++loaded;
    for (const TensorInfo& tensor : opened->tensors()) {
      std::byte first;
      ASSERT_TRUE(opened->read_tensor(tensor, tensor.bytes - 1, {&first, 1}));
    }
    for (const Metadata& item : opened->metadata()) {
      (void)opened->get_uint(item.key, 0, 100);
      (void)opened->get_ints(item.key, -100, 100);
      (void)opened->get_strings(item.key);
    }
  }
  EXPECT_GT(loaded, size_t{kFlips} / 100);
  EXPECT_LT(loaded, 9900u);
}

// Looks at everything that opened; a fault here is a fault of the checks.
void read_everything(const File& file) {
  for (const TensorInfo& tensor : file.tensors()) {
    std::vector<std::byte> data(tensor.bytes);
    ASSERT_TRUE(file.read_tensor(tensor, 0, data));
    ASSERT_EQ(file.find_tensor(tensor.name), &tensor);
  }
  for (const Metadata& item : file.metadata()) {
    ASSERT_EQ(file.find(item.key), &item.value);
    const auto* array = std::get_if<Array>(&item.value.data);
    for (size_t i = 0; array != nullptr && i < array->size(); ++i) (void)array->at(i);
    (void)file.get_uints(item.key, 3, 0, UINT64_MAX);
    (void)file.get_ints(item.key, INT64_MIN, INT64_MAX);
    (void)file.get_float(item.key);
    (void)file.get_string(item.key);
  }
}

std::string mutate(std::string bytes, std::mt19937& random) {
  constexpr char kTelling[] = {0, 1, 2, 4, 8, 9, 12, 13, 127, -128, -1};
  const size_t count = 1 + random() % 4;
  for (size_t i = 0; i < count && !bytes.empty(); ++i) {
    const size_t at = random() % bytes.size();
    const size_t length = std::min<size_t>(1 + random() % 16, bytes.size() - at);
    switch (random() % 5) {
      case 0:
        bytes[at] = kTelling[random() % std::size(kTelling)];
        break;
      case 1:
        bytes.erase(at, length);
        break;
      case 2:
        bytes.insert(random() % bytes.size(), bytes.substr(at, length));
        break;
      case 3:
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), length,
                    kTelling[random() % std::size(kTelling)]);
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

// A corpus of small files, each bent in thousands of ways: what a fuzzer starts from, replayed with a fixed
// seed.
TEST(Damage, MutantsOfSmallFilesLoadOrRefuse) {
  RawFile two;
  two.version = 2;
  two.metadata = {uint_entry("general.alignment", 64),
                  uint_entry("split.count", 1),
                  uint_entry("split.no", 0),
                  Bytes().array("bools", ValueType::kBool, 3).raw(std::string(3, '\1')).text(),
                  Bytes().array("strings", ValueType::kString, 3).str("a").str("").str("ccc").text(),
                  Bytes().array("shorts", ValueType::kI16, 3).raw(std::string(6, '\2')).text()};
  two.tensors = {{.name = "q", .dims = {256, 2}, .type = 12},
                 {.name = "w", .dims = {2, 2, 2, 2}, .offset = 320}};
  two.data = std::string(384, '\3');
  const std::string corpus[] = {small_file(), two.bytes(64), RawFile().bytes()};
  for (const std::string& seed : corpus) ASSERT_TRUE(open_bytes(seed));
  std::mt19937 random(11);
  size_t loaded = 0;
  for (int i = 0; i < kMutants; ++i) {
    const auto file = open_bytes(mutate(corpus[random() % std::size(corpus)], random));
    if (file) {
      ++loaded;
      read_everything(*file);
    } else {
      ASSERT_EQ(file.error().code, base::ErrorCode::kBadData) << file.error().message;
    }
  }
  EXPECT_GT(loaded, 100u);
}

}  // namespace
}  // namespace tally::gguf
