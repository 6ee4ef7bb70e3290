// Model::kv_damage: none for the codec it compares with, more for fewer bits, and it names the layer whose
// values an outlier crushes.
#include "model/rig_test_support.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace tally::model {
namespace {

constexpr uint32_t kTokens = 64;
constexpr char kModel[] = "tests/golden/tiny/tiny-f32.gguf";

// tiny-f32 with one row of a layer's V projection multiplied: one channel of V is an outlier.
std::string file_with_outlier(int layer, float factor) {
  std::ifstream in(kModel, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto file = gguf::File::open(kModel).value();
  const gguf::TensorInfo* t = file.find_tensor("blk." + std::to_string(layer) + ".attn_v.weight");
  for (size_t i = 0; i < t->shape.dim[0]; ++i) {
    char* at = bytes.data() + t->file_offset + i * sizeof(float);
    float value;
    std::memcpy(&value, at, sizeof value);
    value *= factor;
    std::memcpy(at, &value, sizeof value);
  }
  const std::string path = testing::TempDir() + "outlier.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<double> damage_of(const std::string& path, tensor::KvCodec codec, size_t threads = 2) {
  base::ThreadPool pool(threads, kernels::set_float_mode);
  kernels::set_float_mode();
  base::Accounts accounts(uint64_t{1} << 30);
  const auto file = gguf::File::open(path).value();
  LoadOptions load;
  load.context = kTokens;
  const Model model =
      Model::load(file, kernels::kernel_table(kernels::best_isa()), load, pool, accounts).value();
  const uint64_t before = accounts.reserved_bytes();
  std::vector<TokenId> tokens;
  const int vocab = static_cast<int>(model.spec().vocab);
  for (uint32_t i = 0; i < kTokens; ++i) tokens.push_back(TokenId{static_cast<int>(i) * 37 % vocab});
  const std::vector<double> damage = model.kv_damage(tokens, codec, pool, accounts).value();
  EXPECT_EQ(accounts.reserved_bytes(), before);
  EXPECT_EQ(damage.size(), model.spec().layer.size());
  return damage;
}

TEST(KvDamage, FewerBitsCostMore) {
  for (const double d : damage_of(kModel, tensor::KvCodec::kF32)) EXPECT_EQ(d, 0);
  const std::vector<double> bf16 = damage_of(kModel, tensor::KvCodec::kBf16);
  const std::vector<double> int8 = damage_of(kModel, tensor::KvCodec::kInt8);
  for (size_t i = 0; i < bf16.size(); ++i) {
    EXPECT_GT(bf16[i], 1e-7) << i;
    EXPECT_LT(bf16[i], 2e-5) << i;
    EXPECT_GT(int8[i], 2 * bf16[i]) << i;
    EXPECT_LT(int8[i], 1e-3) << i;
  }
}

// The second cache is attended with all that a layer's attention has: windows, sinks, slopes, latents,
// experts.
TEST(KvDamage, IsNoneOfF32InEveryArchitecture) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/arch")) {
    if (entry.path().extension() != ".gguf") continue;
    ++files;
    for (const double d : damage_of(entry.path(), tensor::KvCodec::kF32)) EXPECT_EQ(d, 0) << entry.path();
    for (const double d : damage_of(entry.path(), tensor::KvCodec::kInt4)) {
      EXPECT_GT(d, 0) << entry.path();
      EXPECT_LT(d, .5) << entry.path();
    }
  }
  EXPECT_GT(files, 30u);
}

TEST(KvDamage, DoesNotDependOnThreads) {
  EXPECT_EQ(damage_of(kModel, tensor::KvCodec::kInt8, 1), damage_of(kModel, tensor::KvCodec::kInt8, 3));
}

TEST(KvDamage, AnOutlierShowsInItsLayer) {
  const std::vector<double> plain = damage_of(kModel, tensor::KvCodec::kInt8);
  const std::vector<double> outlier = damage_of(file_with_outlier(1, 500), tensor::KvCodec::kInt8);
  EXPECT_EQ(outlier[0], plain[0]);
  EXPECT_GT(outlier[1], 20 * plain[1]);
}

}  // namespace
}  // namespace tally::model
