#include "model/quantize.h"

#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "model/quantize_mix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tally::model {
namespace {

using tensor::DType;
namespace fs = std::filesystem;

constexpr const char* kTinyF32 = "tests/golden/tiny/tiny-f32.gguf";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> normal_values(size_t n) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

class QuantizeTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           (std::string("quantize_test_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::create_directory(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  base::Result<QuantizeReport> run(const std::string& in, const std::string& out, std::string_view type,
                                   QuantizeOptions options = {}, size_t threads = 2) {
    const auto file = gguf::File::open(in);
    EXPECT_TRUE(file) << in;
    options.type = find_quantize_type(type);
    base::ThreadPool pool(threads);
    return quantize(*file, out, kernels::kernel_table(kernels::Isa::kScalar), options, pool);
  }
  // A file of one matrix of F32, named as a layer's.
  std::string write_matrix(uint64_t columns, const std::vector<float>& x) {
    gguf::Writer writer;
    writer.set_string("general.architecture", "llama");
    writer.add_tensor("blk.0.attn_q.weight", DType::kF32, {{columns, x.size() / columns, 1, 1}, 2},
                      std::as_bytes(std::span(x)));
    const std::string path = dir_ / "matrix.gguf";
    EXPECT_TRUE(writer.write(path));
    return path;
  }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), {})); }
  std::string out() const { return dir_ / "out.gguf"; }

  fs::path dir_;
};

TEST_F(QuantizeTest, BytesDoNotDependOnThreads) {
  const std::string in = write_matrix(512, normal_values(512 * 900));
  for (const std::string_view type : {"Q4_K_M", "Q6_K", "Q5_1", "BF16"}) {
    ASSERT_TRUE(run(in, out(), type, {}, 1));
    const std::string one = read_text(out());
    for (const size_t threads : {2, 3}) {
      ASSERT_TRUE(run(in, out(), type, {}, threads));
      EXPECT_EQ(read_text(out()), one) << type;
    }
  }
}

TEST_F(QuantizeTest, MetadataAndOrderAreKept) {
  ASSERT_TRUE(run(kTinyF32, out(), "Q8_0"));
  const auto before = gguf::File::open(kTinyF32), after = gguf::File::open(out());
  ASSERT_TRUE(before && after);
  ASSERT_EQ(after->tensors().size(), before->tensors().size());
  for (size_t i = 0; i < before->tensors().size(); ++i) {
    EXPECT_EQ(after->tensors()[i].name, before->tensors()[i].name);
    EXPECT_EQ(after->tensors()[i].shape, before->tensors()[i].shape);
  }
  EXPECT_EQ(**after->get_uint("general.file_type", 0, 100), 7u);
  EXPECT_EQ(**after->get_uint("general.quantization_version", 0, 100), 2u);
  // Writing the metadata once more gives the same header but for the two keys.
  size_t same = 0;
  for (const gguf::Metadata& item : before->metadata()) {
    gguf::Writer a, b;
    a.set_value(item.key, item.value);
    ASSERT_NE(after->find(item.key), nullptr) << item.key;
    b.set_value(item.key, *after->find(item.key));
    same += a.bytes() == b.bytes();
  }
  EXPECT_GE(same + 2, before->metadata().size());
  EXPECT_GT(same, 10u);
}

TEST_F(QuantizeTest, ToF32AndToItsOwnTypeChangesNothing) {
  ASSERT_TRUE(run(kTinyF32, out(), "F32"));
  const auto before = gguf::File::open(kTinyF32), after = gguf::File::open(out());
  ASSERT_TRUE(before && after);
  for (size_t i = 0; i < before->tensors().size(); ++i) {
    const gguf::TensorInfo &a = before->tensors()[i], &b = after->tensors()[i];
    ASSERT_EQ(a.bytes, b.bytes);
    std::vector<std::byte> x(a.bytes), y(b.bytes);
    ASSERT_TRUE(before->read_tensor(a, 0, x) && after->read_tensor(b, 0, y));
    EXPECT_EQ(x, y) << a.name;
  }
}

