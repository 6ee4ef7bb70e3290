// Every linear family, every variant on its list: those the host can run and, emulated, those it cannot.

#include "kernels/linear.h"

#include "kernels/linear_data.h"
#include "kernels/linear_loop.h"
#include "kernels/panel.h"
#include "kernels/runnable_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace tally::kernels {

namespace {

using tensor::DType;

enum class InputMode { kRandom, kExtreme, kTiny, kZeroBlocks, kOneSign };
constexpr InputMode kInputModes[] = {InputMode::kRandom, InputMode::kExtreme, InputMode::kTiny,
                                     InputMode::kZeroBlocks};

std::vector<float> make_input(size_t tokens, size_t k, Random& random, InputMode mode) {
  std::vector<float> x(tokens * k);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = random_float(random, -3, 3);
    if (mode == InputMode::kExtreme) x[i] = (i / k + (i % k) / 3) % 2 ? -2.0f : 2.0f;  // every code is +-127
    if (mode == InputMode::kOneSign) x[i] = i / k % 2 ? -2.0f : 2.0f;
    if (mode == InputMode::kTiny) x[i] *= 1e-29f;
    if (mode == InputMode::kZeroBlocks && i / 32 % 2 == 0) x[i] = 0;
  }
  return x;
}

// The output with a margin on every side, to see that nothing else is written. Misaligned by 4 bytes.
class Output {
 public:
  static constexpr float kUntouched = -12345.5f;
  Output(size_t tokens, size_t rows) : stride_(rows + 5), values_((tokens + 2) * stride_ + 1, kUntouched) {}
  float* data() { return values_.data() + 1 + stride_; }
  size_t stride() const { return stride_; }
  const std::vector<float>& values() const { return values_; }

 private:
  size_t stride_;
  std::vector<float> values_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Problem {
  const LinearFormat& format;
  size_t rows, k, tokens;
  AlignedBytes weights, panel;

  std::vector<float> run(LinearFn fn, size_t group_begin, size_t group_end) {
    Output out(tokens, rows);
    fn({.weights = weights.data(),
        .rows = rows,
        .k = k,
        .panel = panel.data(),
        .tokens = tokens,
        .out = out.data(),
        .out_stride = out.stride(),
        .group_begin = group_begin,
        .group_end = group_end});
    return out.values();
  }
  std::vector<float> run(LinearFn fn) { return run(fn, 0, (rows + kGroupRows - 1) / kGroupRows); }
};

struct Size {
  size_t rows, k, tokens;
};

Problem make_problem(const LinearFormat& format, const Size& size, Random& random, WeightMode weights,
                     InputMode input) {
  const auto data = make_rows(format.type, size.rows, size.k, random, weights);
  const auto x = make_input(size.tokens, size.k, random, input);
  return {format,
          size.rows,
          size.k,
          size.tokens,
          pack_rows(format, data, size.rows, size.k),
          make_panel(scalar_panel(format.panel), format.panel, x, size.tokens, size.k)};
}

class LinearTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { set_float_mode(); }

  void expect_equal(const Size& size, WeightMode weights, InputMode input) {
    Problem problem = make_problem(format(), size, random_, weights, input);
    const std::vector<float> expected = problem.run(scalar());
    for (const LinearVariant& v : runnable(family_))
      EXPECT_TRUE(same_bits(problem.run(v.entry), expected))
          << v.name << " rows " << size.rows << " k " << size.k << " tokens " << size.tokens << " weights "
          << static_cast<int>(weights) << " input " << static_cast<int>(input);
  }

  const LinearFormat& format() const { return family_.format; }
  LinearFn scalar() const { return family_.variants.back().entry; }

  LinearFamily family_ = linear_families()[GetParam()];
  Random random_{static_cast<uint32_t>(GetParam() + 1)};
};

INSTANTIATE_TEST_SUITE_P(Families, LinearTest, testing::Range(size_t{0}, kLinearFormats),
                         [](const testing::TestParamInfo<size_t>& family) {
                           return std::string(
                               tensor::dtype_info(linear_families()[family.param].format.type).name);
                         });

TEST_P(LinearTest, ListEndsWithTheDefinitionAndIsBestFirst) {
  ASSERT_FALSE(family_.variants.empty());
  EXPECT_EQ(family_.variants.back().isa, Isa::kScalar);
  for (size_t i = 1; i < family_.variants.size(); ++i)
    EXPECT_GT(family_.variants[i - 1].isa, family_.variants[i].isa) << family_.variants[i].name;
  EXPECT_GE(family_.variants.size(), 2u) << "no AVX2 kernel";
  EXPECT_EQ(format().block, panel_block(format().panel));
}

