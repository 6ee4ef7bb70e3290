// Every variant of the vector kernels against the scalar definition, bit for bit; the definition against
// double.

#include "kernels/vector/vector.h"

#include "kernels/linear.h"
#include "kernels/vector/polynomials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace tally::kernels {

// The emulated copies (tier.h).
namespace emulated {
#define TALLY_VARIANT(isa, symbol) TALLY_IF_EMULATED_##isa(extern const VectorKernels symbol;)
#include "kernels/vector/variants.inc"
#undef TALLY_VARIANT
}  // namespace emulated

namespace {

// What the host can run, and the others that can be emulated.
std::vector<Variant<const VectorKernels*>> runnable() {
  std::vector<Variant<const VectorKernels*>> list;
  for (const auto& variant : vector_variants())
    if (host_has(variant.isa)) list.push_back(variant);
  if (!host_has(Isa::kAvx2)) return list;
#define TALLY_VARIANT(isa, symbol) \
  TALLY_IF_EMULATED_##isa(list.push_back({Isa::isa, "emulated " #symbol, &emulated::symbol});)
#include "kernels/vector/variants.inc"
#undef TALLY_VARIANT
  return list;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kSizes[] = {0,  1,  2,  3,  7,  8,  9,   15,  16,   17,  23,
                             24, 25, 31, 32, 33, 63, 576, 640, 1000, 2049};

// The contract leaves the bits of a NaN open.
uint32_t bits_of(float x) { return std::isnan(x) ? 0x7FC00000u : std::bit_cast<uint32_t>(x); }

void expect_same(const std::vector<float>& want, const std::vector<float>& got, std::string_view what) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(bits_of(want[i]), bits_of(got[i]))
        << what << " at " << i << " of " << want.size() << ": " << want[i] << " and " << got[i];
}

// `kind` 0: ordinary values; 1: wide exponents; 2: with infinities, NaN, zeros and denormals sprinkled in.
std::vector<float> values(size_t n, int kind, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::uniform_int_distribution<int> exponent(-100, 100);
  const float special[] = {kInf, -kInf, kNan, 0.0f, -0.0f, 1e-40f, -1e-40f, 3e38f, -3e38f};
  std::vector<float> v(n);
  for (float& x : v) {
    x = normal(rng);
    if (kind == 1) x = std::ldexp(x, exponent(rng));
    if (kind == 2 && rng() % 8 == 0) x = special[rng() % std::size(special)];
  }
  return v;
}

// Runs `call` of the variant and of the definition on copies that start one float after an alignment
// boundary, with guards.
using Call = std::function<void(const VectorKernels&, float* y)>;
void compare(const Variant<const VectorKernels*>& variant, const std::vector<float>& y, std::string_view what,
             const Call& call) {
  std::vector<float> want(y.size() + 9, 77.0f), got;
  std::copy(y.begin(), y.end(), want.begin() + 1);
  got = want;
  call(kVectorScalar, want.data() + 1);
  call(*variant.entry, got.data() + 1);
  expect_same(want, got, what);
  ASSERT_EQ(got.front(), 77.0f) << what;
  for (size_t i = y.size() + 1; i < got.size(); ++i)
    ASSERT_EQ(got[i], 77.0f) << what << " wrote past the end, n = " << y.size();
}

constexpr std::pair<std::string_view, ActivationFn VectorKernels::*> kActivations[] = {
    {"silu", &VectorKernels::silu_mul},
    {"gelu", &VectorKernels::gelu_mul},
    {"gelu_erf", &VectorKernels::gelu_erf_mul},
    {"relu2", &VectorKernels::relu2_mul},
};

// u [n].
void compare_norms(const Variant<const VectorKernels*>& variant, const std::vector<float>& y,
                   const float* u) {
  const size_t n = y.size();
  for (const float* w : {u, static_cast<const float*>(nullptr)})
    for (const float* b : {u, static_cast<const float*>(nullptr)})
      compare(variant, y, "layer_norm",
              [&](const VectorKernels& k, float* p) { k.layer_norm(p, w, b, 1e-5f, n, p); });
  compare(variant, y, "layer_norm apart",
          [&](const VectorKernels& k, float* p) { k.layer_norm(u, u, u, 1e-5f, n, p); });
}

TEST(Vector, EveryVariantEqualsScalarBitForBit) {
  set_float_mode();
  for (const auto& variant : runnable()) {
    EXPECT_EQ(variant.entry->isa, variant.isa);
    for (const size_t n : kSizes) {
      for (int kind = 0; kind < 3; ++kind) {
        SCOPED_TRACE(testing::Message() << variant.name << " n " << n << " kind " << kind);
        const auto seed = static_cast<uint32_t>(n * 3 + static_cast<size_t>(kind));
        const std::vector<float> x = values(n + 1, kind, seed), y = values(n, kind, seed + 1000);
        const float* u = x.data() + 1;  // misaligned, ends at the end of the heap block
        compare(variant, y, "rms_norm",
                [&](const VectorKernels& k, float* p) { k.rms_norm(p, u, 1e-6f, n, p); });
        compare(variant, y, "rms_norm apart",
                [&](const VectorKernels& k, float* p) { k.rms_norm(u, u, 1e-5f, n, p); });
        compare_norms(variant, y, u);
        compare(variant, y, "add_scaled",
                [&](const VectorKernels& k, float* p) { k.add_scaled(-0.7f, u, n, p); });
        compare(variant, y, "mul", [&](const VectorKernels& k, float* p) { k.mul(u, n, p); });
        compare(variant, y, "clamp", [&](const VectorKernels& k, float* p) { k.clamp(1.5f, n, p); });
        for (const float logit : {0.3f, -90.f, 90.f, kInf, -kInf, kNan})
          compare(variant, y, "sigmoid_scale",
                  [&](const VectorKernels& k, float* p) { k.sigmoid_scale(logit, n, p); });
        compare(variant, y, "swiglu_oai",
                [&](const VectorKernels& k, float* p) { k.swiglu_oai(p, u, 1.702f, 7.f, n, p); });
        compare(variant, y, "add", [&](const VectorKernels& k, float* p) { k.add(u, n, p); });
        compare(variant, y, "scale", [&](const VectorKernels& k, float* p) { k.scale(25.298221f, n, p); });
        for (const auto& [name, activation] : kActivations) {
          compare(variant, y, name, [&](const VectorKernels& k, float* p) { (k.*activation)(p, u, n, p); });
          compare(variant, y, name,
                  [&](const VectorKernels& k, float* p) { (k.*activation)(u, nullptr, n, p); });
        }
        compare(variant, y, "softcap", [&](const VectorKernels& k, float* p) { k.softcap(30.0f, n, p); });
        const std::vector<float> table = values(n / 2 * 2, kind, seed + 2000);
        compare(variant, y, "rope_norm",
                [&](const VectorKernels& k, float* p) { k.rope_norm(table.data(), n / 2, p); });
        compare(variant, y, "rope_neox",
                [&](const VectorKernels& k, float* p) { k.rope_neox(table.data(), n / 2, p); });
      }
    }
  }
}

// Every sign, exponent and a spread of mantissas goes through exp and tanh.
TEST(Vector, TranscendentalsAgreeOverTheWholeRange) {
  set_float_mode();
  std::vector<float> x;
  for (uint64_t b = 0; b <= 0xFFFFFFFFu; b += 40961)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(b)));
  for (float v = -110.0f; v < 110.0f; v += 0.00390625f * 1.37f) x.push_back(v);
  for (const auto& variant : runnable()) {
    for (const auto& [name, activation] : kActivations)
      compare(variant, x, name,
              [&](const VectorKernels& k, float* p) { (k.*activation)(p, nullptr, x.size(), p); });
    compare(variant, x, "swiglu_oai",
            [&](const VectorKernels& k, float* p) { k.swiglu_oai(p, x.data(), 1.702f, 7.f, x.size(), p); });
    compare(variant, x, "tanh", [&](const VectorKernels& k, float* p) { k.softcap(1.0f, x.size(), p); });
  }
}