TEST_F(QuantizeTest, ReportsTheErrorItMade) {
  const std::vector<float> x = normal_values(512 * 300);
  const std::string in = write_matrix(512, x);
  QuantizeOptions measured;
  measured.measure = true;
  const auto report = run(in, out(), "Q4_0", measured);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->tensors.size(), 1u);
  const QuantizedTensor& tensor = report->tensors[0];
  const auto file = gguf::File::open(out());
  ASSERT_TRUE(file);
  std::vector<std::byte> bytes(file->tensors()[0].bytes);
  ASSERT_TRUE(file->read_tensor(file->tensors()[0], 0, bytes));
  std::vector<float> y(x.size());
  kernels::kernel_table(kernels::Isa::kScalar)
      .find_linear(DType::kQ4_0)
      ->dequantize(bytes.data(), y.size(), y.data());
  double off = 0, size = 0, most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::fabs(static_cast<double>(x[i]) - y[i]);
    off += d * d, size += static_cast<double>(x[i]) * x[i], most = std::max(most, d);
  }
  EXPECT_NEAR(tensor.relative_rms, std::sqrt(off / size), 1e-12);
  EXPECT_EQ(tensor.max_error, most);
  EXPECT_EQ(tensor.bytes_after, bytes.size());
  EXPECT_DOUBLE_EQ(report->bits_per_weight, 4.5);
  EXPECT_EQ(report->bytes_after, fs::file_size(out()));
}

TEST_F(QuantizeTest, ValuesThatCannotBeSaidAreNamed) {
  struct Case {
    float value;
    std::string_view type, says;
  };
  for (const Case& c :
       {Case{std::nanf(""), "Q4_0", "nan is not a finite number"},
        Case{-std::numeric_limits<float>::infinity(), "Q4_K_M", "-inf is not a finite number"},
        Case{1e30f, "Q8_0", "1e+30 is beyond what Q8_0 can hold"},
        Case{70000, "F16", "70000 is beyond what F16 can hold"},
        Case{-1e12f, "Q6_K", "-1e+12 is beyond what Q6_K can hold"}}) {
    std::vector<float> x(512 * 200, 0.25f);
    x[512 * 177 + 300] = c.value;
    const auto report = run(write_matrix(512, x), out(), c.type);
    ASSERT_FALSE(report) << c.type;
    EXPECT_EQ(report.error().code, base::ErrorCode::kBadData);
    for (const std::string_view part :
         {std::string_view("'blk.0.attn_q.weight'"), std::string_view("row 177 column 300"), c.says})
      EXPECT_NE(report.error().message.find(part), std::string::npos) << report.error().message;
    EXPECT_EQ(files(), 1u) << "a temporary file is left";
  }
}

TEST_F(QuantizeTest, QuantizedTensorsNeedThePermission) {
  const std::string in = "tests/golden/tiny/tiny-q-q4_0.gguf";
  const auto refused = run(in, out(), "Q8_0");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::ErrorCode::kBadData);
  for (const char* part : {"tensor 'token_embd.weight'", "is Q6_K already", "--allow-requantize"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  EXPECT_EQ(files(), 0u);
  QuantizeOptions allowed;
  allowed.allow_requantize = true;
  EXPECT_TRUE(run(in, out(), "Q8_0", allowed));
}

TEST_F(QuantizeTest, StopsAndLeavesNothing) {
  std::ofstream(out()) << "what was there before";
  QuantizeOptions options;
  uint64_t last = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
    return done < total / 2;
  };
  EXPECT_FALSE(run(kTinyF32, out(), "Q8_0", options));
  EXPECT_EQ(read_text(out()), "what was there before");
  EXPECT_EQ(files(), 1u);
}

TEST_F(QuantizeTest, TheInputIsNotReplaced) {
  const fs::path copy = dir_ / "in.gguf", link = dir_ / "link.gguf";
  fs::copy_file(kTinyF32, copy);
  fs::create_symlink(copy, link);
  for (const fs::path& path : {copy, link}) {
    const auto refused = run(copy, path, "Q8_0");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, base::ErrorCode::kConfig);
  }
  EXPECT_EQ(read_text(copy), read_text(kTinyF32));
  EXPECT_EQ(files(), 2u);
}