TEST_P(LinearTest, VariantsEqualScalarForEveryShape) {
  const size_t unit = format().block;
  const std::vector<size_t> ks = unit == 1 ? std::vector<size_t>{1, 2, 7, 8, 24, 33, 48, 257}
                                           : std::vector<size_t>{unit, 2 * unit, 3 * unit, 9 * unit};
  for (const size_t rows : {1, 31, 32, 33, 96})
    for (const size_t k : ks)
      for (const size_t tokens : {1, 3, 18})
        expect_equal({rows, k, tokens}, WeightMode::kRandom, InputMode::kRandom);
}

TEST_P(LinearTest, VariantsEqualScalarForEveryNumberOfTokens) {
  const size_t k = format().block == 1 ? 24 : 2 * format().block;
  for (size_t tokens = 1; tokens <= 33; ++tokens)
    expect_equal({33, k, tokens}, WeightMode::kRandom, InputMode::kRandom);
  expect_equal({40, k, 40}, WeightMode::kRandom, InputMode::kRandom);
}

TEST_P(LinearTest, VariantsEqualScalarAtTheExtremes) {
  const size_t k = format().block == 1 ? 24 : 3 * format().block;
  for (const WeightMode weights : kWeightModes)
    for (const InputMode input : kInputModes)
      for (const size_t tokens : {1, 5}) expect_equal({34, k, tokens}, weights, input);
}

// Every byte of a block the same, activations 127 or -127 all: each code at the limits of sums in 16 bits.
TEST_P(LinearTest, VariantsEqualScalarAtTheLargestSumOfEveryCode) {
  if (format().panel == PanelKind::kF32) return;  // no codes
  const Size size{34, format().block, 2};
  const auto x = make_input(size.tokens, size.k, random_, InputMode::kOneSign);
  const PanelFn panel = scalar_panel(format().panel);
  const size_t block = tensor::dtype_info(format().type).block_bytes;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::vector<std::byte> data(size.rows * block, static_cast<std::byte>(byte));
    for (size_t i = 0; i < data.size(); i += block) {
      for (const size_t offset : scale_offsets(format().type)) {
        const uint16_t one = tensor::f32_to_f16(1);
        std::memcpy(data.data() + i + offset, &one, sizeof one);
      }
      if (format().type == DType::kMXFP4) data[i] = std::byte{128};
    }
    Problem problem{format(),
                    size.rows,
                    size.k,
                    size.tokens,
                    pack_rows(format(), data, size.rows, size.k),
                    make_panel(panel, format().panel, x, size.tokens, size.k)};
    const std::vector<float> expected = problem.run(scalar());
    for (const LinearVariant& v : runnable(family_))
      ASSERT_TRUE(same_bits(problem.run(v.entry), expected)) << v.name << " byte " << byte;
  }
}

TEST_P(LinearTest, VariantsEqualScalarOnABigMatrix) {
  // More than one token chunk of the loop: 256 KiB of panel.
  expect_equal({64, 2048, 150}, WeightMode::kRandom, InputMode::kRandom);
}

// Aligned and larger than what is streamed past the caches; 37 rows have a register that is not whole.
TEST_P(LinearTest, ALargeOutputHasTheSameBits) {
  const size_t k = format().block == 1 ? 8 : format().block, rows = 37, tokens = 33;
  Problem problem =
      make_problem(format(), {rows, k, tokens}, random_, WeightMode::kRandom, InputMode::kRandom);
  const std::vector<float> expected = problem.run(scalar());
  const size_t stride = kStreamBytes / sizeof(float) / 32, small = rows + 5;
  AlignedBytes bytes(tokens * stride * sizeof(float));
  LinearArgs args{.weights = problem.weights.data(), .rows = rows, .k = k, .panel = problem.panel.data()};
  args.tokens = tokens, args.out = reinterpret_cast<float*>(bytes.data()), args.out_stride = stride;
  args.group_end = 2;
  ASSERT_TRUE(streams_out(args));
  for (const LinearVariant& v : runnable(family_)) {
    for (size_t t = 0; t < tokens; ++t) std::fill_n(args.out + t * stride, small, Output::kUntouched);
    v.entry(args);
    for (size_t t = 0; t < tokens; ++t)
      ASSERT_EQ(
          std::memcmp(args.out + t * stride, expected.data() + 1 + (t + 1) * small, small * sizeof(float)), 0)
          << v.name << ", token " << t;
  }
}

