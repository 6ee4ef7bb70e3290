// Every family that has an encoder: ggml's own bytes where its formula is fixed, its error where there is a
// search.

#include "kernels/linear.h"
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tally::kernels {
namespace {

using tensor::DType;

std::vector<LinearFormat> formats() {
  std::vector<LinearFormat> out;
  for (const LinearFamily& family : linear_families())
    if (family.format.encode != nullptr) out.push_back(family.format);
  return out;
}

std::string name_of(const LinearFormat& format) { return std::string(tensor::dtype_info(format.type).name); }

std::string read_golden(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  std::ifstream in("tests/golden/quant/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> source_values() {
  const std::string bytes = read_golden("source.f32");
  std::vector<float> x(bytes.size() / sizeof(float));
  std::memcpy(x.data(), bytes.data(), bytes.size());
  return x;
}

// The search that the file formats leave open.
bool has_search(DType type) { return type == DType::kQ4_K || type == DType::kQ5_K || type == DType::kQ6_K; }

struct Coded {
  bool ok = false;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};
Coded code(const LinearFormat& format, const std::vector<float>& x) {
  Coded coded;
  coded.bytes.resize(tensor::row_bytes(format.type, x.size()));
  coded.values.resize(x.size());
  coded.ok = format.encode(x.data(), x.size(), coded.bytes.data());
  if (coded.ok) format.dequantize(coded.bytes.data(), x.size(), coded.values.data());
  return coded;
}

double relative_rms(const std::vector<float>& x, const float* y) {
  double off = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - y[i];
    off += d * d, size += static_cast<double>(x[i]) * x[i];
  }
  return std::sqrt(off / size);
}

class EncodeTest : public testing::TestWithParam<LinearFormat> {
 protected:
  size_t block() const { return tensor::dtype_info(GetParam().type).block_elements; }
  // Normal values times `scale`, each block shifted its own way.
  std::vector<float> values(size_t blocks, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(blocks * std::max<size_t>(block(), 32));
    float shift = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (i % 32 == 0) shift = normal(random_);
      x[i] = normal(random_) + shift;
    }
    return x;
  }
  std::mt19937 random_{1};
};

INSTANTIATE_TEST_SUITE_P(Formats, EncodeTest, testing::ValuesIn(formats()),
                         [](const testing::TestParamInfo<LinearFormat>& row) { return name_of(row.param); });

TEST(Encode, TheTypesThatQuantizeOffersHaveOne) { EXPECT_GE(formats().size(), 11u); }

TEST_P(EncodeTest, BytesOrErrorOfGgml) {
  const std::vector<float> x = source_values();
  ASSERT_GT(x.size(), 10000u);
  const Coded ours = code(GetParam(), x);
  ASSERT_TRUE(ours.ok);
  if (GetParam().type == DType::kF32) {
    EXPECT_EQ(std::memcmp(ours.values.data(), x.data(), x.size() * sizeof(float)), 0);
    return;
  }
  // ggml's blocks of the source come first in the file.
  const std::string theirs = read_golden(name_of(GetParam()) + ".bin");
  ASSERT_GE(theirs.size(), ours.bytes.size());
  if (!has_search(GetParam().type)) {
    EXPECT_EQ(std::memcmp(theirs.data(), ours.bytes.data(), ours.bytes.size()), 0);
    return;
  }
  std::vector<float> their_values(x.size());
  GetParam().dequantize(reinterpret_cast<const std::byte*>(theirs.data()), x.size(), their_values.data());
  const double our_error = relative_rms(x, ours.values.data()),
               their_error = relative_rms(x, their_values.data());
  RecordProperty("relative_rms", std::to_string(our_error));
  RecordProperty("relative_rms_of_ggml", std::to_string(their_error));
  // The source's weights once were Q6_K: both find them again.
  EXPECT_LE(our_error, 1.02 * their_error + 1e-6);
  EXPECT_EQ(our_error > 0.001, GetParam().type != DType::kQ6_K);
}

// The search on values without structure: a hundredth above what it reached when it was written (ggml's own
// for Q6_K gives 0.0177 here).
TEST_P(EncodeTest, SearchIsAsGoodAsItWas) {
  const std::pair<DType, double> reached[] = {
      {DType::kQ4_K, 0.0704}, {DType::kQ5_K, 0.0347}, {DType::kQ6_K, 0.0175}};
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> x(1 << 16);
  for (float& v : x) v = normal(random_);
  const double error = relative_rms(x, code(GetParam(), x).values.data());
  bool found = false;
  for (const auto& [type, rms] : reached) {
    if (type != GetParam().type) continue;
    found = true;
    EXPECT_LE(error, 1.01 * rms);
  }
  EXPECT_EQ(found, has_search(GetParam().type));
}

// Largest |x - y| as a share of the block's largest |x|: half a step, and what rounding the scales to f16
// (and the sub-blocks' to 6 bits) adds.
double share_allowed(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kQ8_0:
      return 0.5 / 127 + 0x1p-11;
    case DType::kQ4_0:
      return 1.0 / 8 + 0x1p-10;  // the extreme's other sign is one step short
    case DType::kQ5_0:
      return 1.0 / 16 + 0x1p-10;
    case DType::kQ4_1:
      return 1.0 / 15 + 0x1p-9;  // max - min is at most twice the largest magnitude
    case DType::kQ5_1:
      return 1.0 / 31 + 0x1p-9;
    case DType::kQ4_K:
      return 0.2;
    case DType::kQ5_K:
      return 0.11;
    case DType::kQ6_K:
      return 0.06;
    default:
      return -1;  // a new encoder needs its line
  }
}