// |got - want| in units of the last place of want.
double ulps(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

TEST(Vector, ExpIsAccurateAndSafeAtBothEnds) {
  double worst = 0;
  for (float x = -87.3f; x < 88.72f; x += 0.000317f)
    worst = std::max(worst, ulps(exp_f32(x), std::exp(static_cast<double>(x))));
  for (float x = -1.0f; x < 1.0f; x += 0.0000071f)
    worst = std::max(worst, ulps(exp_f32(x), std::exp(static_cast<double>(x))));
  EXPECT_LE(worst, 1.5);
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(89.0f), kInf);
  EXPECT_EQ(exp_f32(3e38f), kInf);
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_TRUE(std::isfinite(exp_f32(88.72f)));
  EXPECT_EQ(exp_f32(-104.0f), 0.0f);
  EXPECT_EQ(exp_f32(-3e38f), 0.0f);
  EXPECT_EQ(exp_f32(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
}

TEST(Vector, TanhIsAccurate) {
  double worst = 0;
  for (float x = -12.0f; x < 12.0f; x += 0.0000311f)
    worst = std::max(worst, ulps(tanh_f32(x), std::tanh(static_cast<double>(x))));
  for (float x = 1e-30f; x < 1.0f; x *= 1.01f)
    worst = std::max(worst, ulps(tanh_f32(x), std::tanh(static_cast<double>(x))));
  EXPECT_LE(worst, 2.5);
  EXPECT_EQ(tanh_f32(kInf), 1.0f);
  EXPECT_EQ(tanh_f32(-kInf), -1.0f);
  EXPECT_EQ(bits_of(tanh_f32(-0.0f)), bits_of(-0.0f));
  EXPECT_TRUE(std::isnan(tanh_f32(kNan)));
}

TEST(Vector, SiluIsAccurate) {
  const auto exact = [](double x) { return x / (1.0 + std::exp(-x)); };
  double worst = 0;
  for (float x = -88.0f; x < 100.0f; x += 0.000413f)
    worst = std::max(worst, ulps(silu_f32(x), exact(static_cast<double>(x))));
  EXPECT_LE(worst, 3.0);
  for (float x = -89.0f; x > -200.0f; x -= 0.5f)
    EXPECT_LT(std::abs(silu_f32(x) - exact(static_cast<double>(x))), 3e-37);
  EXPECT_EQ(silu_f32(0.0f), 0.0f);
  EXPECT_EQ(silu_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(silu_f32(-kInf)));
  EXPECT_TRUE(std::isnan(silu_f32(kNan)));
}

TEST(Vector, GeluIsAccurate) {
  const auto exact = [](double x) {
    const double u = std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    return x / (1.0 + std::exp(-2.0 * u));  // x (1 + tanh u) / 2 without the cancellation
  };
  double absolute = 0, relative = 0;
  for (float x = -9.0f; x < 30.0f; x += 0.0000517f) {
    const double want = exact(static_cast<double>(x)), error = std::abs(gelu_f32(x) - want);
    absolute = std::max(absolute, error / std::max(1.0, std::abs(want)));
    if (x > -3.0f && want != 0) relative = std::max(relative, error / std::abs(want));
  }
  EXPECT_LE(absolute, 2.5e-7);
  EXPECT_LE(relative, 1.2e-6);
  EXPECT_EQ(gelu_f32(0.0f), 0.0f);
  EXPECT_EQ(gelu_f32(3e30f), 3e30f);
  EXPECT_EQ(gelu_f32(-3e30f), 0.0f);
  EXPECT_EQ(gelu_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(gelu_f32(-kInf)));
  EXPECT_TRUE(std::isnan(gelu_f32(kNan)));
}

// Over all exponents of both signs, and finely where the function bends.
TEST(Vector, GeluByErfIsAccurate) {
  set_float_mode();
  const auto exact = [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); };
  double absolute = 0, relative = 0;
  const auto look = [&](float x) {
    const double want = exact(static_cast<double>(x)), error = std::abs(gelu_erf_f32(x) - want);
    absolute = std::max(absolute, error / std::max(1.0, std::abs(want)));
    if (x > -3.0f && std::abs(want) > 1e-37) relative = std::max(relative, error / std::abs(want));
  };
  for (float x = -15.0f; x < 15.0f; x += 0.0000517f) look(x);
  for (uint32_t b = 0; b < 0x7F800000u; b += 8191)
    look(std::bit_cast<float>(b)), look(-std::bit_cast<float>(b));
  EXPECT_LE(absolute, 1.5e-7);
  EXPECT_LE(relative, 6e-7);
  RecordProperty("absolute", std::to_string(absolute * 1e7));
  RecordProperty("relative", std::to_string(relative * 1e7));
  EXPECT_EQ(gelu_erf_f32(0.0f), 0.0f);
  EXPECT_EQ(gelu_erf_f32(3e38f), 3e38f);
  EXPECT_EQ(gelu_erf_f32(-3e38f), 0.0f);
  EXPECT_EQ(gelu_erf_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(gelu_erf_f32(-kInf)));
  EXPECT_TRUE(std::isnan(gelu_erf_f32(kNan)));
}

TEST(Vector, ReluSquared) {
  const std::vector<float> x = {-2.f, -0.f, 0.f, 3.f, kNan, kInf, -kInf}, up = {5, 5, 5, 5, 5, 5, 5};
  std::vector<float> y(x.size());
  kVectorScalar.relu2_mul(x.data(), up.data(), x.size(), y.data());
  expect_same({0.f, 0.f, 0.f, 45.f, kNan, kInf, 0.f}, y, "relu2");
}

TEST(Vector, ClampKeepsNan) {
  std::vector<float> y = {-9.f, -1.f, -0.f, 1.f, 9.f, kNan, kInf, -kInf};
  kVectorScalar.clamp(2.f, y.size(), y.data());
  expect_same({-2.f, -1.f, -0.f, 1.f, 2.f, kNan, 2.f, -2.f}, y, "clamp");
}

TEST(Vector, SwigluOaiIsAccurate) {
  const std::vector<float> gate = values(4000, 0, 8), up = values(4000, 0, 9);
  for (const float limit : {7.f, 1.f}) {
    std::vector<float> out(gate.size());
    kVectorScalar.swiglu_oai(gate.data(), up.data(), 1.702f, limit, gate.size(), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
      const double want = g / (1 + std::exp(-static_cast<double>(1.702f) * g)) * (u + 1);
      ASSERT_NEAR(out[i], want, 8e-7 * std::abs(want) + 1e-7 * std::abs(g)) << gate[i] << " " << up[i];
    }
  }
}

TEST(Vector, SigmoidScaleIsAGate) {
  for (const float logit : {-20.f, -1.f, 0.f, 0.25f, 5.f, 40.f}) {
    std::vector<float> y = {3.f};
    kVectorScalar.sigmoid_scale(logit, 1, y.data());
    const double want = 3 / (1 + std::exp(-static_cast<double>(logit)));
    EXPECT_NEAR(y[0], want, 4e-7 * want);
  }
}

TEST(Vector, LayerNormIsAccurate) {
  std::vector<float> x = values(2049, 0, 5), w = values(2049, 0, 6), b = values(2049, 0, 7), y(2049);
  for (const float mean :
       {0.f, 300.f}) {  // far from zero: the variance survives, as it is made of deviations
    for (float& v : x) v += mean;
    kVectorScalar.layer_norm(x.data(), w.data(), b.data(), 1e-5f, x.size(), y.data());
    double sum = 0, squares = 0;
    for (const float v : x) sum += static_cast<double>(v);
    const double m = sum / static_cast<double>(x.size());
    for (const float v : x) squares += (static_cast<double>(v) - m) * (static_cast<double>(v) - m);
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    for (size_t i = 0; i < x.size(); ++i) {
      const double scaled = (static_cast<double>(x[i]) - m) * inverse * static_cast<double>(w[i]);
      const double tolerance = (mean == 0 ? 1e-6 : 1e-4) * (1 + std::abs(static_cast<double>(w[i])));
      ASSERT_NEAR(y[i], scaled + static_cast<double>(b[i]), tolerance + 4e-7 * std::abs(scaled));
    }
  }
}

TEST(Vector, RmsNormSumsSixteenStridedPartials) {
  // Partial 0 holds 1 and then rounds 2^-24 away twice; partial 8 keeps it: the order of sums is visible in
  // the last bit.
  std::vector<float> x(33, 0.0f), w(33, 1.0f), y(33);
  x[0] = 1.0f, x[16] = 0x1p-12f, x[32] = 0x1p-12f;
  kVectorScalar.rms_norm(x.data(), w.data(), 0.0f, 33, y.data());
  EXPECT_EQ(y[0], 1.0f / std::sqrt(1.0f / 33.0f));
  x[32] = 0.0f, x[8] = 0x1p-12f, x[24] = 0x1p-12f;
  kVectorScalar.rms_norm(x.data(), w.data(), 0.0f, 33, y.data());
  const float sum = 1.0f + 0x1p-23f;
  EXPECT_EQ(y[0], 1.0f / std::sqrt(sum / 33.0f));
}

TEST(Vector, RmsNormIsAccurate) {
  const std::vector<float> x = values(2048, 0, 5), w = values(2048, 0, 6);
  std::vector<float> y(x.size());
  kVectorScalar.rms_norm(x.data(), w.data(), 1e-6f, x.size(), y.data());
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = static_cast<double>(x[i]) * inverse * static_cast<double>(w[i]);
    ASSERT_NEAR(y[i], want, 3e-7 * std::abs(want));
  }
}