TEST_P(LinearTest, GroupRangesWriteTheirRowsOnly) {
  const size_t k = format().block == 1 ? 8 : format().block;
  const Size size{90, k, 6};
  Problem problem = make_problem(format(), size, random_, WeightMode::kRandom, InputMode::kRandom);
  const std::vector<float> all = problem.run(scalar());
  std::vector<LinearVariant> list = runnable(family_);
  list.push_back(family_.variants.back());
  for (const LinearVariant& v : list) {
    const std::vector<float> middle = problem.run(v.entry, 1, 2);
    const size_t stride = size.rows + 5;
    for (size_t i = 0; i < middle.size(); ++i) {
      const size_t column = (i + stride - 1) % stride;
      const bool written = i > stride && i < (size.tokens + 1) * stride + 1 && column >= 32 && column < 64;
      ASSERT_EQ(middle[i], written ? all[i] : Output::kUntouched) << v.name << " at " << i;
    }
  }
}

TEST_P(LinearTest, ATokenDoesNotDependOnItsNeighbours) {
  const size_t rows = 32, tokens = 33, k = format().block == 1 ? 48 : 2 * format().block;
  const auto data = make_rows(format().type, rows, k, random_, WeightMode::kRandom);
  const auto x = make_input(tokens, k, random_, InputMode::kRandom);
  const PanelFn panel = scalar_panel(format().panel);
  std::vector<LinearVariant> list = runnable(family_);
  list.push_back(family_.variants.back());
  for (const LinearVariant& v : list) {
    Problem together{format(),
                     rows,
                     k,
                     tokens,
                     pack_rows(format(), data, rows, k),
                     make_panel(panel, format().panel, x, tokens, k)};
    const std::vector<float> all = together.run(v.entry);
    for (size_t t = 0; t < tokens; ++t) {
      const std::vector<float> one(x.begin() + static_cast<ptrdiff_t>(t * k),
                                   x.begin() + static_cast<ptrdiff_t>((t + 1) * k));
      Problem alone{format(),
                    rows,
                    k,
                    1,
                    pack_rows(format(), data, rows, k),
                    make_panel(panel, format().panel, one, 1, k)};
      const std::vector<float> out = alone.run(v.entry);
      const size_t stride = rows + 5;
      ASSERT_EQ(std::memcmp(out.data() + 1 + stride, all.data() + 1 + (t + 1) * stride, rows * sizeof(float)),
                0)
          << v.name << " token " << t;
    }
  }
}

// One token's activation as the panel holds it.
std::vector<double> panel_values(const LinearFormat& format, AlignedBytes& panel, size_t k) {
  std::vector<double> x(k);
  for (size_t i = 0; i < k; ++i) {
    if (format.panel == PanelKind::kF32) x[i] = f32_row(panel.data(), 1, i)[0];
    if (format.panel == PanelKind::kInt32) {
      const Int32Block b = int32_block(panel.data(), 1, i / 32);
      x[i] = static_cast<double>(b.d[0]) * b.q[i % 32];
    }
    if (format.panel == PanelKind::kInt256) {
      const Int256Block b = int256_block(panel.data(), 1, i / 256);
      x[i] = static_cast<double>(b.d[0]) * b.q[i % 256];
    }
  }
  return x;
}

TEST_P(LinearTest, ScalarAgreesWithDoubleOnTheSameActivations) {
  const size_t rows = 40, k = 9 * 256;
  const auto data = make_rows(format().type, rows, k, random_, WeightMode::kRandom);
  const auto x = make_input(1, k, random_, InputMode::kRandom);
  Problem problem{format(),
                  rows,
                  k,
                  1,
                  pack_rows(format(), data, rows, k),
                  make_panel(scalar_panel(format().panel), format().panel, x, 1, k)};
  const std::vector<float> out = problem.run(scalar());
  const std::vector<double> a = panel_values(format(), problem.panel, k);
  std::vector<float> w(k);
  for (size_t r = 0; r < rows; ++r) {
    format().dequantize(data.data() + r * data.size() / rows, k, w.data());
    double sum = 0, size = 0;
    for (size_t i = 0; i < k; ++i) sum += w[i] * a[i], size += std::fabs(w[i] * a[i]);
    EXPECT_NEAR(out[1 + rows + 5 + r], sum, 1e-5 * size) << "row " << r;
  }
}

