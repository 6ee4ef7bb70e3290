// Models in several files (G23).

#include "gguf/split.h"

#include "gguf/gguf.h"
#include "gguf/test_bytes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tally::gguf {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string split_no(uint16_t value) { return Bytes().key("split.no", ValueType::kU16).num(value).text(); }
std::string split_count(uint16_t value) {
  return Bytes().key("split.count", ValueType::kU16).num(value).text();
}
std::string split_tensors(int32_t value) {
  return Bytes().key("split.tensors.count", ValueType::kI32).num(value).text();
}

// A shard with one tensor, filled with a letter.
RawFile shard(uint16_t number, uint16_t count, const std::string& tensor) {
  RawFile file;
  if (number == 0) file.metadata.push_back(string_entry("general.architecture", "llama"));
  file.metadata.push_back(split_no(number));
  file.metadata.push_back(split_count(count));
  file.metadata.push_back(split_tensors(count));
  file.tensors = {{.name = tensor}};
  file.data = std::string(16, static_cast<char>('a' + number));
  return file;
}

class Split : public testing::Test {
 protected:
  Split() : dir_(fs::path(testing::TempDir()) / "gguf_split_test") {
    fs::remove_all(dir_);
    fs::create_directory(dir_);
    put("m-00001-of-00003.gguf", shard(0, 3, "w0"));
    put("m-00002-of-00003.gguf", shard(1, 3, "w1"));
    put("m-00003-of-00003.gguf", shard(2, 3, "w2"));
  }
  ~Split() override { fs::remove_all(dir_); }

  void put(const std::string& name, const RawFile& file) {
    std::ofstream(dir_ / name, std::ios::binary | std::ios::trunc) << file.bytes();
  }
  base::Result<File> open(const std::string& name = "m-00001-of-00003.gguf") {
    return File::open(dir_ / name);
  }
  void expect_refused(const std::string& message, base::ErrorCode code = base::ErrorCode::kBadData,
                      const std::string& name = "m-00001-of-00003.gguf") {
    const auto file = open(name);
    ASSERT_FALSE(file) << message;
    EXPECT_EQ(file.error().code, code);
    EXPECT_THAT(file.error().message, HasSubstr(message));
  }

  fs::path dir_;
};

TEST_F(Split, ShardsOpenAsOneFile) {
  const auto file = open();
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(*file->require_string("general.architecture"), "llama");
  for (uint32_t i = 0; i < 3; ++i) {
    const TensorInfo* tensor = file->find_tensor(fmt::format("w{}", i));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shard, i);
    std::string data(16, ' ');
    ASSERT_TRUE(file->read_tensor(*tensor, 0, std::as_writable_bytes(std::span(data))));
    EXPECT_EQ(data, std::string(16, static_cast<char>('a' + i)));
  }
  uint64_t bytes = 0, header = 0;
  for (uint16_t i = 0; i < 3; ++i) {
    bytes += shard(i, 3, "w0").bytes().size();
    header += shard(i, 3, "w0").header().size();
  }
  EXPECT_EQ(file->file_bytes(), bytes);
  EXPECT_EQ(file->header_bytes(), header);
  EXPECT_TRUE(file->check_unchanged());
  fs::resize_file(dir_ / "m-00003-of-00003.gguf", 7);
  const auto unchanged = file->check_unchanged();
  ASSERT_FALSE(unchanged);
  EXPECT_THAT(unchanged.error().message, HasSubstr("m-00003-of-00003.gguf"));
}

TEST_F(Split, OneShardIsAnOrdinaryFile) {
  put("any-name.gguf", shard(0, 1, "w"));
  EXPECT_TRUE(open("any-name.gguf"));
}

