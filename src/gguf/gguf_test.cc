// What a good file reads as: the two real models, every value type, the typed getters, reading tensors.

#include "gguf/gguf.h"

#include "base/utf8.h"
#include "gguf/test_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

namespace tally::gguf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::map<std::string, size_t> count_types(const File& file) {
  std::map<std::string, size_t> counts;
  for (const TensorInfo& tensor : file.tensors()) ++counts[std::string(tensor::dtype_info(tensor.type).name)];
  return counts;
}

TEST(RealModel, SmolLm2OpensWithItsCounts) {
  const std::string path = "models/smollm2-135m-instruct-q4_1.gguf";
  const auto file = File::open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(count_types(*file), (std::map<std::string, size_t>{{"Q4_1", 210}, {"F32", 61}, {"Q8_0", 1}}));
  EXPECT_EQ(file->file_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(*file->require_string("general.architecture"), "llama");
  EXPECT_EQ(*file->require_uint("llama.block_count", 1, 1024), 30u);
  EXPECT_EQ((*file->get_strings("tokenizer.ggml.tokens"))->size(), 49152u);
  const TensorInfo* embedding = file->find_tensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->type, tensor::DType::kQ8_0);
  EXPECT_EQ(embedding->bytes, uint64_t{576} / 32 * 34 * 49152);
  EXPECT_TRUE(file->check_unchanged());
}

TEST(RealModel, Gemma3OpensWithItsCounts) {
  const std::string path = "models/gemma3-270m-q4_k_m.gguf";
  const auto file = File::open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(count_types(*file), (std::map<std::string, size_t>{
                                    {"Q5_0", 81}, {"Q4_K", 27}, {"Q8_0", 10}, {"Q6_K", 9}, {"F32", 109}}));
  EXPECT_EQ((*file->get_strings("tokenizer.ggml.tokens"))->size(), 262144u);
  EXPECT_EQ((*file->get_floats("tokenizer.ggml.scores"))->size(), 262144u);
  EXPECT_EQ(file->get_ints("tokenizer.ggml.token_type", 0, 16)->size(), 262144u);
}

// One entry of each value type, with its extreme values.
RawFile every_type() {
  RawFile file;
  file.metadata = {
      Bytes().key("u8", ValueType::kU8).num(uint8_t{255}).text(),
      Bytes().key("i8", ValueType::kI8).num(int8_t{-128}).text(),
      Bytes().key("u16", ValueType::kU16).num(uint16_t{65535}).text(),
      Bytes().key("i16", ValueType::kI16).num(int16_t{7}).text(),
      uint_entry("u32", UINT32_MAX),
      Bytes().key("i32", ValueType::kI32).num(int32_t{-5}).text(),
      Bytes().key("f32", ValueType::kF32).num(1.5f).text(),
      Bytes().key("bool", ValueType::kBool).num(uint8_t{1}).text(),
      string_entry("string", "hello"),
      Bytes().key("u64", ValueType::kU64).num(UINT64_MAX).text(),
      Bytes().key("i64", ValueType::kI64).num(INT64_MIN).text(),
      Bytes().key("f64", ValueType::kF64).num(2.25).text(),
      Bytes().key("nan", ValueType::kF32).num(std::numeric_limits<float>::quiet_NaN()).text(),
      Bytes().key("inf", ValueType::kF64).num(-std::numeric_limits<double>::infinity()).text(),
      Bytes().array("strings", ValueType::kString, 3).str("a").str("").str("ccc").text(),
      Bytes().array("floats", ValueType::kF32, 2).num(0.5f).num(-2.0f).text(),
      Bytes().array("i8s", ValueType::kI8, 3).num(int8_t{-1}).num(int8_t{2}).num(int8_t{3}).text(),
      Bytes().array("u8s", ValueType::kU8, 2).num(uint8_t{200}).num(uint8_t{1}).text(),
      Bytes().array("u64s", ValueType::kU64, 1).num(UINT64_MAX).text(),
      Bytes().array("bools", ValueType::kBool, 3).num(uint8_t{1}).num(uint8_t{0}).num(uint8_t{1}).text(),
      Bytes().array("f64s", ValueType::kF64, 1).num(0.125).text(),
      Bytes().array("empty", ValueType::kF32, 0).text(),
      Bytes().array("none", ValueType::kString, 0).text(),
  };
  return file;
}