// Two shards with an alignment of 64, one matrix each.
TEST_F(QuantizeTest, ShardsBecomeOneFile) {
  const std::vector<float> x(64 * 3, 0.5f);
  std::vector<std::string> shards;
  for (uint32_t i = 0; i < 2; ++i) {
    gguf::Writer writer;
    writer.set_alignment(64);
    if (i == 0) writer.set_string("general.architecture", "llama");
    writer.set_uint("general.alignment", 64);
    writer.set_uint("split.no", i);
    writer.set_uint("split.count", 2);
    writer.set_uint("split.tensors.count", 2);
    writer.add_tensor("blk." + std::to_string(i) + ".attn_q.weight", DType::kF32, {{64, 3, 1, 1}, 2},
                      std::as_bytes(std::span(x)));
    shards.push_back(dir_ / ("m-0000" + std::to_string(i + 1) + "-of-00002.gguf"));
    ASSERT_TRUE(writer.write(shards.back()));
  }
  const auto refused = run(shards[0], shards[1], "Q4_0");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::ErrorCode::kConfig);
  const auto report = run(shards[0], out(), "Q4_0");
  ASSERT_TRUE(report) << report.error().message;
  const auto file = gguf::File::open(out());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->find("split.count"), nullptr);
  EXPECT_EQ(**file->get_uint("general.alignment", 0, 1000), 64u);
  for (const gguf::TensorInfo& tensor : file->tensors()) EXPECT_EQ(tensor.file_offset % 64, 0u);
}

gguf::TensorInfo matrix(std::string_view name, uint64_t columns = 4096, uint64_t rows = 4096,
                        uint64_t experts = 1) {
  gguf::TensorInfo tensor;
  tensor.name = name;
  tensor.shape = {{columns, rows, experts, 1}, experts > 1 ? 3u : 2u};
  return tensor;
}

TEST(QuantizeMix, FollowsLlamaQuantize) {
  const auto type = [](std::string_view wanted, const gguf::TensorInfo& tensor, const MixContext& context) {
    return mixed_type(*find_quantize_type(wanted), tensor, context);
  };
  const MixContext dense{.layers = 32};
  const std::string_view down = "blk.0.ffn_down.weight";
  EXPECT_EQ(type("Q4_K_M", matrix("blk.0.attn_q.weight"), dense), DType::kQ4_K);
  EXPECT_EQ(type("Q4_K_M", matrix("blk.0.attn_v.weight"), dense), DType::kQ6_K);    // first eighth
  EXPECT_EQ(type("Q4_K_M", matrix("blk.4.attn_v.weight"), dense), DType::kQ4_K);    // (4 - 4) % 3
  EXPECT_EQ(type("Q4_K_M", matrix("blk.6.ffn_down.weight"), dense), DType::kQ6_K);  // (6 - 4) % 3 == 2
  EXPECT_EQ(type("Q4_K_M", matrix("blk.31.ffn_down_exps.weight"), dense), DType::kQ6_K);
  EXPECT_EQ(type("Q5_K_M", matrix(down), dense), DType::kQ6_K);
  EXPECT_EQ(type("Q4_K_S", matrix(down), dense), DType::kQ5_K);
  EXPECT_EQ(type("Q4_K_S", matrix("blk.3.attn_v.weight"), dense), DType::kQ5_K);
  EXPECT_EQ(type("Q4_K_S", matrix("blk.4.attn_v.weight"), dense), DType::kQ4_K);
  EXPECT_EQ(type("Q5_K_S", matrix(down), dense), DType::kQ5_K);
  EXPECT_EQ(type("Q4_0", matrix(down), dense), DType::kQ4_0);
  EXPECT_EQ(type("Q4_K_M", matrix("blk.9.attn_qkv.weight"), dense), DType::kQ5_K);
  EXPECT_EQ(type("Q5_K_M", matrix("blk.9.attn_qkv.weight"), dense), DType::kQ6_K);
  EXPECT_EQ(type("Q4_0", matrix("output.weight"), dense), DType::kQ6_K);
  EXPECT_EQ(type("Q4_0", matrix("token_embd.weight"), dense), DType::kQ4_0);
  EXPECT_EQ(type("Q4_K_M", matrix("token_embd.weight"), {.layers = 32, .tied_output = true}), DType::kQ6_K);
  EXPECT_EQ(type("Q8_0", matrix("output.weight"), dense), DType::kQ8_0);
  EXPECT_EQ(type("F16", matrix("output.weight"), dense), DType::kF16);
  const MixContext eight{.layers = 32, .experts = 8};
  EXPECT_EQ(type("Q4_K_M", matrix("blk.9.attn_v.weight"), eight), DType::kQ8_0);
  EXPECT_EQ(type("Q4_K_M", matrix("blk.9.attn_k.weight"), eight), DType::kQ8_0);
  EXPECT_EQ(type("Q4_K_M", matrix("blk.9.attn_output.weight"), eight), DType::kQ5_K);
  EXPECT_EQ(type("Q4_K_M", matrix("blk.19.attn_v.weight"), {.layers = 80, .shared_values = true}),
            DType::kQ5_K);
}

