#include "gguf/writer.h"

#include "gguf/gguf.h"
#include "gguf/test_bytes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <filesystem>

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

TEST(Writer, DataOfAnotherSizeIsABrokenInvariant) {
  Writer writer;
  EXPECT_DEATH(writer.add_tensor("w", tensor::DType::kF32, {{5, 1, 1, 1}, 1}, std::vector<std::byte>(19)),
               "tensor data of another size");
}

}  // namespace
}  // namespace tally::gguf