class Getters : public testing::Test {
 protected:
  Getters() : opened_(open_bytes(every_type().bytes())) {}
  const File& file() const { return *opened_; }

  base::Result<File> opened_;
};

template <class T>
void expect_error(const base::Result<T>& result, const std::string& key, const std::string& text) {
  ASSERT_FALSE(result) << key;
  EXPECT_EQ(result.error().code, base::ErrorCode::kBadData);
  EXPECT_THAT(result.error().message, HasSubstr("key '" + key + "'"));
  EXPECT_THAT(result.error().message, HasSubstr("byte "));
  EXPECT_THAT(result.error().message, HasSubstr(text));
}

TEST_F(Getters, UintTakesEveryIntegerInRange) {
  EXPECT_EQ(**file().get_uint("u8", 0, 255), 255u);
  EXPECT_EQ(**file().get_uint("u16", 0, 65535), 65535u);
  EXPECT_EQ(**file().get_uint("i16", 7, 7), 7u);
  EXPECT_EQ(**file().get_uint("u32", 0, UINT32_MAX), UINT32_MAX);
  EXPECT_EQ(**file().get_uint("u64", 0, UINT64_MAX), UINT64_MAX);
  EXPECT_FALSE(file().get_uint("absent", 0, 1)->has_value());
  expect_error(file().get_uint("u8", 0, 254), "u8", "is 255; allowed 0 to 254");
  expect_error(file().get_uint("i8", 0, 255), "i8", "is -128; allowed 0 to 255");
  expect_error(file().get_uint("i64", 0, UINT64_MAX), "i64", "is -9223372036854775808");
  expect_error(file().get_uint("f32", 0, 9), "f32", "has type f32; must be an integer");
  expect_error(file().get_uint("bool", 0, 9), "bool", "has type bool");
  expect_error(file().get_uint("i8s", 0, 9), "i8s", "has type array of i8");
  expect_error(file().get_uint("string", 0, 9), "string", "has type string");
}

TEST_F(Getters, RequiredKeysMustBeThere) {
  EXPECT_EQ(*file().require_uint("u8", 0, 255), 255u);
  EXPECT_EQ(*file().require_float("f32"), 1.5);
  EXPECT_EQ(*file().require_string("string"), "hello");
  for (const std::string& message :
       {file().require_uint("absent", 0, 1).error().message, file().require_float("absent").error().message,
        file().require_string("absent").error().message}) {
    EXPECT_THAT(message, HasSubstr("key 'absent' is missing"));
  }
  expect_error(file().require_uint("f32", 0, 9), "f32", "must be an integer");
}

TEST_F(Getters, FloatTakesFiniteFloatsOnly) {
  EXPECT_EQ(**file().get_float("f32"), 1.5);
  EXPECT_EQ(**file().get_float("f64"), 2.25);
  EXPECT_FALSE(file().get_float("absent")->has_value());
  expect_error(file().get_float("u8"), "u8", "must be f32 or f64");
  expect_error(file().get_float("floats"), "floats", "has type array of f32");
  expect_error(file().get_float("nan"), "nan", "must be finite");
  expect_error(file().get_float("inf"), "inf", "must be finite");
}

TEST_F(Getters, BoolAndStringAreExact) {
  EXPECT_EQ(**file().get_bool("bool"), true);
  EXPECT_FALSE(file().get_bool("absent")->has_value());
  expect_error(file().get_bool("u8"), "u8", "must be bool");
  EXPECT_EQ(**file().get_string("string"), "hello");
  EXPECT_FALSE(file().get_string("absent")->has_value());
  expect_error(file().get_string("strings"), "strings", "has type array of string; must be string");
}

