#include "gguf/writer.h"

#include "gguf/gguf.h"
#include "gguf/test_bytes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace tally::gguf {
namespace {

struct Entry {
  std::string key;
  int kind = 0;
  uint32_t number = 0;
  std::string text;
  std::vector<std::string> texts;
  std::vector<float> floats;
  std::vector<int32_t> ints;
};

Entry arbitrary_entry(size_t index) {
  Entry entry;
  const auto suffix = *rc::gen::container<std::string>(rc::gen::inRange<char>(0x20, 0x7F));
  entry.key = fmt::format("{}.{}", index, suffix);
  entry.kind = *rc::gen::inRange(0, 7);
  entry.number = *rc::gen::arbitrary<uint32_t>();
  entry.text = *rc::gen::arbitrary<std::string>();
  entry.texts = *rc::gen::arbitrary<std::vector<std::string>>();
  entry.floats = *rc::gen::arbitrary<std::vector<float>>();
  entry.ints = *rc::gen::arbitrary<std::vector<int32_t>>();
  return entry;
}

void write_entry(Writer& writer, const Entry& entry) {
  switch (entry.kind) {
    case 0:
      return writer.set_uint(entry.key, entry.number);
    case 1:
      return writer.set_float(entry.key, static_cast<float>(entry.number));
    case 2:
      return writer.set_bool(entry.key, entry.number % 2 == 1);
    case 3:
      return writer.set_string(entry.key, entry.text);
    case 4:
      return writer.set_strings(entry.key, entry.texts);
    case 5:
      return writer.set_floats(entry.key, entry.floats);
    default:
      return writer.set_ints(entry.key, entry.ints);
  }
}

void check_entry(const File& file, const Entry& entry) {
  switch (entry.kind) {
    case 0:
      RC_ASSERT(**file.get_uint(entry.key, 0, UINT32_MAX) == entry.number);
      break;
    case 1:
      RC_ASSERT(**file.get_float(entry.key) == static_cast<double>(static_cast<float>(entry.number)));
      break;
    case 2:
      RC_ASSERT(**file.get_bool(entry.key) == (entry.number % 2 == 1));
      break;
    case 3:
      RC_ASSERT(**file.get_string(entry.key) == entry.text);
      break;
    case 4: {
      const auto& read = **file.get_strings(entry.key);
      RC_ASSERT(std::equal(read.begin(), read.end(), entry.texts.begin(), entry.texts.end()));
      break;
    }
    case 5: {
      const auto& read = **file.get_floats(entry.key);
      RC_ASSERT(read.size() == entry.floats.size());
      RC_ASSERT(read.empty() ||
                std::memcmp(read.data(), entry.floats.data(), read.size() * sizeof(float)) == 0);
      break;
    }
    default: {
      const auto read = *file.get_ints(entry.key, INT32_MIN, INT32_MAX);
      RC_ASSERT(std::equal(read.begin(), read.end(), entry.ints.begin(), entry.ints.end()));
    }
  }
}

RC_GTEST_PROP(Writer, WhatIsWrittenIsRead, ()) {
  Writer writer;
  std::vector<Entry> entries;
  const size_t entry_count = *rc::gen::inRange<size_t>(0, 8);
  for (size_t i = 0; i < entry_count; ++i) entries.push_back(arbitrary_entry(i));
  for (const Entry& entry : entries) write_entry(writer, entry);

  struct Tensor {
    std::string name;
    tensor::DType type;
    tensor::Shape shape;
    std::vector<std::byte> data;
  };
  std::vector<Tensor> tensors;
  const size_t tensor_count = *rc::gen::inRange<size_t>(0, 5);
  for (size_t i = 0; i < tensor_count; ++i) {
    const tensor::DTypeInfo& info = tensor::dtypes()[*rc::gen::inRange<size_t>(0, tensor::dtypes().size())];
    Tensor t{.name = fmt::format("t{}", i), .type = info.type, .shape = {}, .data = {}};
    t.shape.rank = *rc::gen::inRange<uint32_t>(1, 5);
    for (uint32_t d = 0; d < t.shape.rank; ++d) t.shape.dim[d] = *rc::gen::inRange<uint64_t>(1, 4);
    t.shape.dim[0] *= info.block_elements;
    const size_t bytes = t.shape.elements() / info.block_elements * info.block_bytes;
    const uint8_t fill = *rc::gen::arbitrary<uint8_t>();
    for (size_t b = 0; b < bytes; ++b) t.data.push_back(static_cast<std::byte>(fill + b));
    writer.add_tensor(t.name, t.type, t.shape, t.data);
    tensors.push_back(std::move(t));
  }

  const auto file = open_bytes(writer.bytes());
  RC_ASSERT(file.has_value());
  RC_ASSERT(file->version() == 3u);
  RC_ASSERT(file->metadata().size() == entries.size());
  for (const Entry& entry : entries) check_entry(*file, entry);
  RC_ASSERT(file->tensors().size() == tensors.size());
  for (const Tensor& t : tensors) {
    const TensorInfo* info = file->find_tensor(t.name);
    RC_ASSERT(info != nullptr);
    RC_ASSERT(info->type == t.type);
    RC_ASSERT(info->shape == t.shape);
    std::vector<std::byte> data(info->bytes);
    RC_ASSERT(file->read_tensor(*info, 0, data).has_value());
    RC_ASSERT(data == t.data);
  }
}

TEST(Writer, WritesTheSameBytesToAFile) {
  Writer writer;
  writer.set_string("general.name", "test");
  writer.add_tensor("w", tensor::DType::kF32, {{5, 1, 1, 1}, 1}, std::vector<std::byte>(20, std::byte{1}));
  writer.add_tensor("v", tensor::DType::kF32, {{1, 1, 1, 1}, 1}, std::vector<std::byte>(4, std::byte{2}));
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "gguf_writer_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directory(dir);
  const std::string path = dir / "model.gguf";
  for (int again = 0; again < 2; ++again) {
    const auto written = writer.write(path);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(std::filesystem::file_size(path), writer.bytes().size());
    const auto file = File::open(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors().size(), 2u);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir), {}), 1) << "a temporary file is left";
  std::filesystem::remove_all(dir);
  const auto nowhere = writer.write(path);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, base::ErrorCode::kIo);
}

