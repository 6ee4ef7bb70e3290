#include "kernels/isa.h"

#include <gtest/gtest.h>

#include <limits>

namespace tally::kernels {
namespace {

TEST(Isa, NamesAreFoundAndAscend) {
  Isa last = Isa::kScalar;
  for (const IsaInfo& info : isas()) {
    EXPECT_EQ(find_isa(info.name), info.isa);
    EXPECT_EQ(isa_name(info.isa), info.name);
    EXPECT_GE(info.isa, last);
    last = info.isa;
  }
  EXPECT_EQ(isas().size(), 6u);
  EXPECT_EQ(last, Isa::kAmx);
  EXPECT_FALSE(find_isa("sse9").has_value());
  EXPECT_FALSE(find_isa("").has_value());
}

TEST(Isa, HostHasScalarAndNothingAboveItsBest) {
  EXPECT_TRUE(host_has(Isa::kScalar));
  EXPECT_TRUE(host_has(best_isa()));
  for (const IsaInfo& info : isas()) {
    if (info.isa > best_isa()) {
      EXPECT_FALSE(host_has(info.isa)) << info.name;
    }
  }
  EXPECT_EQ(host_isas().substr(0, 6), "scalar");
  EXPECT_NE(host_isas().find(isa_name(best_isa())), std::string::npos);
}

TEST(Isa, AgreesWithTheCompilersOwnDetection) {
  __builtin_cpu_init();
  EXPECT_EQ(host_has(Isa::kAvx2), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(host_has(Isa::kAvx512), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                        __builtin_cpu_supports("avx512vl") &&
                                        __builtin_cpu_supports("avx512dq"));
  EXPECT_EQ(host_has(Isa::kAvx512Vnni), host_has(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni") &&
                                            __builtin_cpu_supports("avx512vbmi"));
}

TEST(Isa, FloatModeFlushesDenormals) {
  set_float_mode();
  volatile float tiny = std::numeric_limits<float>::min(), half = 0.5f;
  EXPECT_EQ(tiny * half, 0.0f) << "a denormal result counts as zero";
  volatile float denormal = std::numeric_limits<float>::denorm_min(), big = 1e38f;
  EXPECT_EQ(denormal * big, 0.0f) << "a denormal operand counts as zero";
}

}  // namespace
}  // namespace tally::kernels