TEST_F(Getters, UintsTakeOneValueOrOneALayer) {
  EXPECT_THAT(*file().get_uints("u8", 3, 0, 255), ElementsAre(255u, 255u, 255u));
  EXPECT_THAT(*file().get_uints("u8s", 2, 0, 255), ElementsAre(200u, 1u));
  EXPECT_THAT(*file().get_uints("bools", 3, 0, 1), ElementsAre(1u, 0u, 1u));
  EXPECT_THAT(*file().get_uints("bool", 2, 0, 1), ElementsAre(1u, 1u));
  EXPECT_TRUE(file().get_uints("absent", 2, 0, 1)->empty());
  expect_error(file().get_uints("u8s", 3, 0, 255), "u8s", "has 2 elements; must be one value or 3");
  expect_error(file().get_uints("u8s", 2, 0, 199), "u8s", "is 200; allowed 0 to 199");
  expect_error(file().get_uints("i8s", 3, 0, 9), "i8s", "is -1");
  expect_error(file().get_uints("floats", 2, 0, 9), "floats", "has type array of f32");
  expect_error(file().get_uints("string", 2, 0, 9), "string", "has type string");
}

TEST_F(Getters, ArraysAreTypedExactly) {
  EXPECT_THAT(**file().get_strings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_TRUE((*file().get_strings("none"))->empty());
  EXPECT_EQ(*file().get_strings("absent"), nullptr);
  expect_error(file().get_strings("floats"), "floats", "must be array of string");
  expect_error(file().get_strings("string"), "string", "must be array of string");
  EXPECT_THAT(**file().get_floats("floats"), ElementsAre(0.5f, -2.0f));
  EXPECT_TRUE((*file().get_floats("empty"))->empty());
  EXPECT_EQ(*file().get_floats("absent"), nullptr);
  expect_error(file().get_floats("u8s"), "u8s", "has type array of u8; must be array of f32");
  expect_error(file().get_floats("f64s"), "f64s", "must be array of f32");
  EXPECT_THAT(*file().get_ints("i8s", -1, 3), ElementsAre(-1, 2, 3));
  EXPECT_THAT(*file().get_ints("u8s", 0, 255), ElementsAre(200, 1));
  EXPECT_TRUE(file().get_ints("absent", 0, 1)->empty());
  expect_error(file().get_ints("i8s", 0, 3), "i8s", "element 0 is -1; allowed 0 to 3");
  expect_error(file().get_ints("u64s", INT64_MIN, INT64_MAX), "u64s", "element 0 is 18446744073709551615");
  expect_error(file().get_ints("bools", 0, 1), "bools", "has type array of bool");
  expect_error(file().get_ints("u8", 0, 255), "u8", "must be an array of integers");
}

TEST_F(Getters, ElementsKeepTheirKind) {
  const auto at = [&](const char* key, size_t i) {
    return std::get_if<Array>(&file().find(key)->data)->at(i);
  };
  EXPECT_EQ(at("i8s", 0), Scalar(int64_t{-1}));
  EXPECT_EQ(at("u64s", 0), Scalar(UINT64_MAX));
  EXPECT_EQ(at("bools", 1), Scalar(false));
  EXPECT_EQ(at("f64s", 0), Scalar(0.125));
  EXPECT_EQ(at("floats", 1), Scalar(-2.0f));
  EXPECT_EQ(at("strings", 2), Scalar(std::string_view("ccc")));
  EXPECT_EQ(file().find("absent"), nullptr);
}

TEST(Open, ReadsVersionTwoAsVersionThree) {
  RawFile raw = every_type();
  raw.version = 2;
  const auto file = open_bytes(raw.bytes());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->version(), 2u);
  EXPECT_EQ(file->metadata().size(), raw.metadata.size());
  EXPECT_EQ(file->metadata()[0].offset, 24u);
}

