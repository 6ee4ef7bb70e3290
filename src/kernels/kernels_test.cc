#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <set>

namespace tally::kernels {
namespace {

using tensor::DType;

TEST(KernelTable, EveryTierOfTheHostIsComplete) {
  for (const IsaInfo& info : isas()) {
    if (!host_has(info.isa)) continue;
    const KernelTable table = kernel_table(info.isa);
    EXPECT_EQ(table.isa, info.isa);
    for (const PanelFn panel : table.panel) EXPECT_NE(panel, nullptr);
    std::set<DType> types;
    for (const LinearFormat& format : table.linear) {
      types.insert(format.type);
      EXPECT_NE(format.run, nullptr);
      EXPECT_LE(format.isa, info.isa) << info.name;
      EXPECT_TRUE(host_has(format.isa));
      if (info.isa >= Isa::kAvx2) {
        EXPECT_GE(format.isa, Isa::kAvx2) << "no AVX2 kernel";
      }
    }
    EXPECT_EQ(types.size(), kLinearFormats);
    EXPECT_LE(table.vector.isa, info.isa);
    for (const tensor::KvCodecInfo& codec : tensor::kKvCodecs) {
      EXPECT_EQ(table.attention_for(codec.codec).codec, codec.codec);
      EXPECT_LE(table.attention_for(codec.codec).isa, info.isa);
    }
  }
}

TEST(KernelTable, ScalarIsTheDefinitionEverywhere) {
  const KernelTable table = kernel_table(Isa::kScalar);
  for (const LinearFormat& format : table.linear) EXPECT_EQ(format.isa, Isa::kScalar);
  EXPECT_EQ(table.vector.isa, Isa::kScalar);
  for (const AttentionKernels& attention : table.attention) EXPECT_EQ(attention.isa, Isa::kScalar);
}

TEST(KernelTable, FindsItsTypesOnly) {
  const KernelTable table = kernel_table(Isa::kScalar);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                           DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                           DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4}) {
    const LinearFormat* format = table.find_linear(type);
    ASSERT_NE(format, nullptr) << tensor::dtype_info(type).name;
    EXPECT_EQ(format->type, type);
  }
  for (const DType type : {DType::kI8, DType::kI32, DType::kF64})
    EXPECT_EQ(table.find_linear(type), nullptr) << tensor::dtype_info(type).name;
}

TEST(KernelTable, GroupsArePackedDensely) {
  const KernelTable table = kernel_table(Isa::kScalar);
  const auto bytes = [&](DType type, size_t k) { return table.find_linear(type)->group_bytes(k); };
  EXPECT_EQ(bytes(DType::kQ4_0, 64), 2 * 2 * 288u);
  EXPECT_EQ(bytes(DType::kQ4_1, 64), 2 * 2 * 320u);
  EXPECT_EQ(bytes(DType::kQ5_0, 64), 2 * 2 * 544u);
  EXPECT_EQ(bytes(DType::kQ5_1, 64), 2 * 2 * 384u);
  EXPECT_EQ(bytes(DType::kQ8_0, 64), 2 * 2 * 544u);
  EXPECT_EQ(bytes(DType::kQ4_K, 256), 2 * 2496u);
  EXPECT_EQ(bytes(DType::kQ5_K, 256), 2 * 3008u);
  EXPECT_EQ(bytes(DType::kQ6_K, 256), 2 * 3360u);
  EXPECT_EQ(bytes(DType::kQ2_K, 256), 2 * 1344u);
  EXPECT_EQ(bytes(DType::kQ3_K, 256), 2 * 1824u);
  EXPECT_EQ(bytes(DType::kIQ4_NL, 64), 2 * 2 * 288u);
  EXPECT_EQ(bytes(DType::kIQ4_XS, 256), 2 * 2208u);
  EXPECT_EQ(bytes(DType::kMXFP4, 64), 2 * 2 * 272u);
  EXPECT_EQ(bytes(DType::kF32, 7), 7 * 128u);
  EXPECT_EQ(bytes(DType::kF16, 7), 7 * 64u);
  EXPECT_EQ(bytes(DType::kBF16, 7), 8 * 64u);
}

}  // namespace
}  // namespace tally::kernels