TEST_P(EncodeTest, ValuesComeBackWithinTheStep) {
  const double allowed = share_allowed(GetParam().type);
  for (const float scale : {1e-3f, 0.02f, 1.0f, 500.0f}) {
    const std::vector<float> x = values(64, scale);
    const Coded coded = code(GetParam(), x);
    ASSERT_TRUE(coded.ok);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t first = i / block() * block();
      double most = 0;
      for (size_t j = first; j < first + block(); ++j)
        most = std::max(most, std::fabs(static_cast<double>(x[j])));
      ASSERT_LE(std::fabs(static_cast<double>(x[i]) - coded.values[i]), allowed * most + 0x1p-18)
          << "element " << i << " scale " << scale;
    }
  }
}

// f16 scales below 6e-5 are subnormal: coarse, but no reason to give zero.
TEST_P(EncodeTest, SmallValuesAreNotLost) {
  const std::vector<float> x = values(16, 2e-5f);
  const Coded coded = code(GetParam(), x);
  ASSERT_TRUE(coded.ok);
  EXPECT_LT(relative_rms(x, coded.values.data()), 0.12);
}

TEST_P(EncodeTest, ZeroAndSubnormalValues) {
  std::vector<float> x(512, 0.0f);
  Coded coded = code(GetParam(), x);
  ASSERT_TRUE(coded.ok);
  for (const float y : coded.values) EXPECT_EQ(y, 0.0f);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = (i % 2 == 0 ? 1.0f : -1.0f) * static_cast<float>(i % 37) * FLT_TRUE_MIN;
  coded = code(GetParam(), x);
  ASSERT_TRUE(coded.ok);
  for (size_t i = 0; i < x.size(); ++i) {
    if (GetParam().type == DType::kF32) {
      EXPECT_EQ(coded.values[i], x[i]);
    } else {
      EXPECT_LT(std::fabs(coded.values[i]), 1e-37f);
    }
  }
  // One large value beside tiny ones, and a block of one value.
  x[5] = 3.0f;
  coded = code(GetParam(), x);
  ASSERT_TRUE(coded.ok);
  EXPECT_NEAR(coded.values[5], 3.0f, 0.02f);
  for (const float same : {2.0f, -2.0f}) {
    coded = code(GetParam(), std::vector<float>(256, same));
    ASSERT_TRUE(coded.ok);
    for (const float y : coded.values) EXPECT_NEAR(y, same, 0.01f);
  }
}

TEST_P(EncodeTest, WhatCannotBeSaidIsRefused) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf(""), FLT_MAX, -FLT_MAX, 1e30f, -1e10f}) {
    for (const size_t at : {size_t{0}, size_t{31}, size_t{300}, size_t{511}}) {
      std::vector<float> x(512, 0.5f);
      x[at] = bad;
      const bool fits = std::isfinite(bad) && (GetParam().type == DType::kF32 ||
                                               (GetParam().type == DType::kBF16 && std::fabs(bad) < FLT_MAX));
      EXPECT_EQ(code(GetParam(), x).ok, fits) << bad << " at " << at;
    }
  }
  // Just below the range of an f16: everything holds it.
  std::vector<float> x(512, 1.0f);
  x[100] = 65000.0f;
  const Coded coded = code(GetParam(), x);
  ASSERT_TRUE(coded.ok);
  EXPECT_NEAR(coded.values[100], 65000.0f, 65000 * 0.05f);
  for (const float y : coded.values) EXPECT_TRUE(std::isfinite(y));
}

// Coding again what came out of a coding changes little, whatever the search finds.
TEST_P(EncodeTest, CodingTwiceChangesLittle) {
  const std::vector<float> x = values(8, 1.0f);
  const Coded once = code(GetParam(), x), twice = code(GetParam(), once.values);
  ASSERT_TRUE(once.ok && twice.ok);
  EXPECT_LE(relative_rms(once.values, twice.values.data()), 0.2 * relative_rms(x, once.values.data()) + 1e-3);
}

}  // namespace
}  // namespace tally::kernels