TEST(QuantizeMix, RowsThatTheBlockDoesNotDivideFallBack) {
  const MixContext context{.layers = 32};
  const auto type = [&](std::string_view wanted, uint64_t columns, std::string_view name) {
    return mixed_type(*find_quantize_type(wanted), matrix(name, columns), context);
  };
  EXPECT_EQ(type("Q4_K_M", 96, "blk.9.attn_q.weight"), DType::kQ5_0);
  EXPECT_EQ(type("Q5_K_M", 96, "blk.9.attn_q.weight"), DType::kQ5_1);
  EXPECT_EQ(type("Q4_K_M", 96, "blk.0.attn_v.weight"), DType::kQ8_0);
  EXPECT_EQ(type("Q4_K_M", 96, "output.weight"), DType::kQ8_0);
  EXPECT_EQ(type("Q4_0", 96, "output.weight"), DType::kQ8_0);  // Q6_K first, which 96 does not suit
  EXPECT_EQ(type("Q4_0", 100, "blk.9.attn_q.weight"), DType::kF16);
  EXPECT_EQ(type("Q4_K_M", 100, "output.weight"), DType::kF16);
}

TEST(QuantizeMix, SmallTensorsStayFloat) {
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight",
                           "position_embd.weight", "blk.0.attn_q.bias", "rope_freqs.weights"})
    EXPECT_TRUE(stays_float(matrix(name))) << name;
  gguf::TensorInfo vector = matrix("output_norm.weight");
  vector.shape = {{64, 1, 1, 1}, 1};
  EXPECT_TRUE(stays_float(vector));
  EXPECT_FALSE(stays_float(matrix("blk.0.attn_q.weight")));
  EXPECT_FALSE(stays_float(matrix("blk.0.ffn_gate_exps.weight", 64, 64, 8)));
}

TEST(QuantizeMix, ContextComesFromNamesAndShapes) {
  const gguf::TensorInfo tensors[] = {matrix("token_embd.weight"), matrix("blk.0.attn_q.weight"),
                                      matrix("blk.79.attn_v.weight", 4096, 512),
                                      matrix("blk.3.ffn_up_exps.weight", 64, 64, 8)};
  const MixContext context = mix_context(tensors);
  EXPECT_EQ(context.layers, 80u);
  EXPECT_EQ(context.experts, 8u);
  EXPECT_TRUE(context.tied_output);
  EXPECT_TRUE(context.shared_values);
  const gguf::TensorInfo untied[] = {matrix("token_embd.weight"), matrix("output.weight"),
                                     matrix("blk.70000.attn_q.weight")};
  EXPECT_FALSE(mix_context(untied).tied_output);
  EXPECT_EQ(mix_context(untied).layers, 0u);
}

TEST(QuantizeTypes, AreFoundInAnyCase) {
  for (const QuantizeType& type : quantize_types()) EXPECT_EQ(find_quantize_type(type.name), &type);
  EXPECT_EQ(find_quantize_type("q4_k_m"), find_quantize_type("Q4_K_M"));
  for (const char* none : {"", "Q4_K", "Q4_K_ML", "Q9_0", "q4_k_m "})
    EXPECT_EQ(find_quantize_type(none), nullptr) << none;
}

}  // namespace
}  // namespace tally::model
