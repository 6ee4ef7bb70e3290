// The plain form agrees with the fused one within rounding, sees the same positions, and refuses the same
// tokens.
#include "kernels/attention/codec.h"
#include "kernels/attention/test_cache.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tally::kernels::attention {
namespace {

struct Shape {
  size_t context, tokens, group, window;
  float softcap;
  bool biased;  // with ALiBi and sinks
};

TEST(AttendStandard, AgreesWithTheFusedForm) {
  set_float_mode();
  const Shape shapes[] = {{1, 1, 1, 0, 0, false},     {70, 70, 3, 0, 0, false},   {1300, 4, 2, 0, 0, false},
                          {1300, 5, 4, 65, 0, false}, {400, 3, 2, 0, 5.f, false}, {700, 4, 4, 0, 0, true},
                          {1300, 3, 3, 65, 5.f, true}};
  const float slopes[] = {0.5f, 0.0625f, 0.f, 0.004f}, sinks[] = {-3.f, 2.f, 30.f, 0.f};
  for (const tensor::KvCodecInfo& info : tensor::kKvCodecs)
    for (const Shape& s : shapes) {
      TestCache cache({.codec = info.codec, .key_dim = 80, .value_dim = 64, .block_tokens = 32},
                      s.context + 3, 1);
      const AttentionKernels kernels = select_attention(info.codec, best_isa());
      std::mt19937 rng(2);
      for (size_t p = 0; p < s.context; ++p)
        ASSERT_TRUE(kernels.store(cache.sequence(), p, random_values(rng, 160).data(),
                                  random_values(rng, 128).data()));
      std::vector<float> q = random_values(rng, s.tokens * s.group * 80);
      q[(s.tokens - 1) * s.group * 80 + 3] = s.tokens > 1 ? NAN : 1.f;
      std::vector<float> fused(s.tokens * s.group * 64, 5.f), plain = fused;
      std::vector<uint8_t> fused_bad(s.tokens, 0), plain_bad = fused_bad;

      AttendArgs a;
      a.kv = cache.sequence(), a.kv_head = 1, a.group = s.group, a.q = q.data(), a.q_stride = s.group * 80;
      a.tokens = s.tokens, a.position = s.context - s.tokens, a.window = s.window;
      a.score_scale = 1.f / std::sqrt(80.f), a.softcap = s.softcap, a.out_stride = s.group * 64;
      if (s.biased) a.alibi = slopes, a.sinks = sinks;
      TestScratch scratch(std::max(attend_scratch_bytes(cache.layout(), s.group),
                                   attend_standard_scratch_bytes(cache.layout(), s.context)));
      a.scratch = scratch.data();
      a.out = fused.data(), a.nonfinite = fused_bad.data();
      kernels.attend(a);
      a.out = plain.data(), a.nonfinite = plain_bad.data();
      std::vector<float> scores(s.group * (s.tokens + 1) * s.context, 7.f);
      const ScoreMatrix matrix{scores.data(), (s.tokens + 1) * s.context, s.context};
      attend_standard(a, kernels, matrix);

      EXPECT_EQ(fused_bad, plain_bad);
      double error = 0, norm = 0;
      for (size_t i = 0; i < fused.size(); ++i) {
        error += std::pow(static_cast<double>(fused[i] - plain[i]), 2);
        norm += std::pow(static_cast<double>(plain[i]), 2);
      }
      // Where keys are rotated, the plain form keeps q in f32.
      EXPECT_LE(std::sqrt(error / norm), rotates_keys(info.codec) ? 2e-2 : 1e-5)
          << info.name << " ctx=" << s.context << " W=" << s.window;
      const auto last = plain.end() - static_cast<ptrdiff_t>(s.group * 64);
      EXPECT_EQ(std::all_of(last, plain.end(), [](float x) { return x == 0; }), s.tokens > 1);
    }
}

}  // namespace
}  // namespace tally::kernels::attention
