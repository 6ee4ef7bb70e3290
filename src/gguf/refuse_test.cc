// What is refused, and how: one line that names the key or tensor and the byte offset. Cases are numbered as
// in the project's list of negative cases.

#include "gguf/gguf.h"
#include "gguf/test_bytes.h"
#include "gguf/test_memory.h"
#include "gguf/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>

namespace tally::gguf {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTwo63 = uint64_t{1} << 63;

struct Case {
  const char* name;
  std::string bytes;
  const char* message;  // part of it
};

std::string with_metadata(const std::string& entry, size_t after = 4096) {
  RawFile file;
  file.metadata = {uint_entry("first", 1), entry};
  return file.bytes() + std::string(after, '\0');
}

std::string with_tensor(const RawFile::Tensor& tensor, size_t data = 4096) {
  RawFile file;
  file.tensors = {tensor};
  file.data = std::string(data, '\0');
  return file.bytes();
}

std::string with_version(uint32_t version) {
  RawFile file;
  file.version = version;
  return file.bytes() + std::string(100, '\0');
}

std::string with_counts(std::optional<uint64_t> tensors, std::optional<uint64_t> metadata) {
  RawFile file;
  file.tensor_count = tensors;
  file.metadata_count = metadata;
  return file.bytes() + std::string(1000, '\0');
}

std::string with_alignment(const std::string& value) {
  return with_metadata(Bytes().str("general.alignment").raw(value).text());
}

void expect_refused(const Case& c) {
  const MemoryPeak peak;
  const std::clock_t start = std::clock();  // of the processor: other load must not matter
  const auto file = open_bytes(c.bytes);
  const size_t peak_bytes = peak.bytes();
  const auto took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_FALSE(file) << c.name;
  const base::Error& error = file.error();
  EXPECT_EQ(error.code, base::ErrorCode::kBadData) << c.name;
  EXPECT_THAT(error.message, HasSubstr(c.message)) << c.name;
  EXPECT_THAT(error.message, testing::ContainsRegex("byte [0-9]+: ")) << c.name;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << c.name;
  EXPECT_LT(error.message.size(), 1000u) << c.name;
  EXPECT_LT(took, 1.0) << c.name;
  EXPECT_LT(peak_bytes, size_t{1} << 20) << c.name;
}

TEST(Refuse, G2MagicAndVersion) {
  const Case cases[] = {
      {"magic", "GGML" + std::string(100, '\0'), "not a GGUF file: it starts with 'GGML'"},
      {"control characters", "\x1b[2J" + std::string(100, '\0'), "it starts with '\\x1b[2J'"},
      {"safetensors", std::string("\x40\0\0\0\0\0\0\0{\"a\":1}", 15), "not a GGUF file"},
      {"big-endian 3", with_version(0x03000000), "big-endian"},
      {"big-endian 2", with_version(0x02000000), "big-endian"},
      {"version 0", with_version(0), "byte 4: GGUF version 0 is not supported; allowed 2 and 3"},
      {"version 1", with_version(1), "GGUF version 1 is not supported"},
      {"version 4", with_version(4), "GGUF version 4 is not supported"},
      {"version 2^32-1", with_version(UINT32_MAX), "GGUF version 4294967295"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(Refuse, G3Counts) {
  const Case cases[] = {
      {"tensors 2^64-1", with_counts(UINT64_MAX, {}),
       "byte 8: the tensor count is 18446744073709551615; allowed 0 to 65536"},
      {"tensors 2^63", with_counts(kTwo63, {}), "the tensor count is"},
      {"tensors beyond the bytes", with_counts(32, {}), "the tensor count of 32 needs 1056 bytes but 10"},
      {"metadata 2^64-1", with_counts({}, UINT64_MAX), "byte 16: the metadata count is 18446744073709551615"},
      {"metadata 2^63", with_counts({}, kTwo63), "the metadata count is"},
      {"metadata beyond the bytes", with_counts({}, 73), "the metadata count of 73 needs 1022 bytes but 10"},
      {"metadata over the cap", with_counts({}, 65537), "allowed 0 to 65536"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(Refuse, G4Keys) {
  const auto value = Bytes().type(ValueType::kU8).num(uint8_t{1}).text();
  const auto keyed = [&](std::string_view key) {
    return with_metadata(Bytes().str(key).raw(value).text(), 100000);
  };
  const Case cases[] = {
      {"empty", keyed(""), "a metadata key has a length of 0 bytes; allowed 1 to 65535"},
      {"65,536", keyed(std::string(65536, 'k')), "a length of 65536 bytes"},
      {"beyond the end", with_metadata(Bytes().num(uint64_t{5000}).text()),
       "a metadata key needs 5000 bytes"},
      {"NUL", keyed(std::string_view("a\0b", 3)), "'a\\x00b' is not printable ASCII"},
      {"invalid UTF-8", keyed("a\xFFz"), "'a\\xffz' is not printable ASCII"},
      {"valid UTF-8", keyed("schl\xC3\xBCssel"), "is not printable ASCII"},
  };
  for (const Case& c : cases) expect_refused(c);
  EXPECT_TRUE(open_bytes(keyed(std::string(65535, 'k'))));
}

TEST(Refuse, G5Strings) {
  const auto length = [](uint64_t n) {
    return with_metadata(Bytes().key("s", ValueType::kString).num(n).text(), 500);
  };
  const auto in_array = [](uint64_t n) {
    return with_metadata(Bytes().array("a", ValueType::kString, 2).str("x").num(n).text(), 500);
  };
  const Case cases[] = {
      {"remaining + 1", length(600), "key 's': a string value needs 600 bytes"},
      {"2^30 + 1", length((uint64_t{1} << 30) + 1),
       "key 's': a string value has a length of 1073741825 bytes"},
      {"2^63", length(kTwo63), "key 's'"},
      {"2^64-1", length(UINT64_MAX), "key 's'"},
      {"array, remaining + 1", in_array(600), "key 'a': an array string needs 600 bytes"},
      {"array, 2^64-1", in_array(UINT64_MAX), "key 'a'"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(Refuse, G6NestedArrays) {
  for (const size_t depth : {1, 2, 1000, 100000}) {
    Bytes nested;
    nested.key("deep", ValueType::kArray);
    for (size_t i = 0; i < depth; ++i) nested.type(ValueType::kArray).num(uint64_t{1});
    nested.type(ValueType::kU8).num(uint64_t{1}).num(uint8_t{0});
    expect_refused({"nested", with_metadata(nested.text()), "key 'deep': an array of arrays"});
  }
}

TEST(Refuse, G7ArrayCounts) {
  const auto array = [](ValueType type, uint64_t count) {
    return with_metadata(Bytes().array("a", type, count).text(), 800);
  };
  const Case cases[] = {
      {"wraps to 8", array(ValueType::kU64, (kTwo63 >> 2) + 1),
       "key 'a': an array of 2305843009213693953 elements of type u64"},
      {"wraps to 0", array(ValueType::kU32, kTwo63 >> 1), "key 'a': an array of"},
      {"2^64-1 bytes", array(ValueType::kU8, UINT64_MAX), "key 'a': an array of"},
      {"2^40 strings", array(ValueType::kString, uint64_t{1} << 40),
       "key 'a': an array of 1099511627776 elements of type string"},
      {"remaining + 1", array(ValueType::kU8, 900), "key 'a': an array of 900 elements"},
      {"more strings than bytes", array(ValueType::kString, 110), "key 'a': an array of 110"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(Refuse, G8ValueTypes) {
  const auto typed = [](uint32_t type) { return with_metadata(Bytes().str("t").num(type).text()); };
  const auto element = [](uint32_t type) {
    return with_metadata(Bytes().key("t", ValueType::kArray).num(type).num(uint64_t{0}).text());
  };
  const auto flag = [](uint8_t value) {
    return with_metadata(Bytes().key("t", ValueType::kBool).num(value).text());
  };
  const Case cases[] = {
      {"13", typed(13), "key 't': value type 13 does not exist; allowed 0 to 12"},
      {"2^32-1", typed(UINT32_MAX), "key 't': value type 4294967295 does not exist"},
      {"element 13", element(13), "key 't': element type 13 does not exist"},
      {"element 2^32-1", element(UINT32_MAX), "key 't': element type 4294967295 does not exist"},
      {"bool 2", flag(2), "key 't': a bool is 2; allowed 0 and 1"},
      {"bool 255", flag(255), "key 't': a bool is 255"},
      {"bool 2 in an array",
       with_metadata(Bytes().array("t", ValueType::kBool, 2).num(uint8_t{1}).num(uint8_t{2}).text()),
       "key 't': a bool is neither"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(Refuse, G9Duplicates) {
  RawFile file;
  file.tensors = {{.name = "w"}, {.name = "v", .offset = 32}, {.name = "w", .offset = 64}};
  file.data = std::string(100, '\0');
  expect_refused({"key", with_metadata(uint_entry("first", 2)), "duplicate key 'first'"});
  expect_refused({"tensor", file.bytes(), "duplicate tensor 'w'"});
}

TEST(Refuse, G10Alignment) {
  const auto u32 = [](uint32_t v) { return with_alignment(Bytes().type(ValueType::kU32).num(v).text()); };
  const Case cases[] = {
      {"0", u32(0), "key 'general.alignment': is 0; must be a power of two from 1 to 1048576"},
      {"3", u32(3), "key 'general.alignment': is 3"},
      {"2^21", u32(1u << 21), "key 'general.alignment': is 2097152"},
      {"2^31", u32(1u << 31), "key 'general.alignment': is 2147483648"},
      {"i32", with_alignment(Bytes().type(ValueType::kI32).num(32).text()), "has type i32; must be u32"},
      {"string", with_alignment(Bytes().type(ValueType::kString).str("32").text()),
       "has type string; must be u32"},
      {"u64", with_alignment(Bytes().type(ValueType::kU64).num(uint64_t{32}).text()),
       "has type u64; must be u32"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(Refuse, G11ToG16Tensors) {
  constexpr uint64_t kTwo32 = uint64_t{1} << 32, kTwo40 = uint64_t{1} << 40;
  const Case cases[] = {
      {"rank 0", with_tensor({.dims = {}}), "tensor 'w': has 0 dimensions; allowed 1 to 4"},
      {"rank 5", with_tensor({.dims = {1, 1, 1, 1, 1}}), "tensor 'w': has 5 dimensions"},
      {"rank 2^32-1", with_tensor({.rank = UINT32_MAX}), "tensor 'w': has 4294967295 dimensions"},
      {"2^63-1 x 2", with_tensor({.dims = {kTwo63 - 1, 2}}),
       "tensor 'w': dimension 0 is 9223372036854775807"},
      {"2^32 x 2^32", with_tensor({.dims = {kTwo32, kTwo32}}),
       "tensor 'w': shape 4294967296 x 4294967296 has more than"},
      {"2^40 four times", with_tensor({.dims = {kTwo40, kTwo40, kTwo40, kTwo40}}), "has more than"},
      {"-1", with_tensor({.dims = {UINT64_MAX}}), "tensor 'w': dimension 0 is 18446744073709551615"},
      {"zero", with_tensor({.dims = {4, 0}}), "tensor 'w': dimension 1 is 0; allowed 1 to 1099511627776"},
      {"2^48 elements", with_tensor({.dims = {kTwo40, 256}, .type = 28}), "passes the end of the file"},
      {"row of 31", with_tensor({.dims = {31}, .type = 2}),
       "tensor 'w': row length 31 is not a multiple of 32, the block of Q4_0"},
      {"row of 128", with_tensor({.dims = {128}, .type = 12}),
       "row length 128 is not a multiple of 256, the block of Q4_K"},
      {"type -1", with_tensor({.type = UINT32_MAX}), "tensor 'w': has type 4294967295, which does not exist"},
      {"INT_MAX", with_tensor({.type = INT32_MAX}), "tensor 'w': has type 2147483647"},
      {"retired 4", with_tensor({.type = 4}), "tensor 'w': has type 4, a retired id"},
      {"retired 36", with_tensor({.type = 36}), "tensor 'w': has type 36, a retired id"},
      {"the count", with_tensor({.type = 43}), "tensor 'w': has type 43, which does not exist"},
      {"Q8_K", with_tensor({.dims = {256}, .type = 15}),
       "tensor 'w': has type 15 (Q8_K, for activations only)"},
      {"IQ2_XXS", with_tensor({.dims = {256}, .type = 16}),
       "tensor 'w': has type 16 (IQ2_XXS), which is not supported"},
      {"ik_llama", with_tensor({.dims = {256}, .type = 202}),
       "tensor 'w': has type 202, private to ik_llama.cpp"},
      {"name 0", with_tensor({.name = ""}), "a tensor name has a length of 0 bytes; allowed 1 to 63"},
      {"name 64", with_tensor({.name = std::string(64, 'n')}), "a tensor name has a length of 64 bytes"},
      {"name NUL", with_tensor({.name = std::string("a\0b", 3)}), "tensor 'a\\x00b': the name holds a NUL"},
  };
  for (const Case& c : cases) expect_refused(c);
  EXPECT_TRUE(open_bytes(with_tensor({.name = std::string(63, 'n')})));
}

// G14: each fits, the sum does not; G13: sizes at the edge of the number range cannot be told, as shapes are
// capped.
TEST(Refuse, G13G14G17Extents) {
  RawFile two;
  two.tensors = {{.name = "a", .dims = {16}}, {.name = "b", .dims = {16}, .offset = 32}};
  two.data = std::string(96, '\0');
  RawFile same = two;
  same.tensors[1].offset = 0;
  RawFile cut = two;
  cut.tensors[1].offset = 64;
  cut.data.resize(64 + 63);
  const uint64_t near_end = UINT64_MAX - 31;
  const Case cases[] = {
      {"misaligned", with_tensor({.offset = 8}),
       "tensor 'w': data offset 8 is not a multiple of the alignment 32"},
      {"beyond the end", with_tensor({.offset = 1 << 20}),
       "tensor 'w': its data, 16 bytes at offset 1048576"},
      {"offset wraps", with_tensor({.offset = near_end}), "tensor 'w': its data"},
      {"offset 2^63", with_tensor({.offset = kTwo63}), "tensor 'w': its data"},
      {"one byte short", cut.bytes(), "tensor 'b': its data, 64 bytes at offset 64"},
      {"overlap", two.bytes(), "tensor 'b': its data at 128 overlaps that of tensor 'a', which ends at 160"},
      {"the same place", same.bytes(), "overlaps that of tensor"},
  };
  for (const Case& c : cases) expect_refused(c);
  cut.data.resize(64 + 64);
  EXPECT_TRUE(open_bytes(cut.bytes()));
}

TEST(Refuse, UnknownQuantizationVersion) {
  RawFile file;
  file.metadata = {uint_entry("general.quantization_version", 3)};
  file.tensors = {{.dims = {32}, .type = 8}};
  file.data = std::string(34, '\0');
  expect_refused({"quantized", file.bytes(),
                  "key 'general.quantization_version': is 3; quantized tensors need version 2"});
  file.tensors[0].type = 0;
  file.data.resize(128);
  EXPECT_TRUE(open_bytes(file.bytes())) << "plain floats do not care";
  file.metadata = {string_entry("general.quantization_version", "2")};
  EXPECT_TRUE(open_bytes(file.bytes()));
  file.tensors[0].type = 8;
  expect_refused({"string", file.bytes(), "is string; quantized tensors need version 2"});
}

// G28: nothing of the file reaches a terminal unescaped or at length.
TEST(Refuse, G28MessagesAreEscapedAndCut) {
  const std::string evil = "<b>\x1b[31m\n" + std::string(50, 'x');
  expect_refused({"name", with_tensor({.name = evil, .dims = {0}}), "tensor '<b>\\x1b[31m\\x0a"});
  RawFile file;
  const std::string longest(65535, 'k');
  file.metadata = {Bytes().key(longest, ValueType::kBool).num(uint8_t{9}).text()};
  expect_refused({"key", file.bytes() + std::string(100, '\0'), "kkk...'"});
}

// C8.
TEST(NoInput, DirectoryFifoDeviceMissingAndUnreadable) {
  const std::string dir = testing::TempDir() + "gguf_no_input_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directory(dir);
  const std::string fifo = dir + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::pair<std::string, const char*> cases[] = {
      {dir, "is a directory, not a regular file"},
      {fifo, "is a FIFO, not a regular file"},
      {"/dev/zero", "is a character device, not a regular file"},
      {dir + "/missing.gguf", "cannot be opened: No such file"},
      {"", "cannot be opened"},
      {std::string("a\0b", 3), "NUL"},
  };
  for (const auto& [path, message] : cases) {
    const auto file = File::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().code, base::ErrorCode::kNoInput) << path;
    EXPECT_THAT(file.error().message, HasSubstr(message));
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace tally::gguf