TEST(Open, PlacesTensorsByTheAlignmentOfTheFile) {
  for (const uint32_t alignment : {1u, 32u, 64u, 1u << 20}) {
    RawFile raw;
    raw.metadata = {uint_entry("general.alignment", alignment)};
    raw.tensors = {{.name = "a", .dims = {2, 2}}, {.name = "b", .dims = {3}, .offset = alignment * 16}};
    raw.data = std::string(alignment * 16 + 12, 'x');
    const auto file = open_bytes(raw.bytes(alignment));
    ASSERT_TRUE(file) << file.error().message;
    const TensorInfo* a = file->find_tensor("a");
    const TensorInfo* b = file->find_tensor("b");
    ASSERT_TRUE(a != nullptr && b != nullptr);
    EXPECT_EQ(a->file_offset, (raw.header().size() + alignment - 1) / alignment * alignment);
    EXPECT_EQ(b->file_offset, a->file_offset + alignment * 16);
    EXPECT_EQ(a->bytes, 16u);
    EXPECT_EQ(a->shape, (tensor::Shape{{2, 2, 1, 1}, 2}));
    EXPECT_EQ(file->find_tensor("c"), nullptr);
  }
}

TEST(ReadTensor, GivesAnyPartOfTheData) {
  RawFile raw;
  raw.tensors = {{.name = "pad", .dims = {1}}, {.name = "w", .dims = {8}, .offset = 32}};
  raw.data = std::string(32, '.') + "0123456789abcdefghijklmnopqrstuv";
  const auto file = open_bytes(raw.bytes());
  ASSERT_TRUE(file);
  const TensorInfo& w = *file->find_tensor("w");
  std::string out(5, ' ');
  ASSERT_TRUE(file->read_tensor(w, 10, std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(out, "abcde");
  out.resize(32);
  ASSERT_TRUE(file->read_tensor(w, 0, std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(out, raw.data.substr(32));
  ASSERT_TRUE(file->read_tensor(w, 32, {}));
  EXPECT_DEATH((void)file->read_tensor(w, 1, std::as_writable_bytes(std::span(out))),
               "past the end of a tensor");
}

TEST(ReadTensor, NoticesAFileCutMeanwhile) {
  RawFile raw;
  raw.tensors = {{.name = "w", .dims = {8}}};
  raw.data = std::string(32, 'x');
  MemoryFile memory(raw.bytes());
  const auto file = File::open(memory.path());
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->check_unchanged());
  memory.resize(raw.bytes().size() - 3);
  std::string out(32, ' ');
  const auto read = file->read_tensor(*file->find_tensor("w"), 0, std::as_writable_bytes(std::span(out)));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, base::ErrorCode::kBadData);
  EXPECT_THAT(read.error().message, HasSubstr("truncated"));
  const auto unchanged = file->check_unchanged();
  ASSERT_FALSE(unchanged);
  EXPECT_THAT(unchanged.error().message, HasSubstr("changed while it was read"));
}

TEST(CheckUnchanged, NoticesTheTimeOfAChange) {
  const std::filesystem::path path = testing::TempDir() + "gguf_changed_test.gguf";
  std::ofstream(path, std::ios::binary) << RawFile().bytes();
  const auto file = File::open(path);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->check_unchanged());
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_FALSE(file->check_unchanged());
  std::filesystem::remove(path);
}

TEST(File, ViewsStayValidWhenTheFileMoves) {
  auto opened = open_bytes(every_type().bytes());
  ASSERT_TRUE(opened);
  const std::vector<std::string_view>* strings = *opened->get_strings("strings");
  File moved = std::move(*opened);
  EXPECT_THAT(*strings, ElementsAre("a", "", "ccc"));
  EXPECT_EQ(*moved.get_strings("strings"), strings);
}

}  // namespace
}  // namespace tally::gguf