TEST_P(LinearTest, UnpackedRowsHaveTheBitsOfDequantize) {
  const size_t k = format().block == 1 ? 33 : 4 * format().block;
  for (const size_t rows : {1, 17, 32})
    for (const WeightMode mode : kWeightModes) {
      const auto data = make_rows(format().type, rows, k, random_, mode);
      AlignedBytes group = pack_rows(format(), data, rows, k);
      std::vector<float> expected(k), got(k);
      for (size_t r = 0; r < rows; ++r) {
        format().dequantize(data.data() + r * data.size() / rows, k, expected.data());
        format().unpack_row(group.data(), r, k, got.data());
        ASSERT_TRUE(same_bits(got, expected))
            << "row " << r << " of " << rows << " mode " << static_cast<int>(mode);
      }
      for (size_t r = rows; r < kGroupRows; ++r) {
        format().unpack_row(group.data(), r, k, got.data());
        for (const float value : got) ASSERT_EQ(value, 0.0f) << "padding row " << r;
      }
    }
}

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Restores IEEE denormals: the golden values keep them.
class IeeeMode {
 public:
  IeeeMode() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ & ~0x8040u); }
  ~IeeeMode() { __builtin_ia32_ldmxcsr(saved_); }
  IeeeMode(const IeeeMode&) = delete;
  IeeeMode& operator=(const IeeeMode&) = delete;

 private:
  unsigned saved_;
};

TEST_P(LinearTest, DequantizeAndPackingMatchTheGoldenFiles) {
  if (format().type == DType::kF32) return;  // has no file: the values are the bytes
  const IeeeMode ieee;
  std::string name(tensor::dtype_info(format().type).name);
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  const std::vector<std::byte> blocks = read_file("tests/golden/quant/" + name + ".bin");
  const std::vector<std::byte> values = read_file("tests/golden/quant/" + name + ".f32");
  const size_t n = values.size() / sizeof(float);
  ASSERT_GT(n, 0u) << name;
  ASSERT_EQ(blocks.size(), tensor::row_bytes(format().type, n));
  std::vector<float> out(n);
  format().dequantize(blocks.data(), n, out.data());
  EXPECT_EQ(std::memcmp(out.data(), values.data(), values.size()), 0) << name;

  AlignedBytes group(format().group_bytes(n));
  format().pack(blocks.data(), 1, n, group.data());
  std::vector<float> unpacked(n);
  format().unpack_row(group.data(), 0, n, unpacked.data());
  EXPECT_EQ(std::memcmp(unpacked.data(), values.data(), values.size()), 0) << name;
}

// In IEEE mode even the subnormal scales of e = 0 and 1 count.
TEST(Mxfp4, EveryExponentIsItsPowerOfTwo) {
  const IeeeMode ieee;
  const LinearFamily family = mxfp4_family();
  constexpr size_t kRows = 256, kK = 32;
  std::vector<std::byte> data(kRows * sizeof(tensor::BlockMXFP4), std::byte{0x11});  // every value is 1
  for (size_t e = 0; e < kRows; ++e) data[e * sizeof(tensor::BlockMXFP4)] = static_cast<std::byte>(e);
  for (size_t e = 0; e < kRows; ++e) {
    float values[kK];
    family.format.dequantize(data.data() + e * sizeof(tensor::BlockMXFP4), kK, values);
    for (const float value : values) ASSERT_EQ(value, std::ldexp(1.0f, static_cast<int>(e) - 128)) << e;
  }
  const std::vector<float> x(kK, 127.0f);  // q = 127, d = 1
  Problem problem{family.format,
                  kRows,
                  kK,
                  1,
                  pack_rows(family.format, data, kRows, kK),
                  make_panel(scalar_panel(PanelKind::kInt32), PanelKind::kInt32, x, 1, kK)};
  std::vector<LinearVariant> list = runnable(family);
  list.push_back(family.variants.back());
  for (const LinearVariant& v : list) {
    const std::vector<float> out = problem.run(v.entry);
    for (size_t e = 0; e < kRows; ++e)
      ASSERT_EQ(out[1 + kRows + 5 + e], 4064.0f * std::ldexp(1.0f, static_cast<int>(e) - 128))
          << v.name << " e " << e;
  }
}

}  // namespace
}  // namespace tally::kernels