TEST_F(Split, CountAndNumberAreChecked) {
  const auto first = [](std::vector<std::string> entries) {
    RawFile file = shard(0, 3, "w0");
    file.metadata = std::move(entries);
    return file;
  };
  put("m-00001-of-00003.gguf", first({split_no(0), uint_entry("split.count", 100000)}));
  expect_refused("key 'split.count': is 100000; allowed 1 to 1024");
  put("m-00001-of-00003.gguf", first({split_no(0), split_count(0)}));
  expect_refused("key 'split.count': is 0");
  put("m-00001-of-00003.gguf", first({split_no(3), split_count(3)}));
  expect_refused("key 'split.no': is 3; allowed 0 to 2");
  put("m-00001-of-00003.gguf", first({split_no(0), string_entry("split.count", "3")}));
  expect_refused("key 'split.count': has type string");
  put("m-00001-of-00003.gguf", first({split_no(0), split_count(4)}));
  expect_refused("its name must end with '-00001-of-00004.gguf'");
}

TEST_F(Split, OnlyTheFirstShardIsOpened) {
  expect_refused("is shard 2 of 3: open the first one", base::ErrorCode::kBadData, "m-00002-of-00003.gguf");
}

TEST_F(Split, MissingShardCannotBeRead) {
  fs::remove(dir_ / "m-00003-of-00003.gguf");
  expect_refused("m-00003-of-00003.gguf: cannot be opened", base::ErrorCode::kNoInput);
}

TEST_F(Split, ShardOfAnotherModelIsRefused) {
  put("m-00002-of-00003.gguf", shard(2, 3, "w1"));
  expect_refused("m-00002-of-00003.gguf: byte 24: key 'split.no': is 2; must be 1");
  put("m-00002-of-00003.gguf", shard(1, 4, "w1"));
  expect_refused("key 'split.count': is 4; must be 3");
  RawFile whole = shard(1, 3, "w1");
  whole.metadata = {string_entry("general.architecture", "llama")};
  put("m-00002-of-00003.gguf", whole);
  expect_refused("key 'split.count' is missing");
  whole.metadata = {split_no(1), split_count(3), string_entry("general.name", "other")};
  put("m-00002-of-00003.gguf", whole);
  expect_refused("key 'general.name' may stand in the first shard only");
}

TEST_F(Split, NamesAreUniqueOverAllShards) {
  put("m-00003-of-00003.gguf", shard(2, 3, "w0"));
  expect_refused("m-00003-of-00003.gguf: byte ");
  expect_refused("tensor 'w0' is in two shards");
}

TEST_F(Split, TensorsMustAddUp) {
  RawFile first = shard(0, 3, "w0");
  first.metadata.back() = split_tensors(4);
  put("m-00001-of-00003.gguf", first);
  expect_refused("key 'split.tensors.count': 4 tensors promised, 3 found in 3 shards");
}

TEST_F(Split, FurtherShardsAreRegularFilesOfTheirOwn) {
  fs::remove(dir_ / "m-00003-of-00003.gguf");
  fs::create_symlink(dir_ / "m-00002-of-00003.gguf", dir_ / "m-00003-of-00003.gguf");
  expect_refused("is a symbolic link", base::ErrorCode::kNoInput);
  fs::remove(dir_ / "m-00003-of-00003.gguf");
  fs::create_directory(dir_ / "m-00003-of-00003.gguf");
  expect_refused("is a directory", base::ErrorCode::kNoInput);
  // The same inode twice: the second name says shard 3, the content shard 2, so the number already refuses
  // it.
  fs::remove(dir_ / "m-00003-of-00003.gguf");
  fs::create_hard_link(dir_ / "m-00002-of-00003.gguf", dir_ / "m-00003-of-00003.gguf");
  expect_refused("key 'split.no': is 1; must be 2");
}

TEST_F(Split, DamageInAFurtherShardNamesThatShard) {
  fs::resize_file(dir_ / "m-00002-of-00003.gguf", 100);
  expect_refused("m-00002-of-00003.gguf: byte ");
}

}  // namespace
}  // namespace tally::gguf