// Every type of value, scalar and in arrays: what one file says is written again byte for byte.
TEST(Writer, ValuesAreCopiedByteForByte) {
  std::vector<std::string> entries;
  constexpr ValueType kScalars[] = {ValueType::kU8,  ValueType::kI8,  ValueType::kU16, ValueType::kI16,
                                    ValueType::kU32, ValueType::kI32, ValueType::kF32, ValueType::kBool,
                                    ValueType::kU64, ValueType::kI64, ValueType::kF64};
  constexpr size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 8, 8};
  for (size_t i = 0; i < std::size(kScalars); ++i) {
    const char fill = kScalars[i] == ValueType::kBool ? '\1' : '\xFE';
    const std::string bytes(kBytes[i], fill);
    entries.push_back(Bytes().key(fmt::format("s{}", i), kScalars[i]).raw(bytes).text());
    entries.push_back(Bytes().array(fmt::format("a{}", i), kScalars[i], 3).raw(bytes + bytes + bytes).text());
    entries.push_back(Bytes().array(fmt::format("e{}", i), kScalars[i], 0).text());
  }
  entries.push_back(string_entry("text", std::string("a\0\xFF", 3)));
  entries.push_back(Bytes().array("texts", ValueType::kString, 2).str("").str("two").text());
  const std::string original = RawFile{.metadata = entries}.bytes();
  const auto file = open_bytes(original);
  ASSERT_TRUE(file) << file.error().message;
  Writer writer;
  for (const Metadata& item : file->metadata()) writer.set_value(item.key, item.value);
  EXPECT_EQ(writer.bytes(), original);
}

class Stream : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directory(dir_);
    writer_.set_string("general.name", "streamed");
    writer_.set_uint("general.alignment", 64);
    writer_.set_alignment(64);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_), {}));
  }
  static tensor::Shape shape(uint64_t n) { return {{n, 1, 1, 1}, 1}; }

  std::filesystem::path dir_ = std::filesystem::path(testing::TempDir()) / "gguf_stream_test";
  std::string path_ = dir_ / "model.gguf";
  Writer writer_;
};

TEST_F(Stream, PiecesMakeTheFileOfTheWhole) {
  Writer whole = writer_;
  std::vector<std::vector<std::byte>> data;
  for (const size_t n : {5, 16, 33}) {
    data.emplace_back(4 * n, static_cast<std::byte>(n));
    whole.add_tensor(fmt::format("t{}", n), tensor::DType::kF32, shape(n), data.back());
    writer_.declare_tensor(fmt::format("t{}", n), tensor::DType::kF32, shape(n));
  }
  auto file = writer_.stream(path_);
  ASSERT_TRUE(file) << file.error().message;
  for (const std::vector<std::byte>& bytes : data) {
    for (size_t at = 0; at < bytes.size(); at += 7)
      ASSERT_TRUE(file->append(std::span(bytes).subspan(at, std::min<size_t>(7, bytes.size() - at))));
    EXPECT_FALSE(std::filesystem::exists(path_)) << "before the last byte is written";
  }
  ASSERT_TRUE(file->finish());
  EXPECT_EQ(read(), whole.bytes());
  EXPECT_EQ(file->file_bytes(), whole.bytes().size());
  EXPECT_EQ(files(), 1u);
  const auto opened = File::open(path_);
  ASSERT_TRUE(opened) << opened.error().message;
  for (const TensorInfo& info : opened->tensors()) EXPECT_EQ(info.file_offset % 64, 0u);
}

TEST_F(Stream, GivenUpLeavesWhatWasThere) {
  std::ofstream(path_) << "before";
  writer_.declare_tensor("t", tensor::DType::kF32, shape(4));
  {
    auto file = writer_.stream(path_);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->append(std::vector<std::byte>(8)));
    EXPECT_EQ(files(), 2u);
    auto moved = std::move(*file);
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(read(), "before");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Stream, PlacesThatAreNoFile) {
  for (const std::string& path :
       {dir_.string(), std::string("/dev/null"), (dir_ / "none" / "m.gguf").string()}) {
    const auto file = writer_.stream(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().code, base::ErrorCode::kIo);
    EXPECT_NE(file.error().message.find(path), std::string::npos);
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(Stream, TooMuchOrTooLittleDataIsABrokenInvariant) {
  writer_.declare_tensor("t", tensor::DType::kF32, shape(4));
  auto file = writer_.stream(path_);
  ASSERT_TRUE(file);
  EXPECT_DEATH((void)file->finish(), "a tensor is not complete");
  EXPECT_DEATH((void)file->append(std::vector<std::byte>(17)), "more data than the tensor has");
  EXPECT_DEATH((void)writer_.bytes(), "a declared tensor has no data");
}

TEST(Writer, DataOfAnotherSizeIsABrokenInvariant) {
  Writer writer;
  EXPECT_DEATH(writer.add_tensor("w", tensor::DType::kF32, {{5, 1, 1, 1}, 1}, std::vector<std::byte>(19)),
               "tensor data of another size");
}

}  // namespace
}  // namespace tally::gguf