TEST(Vector, RopeTurnsByTheAngle) {
  const double angles[] = {0.0, 0.5, 1.5, 3.0, -2.0};
  std::vector<float> table, norm, neox(10);
  for (size_t i = 0; i < 5; ++i) {
    table.push_back(static_cast<float>(std::cos(angles[i]))),
        table.push_back(static_cast<float>(std::sin(angles[i])));
    norm.push_back(static_cast<float>(i + 1)), norm.push_back(-static_cast<float>(i) - 0.5f);
    neox[i] = norm[2 * i], neox[i + 5] = norm[2 * i + 1];
  }
  const std::vector<float> before = norm;
  kVectorScalar.rope_norm(table.data(), 5, norm.data());
  kVectorScalar.rope_neox(table.data(), 5, neox.data());
  for (size_t i = 0; i < 5; ++i) {
    const double a = before[2 * i], b = before[2 * i + 1];
    EXPECT_NEAR(norm[2 * i], a * std::cos(angles[i]) - b * std::sin(angles[i]), 2e-6);
    EXPECT_NEAR(norm[2 * i + 1], a * std::sin(angles[i]) + b * std::cos(angles[i]), 2e-6);
    EXPECT_EQ(neox[i], norm[2 * i]);
    EXPECT_EQ(neox[i + 5], norm[2 * i + 1]);
  }
}

TEST(Vector, SelectTakesTheBestNotAboveTheTier) {
  EXPECT_EQ(select_vector(Isa::kScalar).isa, Isa::kScalar);
  EXPECT_EQ(vector_variants().back().isa, Isa::kScalar);
  const Isa expected = host_has(Isa::kAvx512) ? Isa::kAvx512
                       : host_has(Isa::kAvx2) ? Isa::kAvx2
                                              : Isa::kScalar;
  EXPECT_EQ(select_vector(best_isa()).isa, expected);
}

}  // namespace
}  // namespace tally::kernels
