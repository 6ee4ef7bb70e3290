#pragma once
// Cases of attend, every form that can run them here, and a cache to run them on. For tests.

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/codec.h"
#include "kernels/attention/test_cache.h"
#include "kernels/variants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

namespace tally::kernels::emulated {

#define TALLY_ATTENTION_FORM(codec, isa, store, attend) \
  TALLY_IF_EMULATED_##isa(void attend(const AttendArgs& args);)
#include "kernels/attention/variants.inc"
#undef TALLY_ATTENTION_FORM

}  // namespace tally::kernels::emulated

namespace tally::kernels::attention {

using tensor::KvCodec;

struct Case {
  CacheShape shape;
  size_t context = 1;  // the last row sees positions up to context - 1
  size_t tokens = 1, group = 1, window = 0;
  float softcap = 0;
  size_t later = 0;  // tokens behind the last row
  float q_scale = 1;
  std::vector<float> alibi = {}, sinks = {};  // [group] or empty: none

  std::string text() const {
    return std::string(tensor::kv_codec_info(shape.codec).name) + " d=" + std::to_string(shape.key_dim) +
           "/" + std::to_string(shape.value_dim) + " B=" + std::to_string(shape.block_tokens) +
           " ctx=" + std::to_string(context) + " tokens=" + std::to_string(tokens) +
           " G=" + std::to_string(group) + " W=" + std::to_string(window) +
           " cap=" + std::to_string(softcap) + (alibi.empty() ? "" : " alibi") +
           (sinks.empty() ? "" : " sinks");
  }
};

// The slopes that models use, and sinks below, among and above the scores.
inline std::vector<float> some_slopes(size_t group) {
  std::vector<float> x;
  for (size_t g = 0; g < group; ++g)
    x.push_back(std::exp2(-8.f * static_cast<float>(g + 1) / static_cast<float>(group)));
  return x;
}
inline std::vector<float> some_sinks(size_t group) {
  std::vector<float> x;
  for (size_t g = 0; g < group; ++g) x.push_back(static_cast<float>(g * 7 % 11) * 2.5f - 11.f);
  return x;
}

inline const Form& scalar_form(KvCodec codec) {
  for (const Form& f : forms())
    if (f.codec == codec && f.isa == Isa::kScalar) return f;
  std::terminate();
}

// The forms of variants.inc the host can run, and the others that can be emulated (tier.h).
inline std::vector<Form> forms_of(KvCodec codec) {
  constexpr Form kEmulated[] = {
#define TALLY_ATTENTION_FORM(codec, isa, store, attend) \
  TALLY_IF_EMULATED_##isa({KvCodec::codec, Isa::isa, store, emulated::attend}, )
#include "kernels/attention/variants.inc"
#undef TALLY_ATTENTION_FORM
  };
  std::vector<Form> list;
  for (const Form& f : forms())
    if (f.codec == codec && host_has(f.isa)) list.push_back(f);
  for (const Form& f : kEmulated)
    if (f.codec == codec && host_has(Isa::kAvx2) && !host_has(f.isa)) list.push_back(f);
  return list;
}

inline std::vector<Form> simd_forms(KvCodec codec) {
  std::vector<Form> list = forms_of(codec);
  std::erase_if(list, [](const Form& f) { return f.isa == Isa::kScalar; });
  return list;
}

// The fastest one: the first of the list that is not emulated.
inline Form best_form(KvCodec codec) { return forms_of(codec).front(); }

inline void fill(TestCache& cache, const Form& form, size_t tokens, std::mt19937& rng) {
  const tensor::KvLayout& l = cache.layout();
  for (size_t p = 0; p < tokens; ++p) {
    const std::vector<float> k = random_values(rng, size_t{l.kv_heads} * l.key_dim);
    const std::vector<float> v =
        random_values(rng, size_t{l.kv_heads} * l.value_dim, p % 7 == 3 ? 0.01f : 1.f);
    ASSERT_TRUE(form.store(cache.sequence(), p, k.data(), v.data()));
  }
}

// Runs the tokens of a case in calls of `chunk` tokens. Result: [tokens][group][value_dim].
inline std::vector<float> attend(const Case& c, AttendFn attend, TestCache& cache,
                                 const std::vector<float>& q, size_t chunk) {
  const tensor::KvLayout& l = cache.layout();
  const size_t q_stride = c.group * l.key_dim, out_stride = c.group * l.value_dim + 3;
  std::vector<float> padded_out(c.tokens * out_stride, -7.f);
  std::vector<uint8_t> nonfinite(c.tokens, 0);
  TestScratch scratch(attend_scratch_bytes(l, c.group));
  for (size_t i = 0; i < c.tokens; i += chunk) {
    AttendArgs a;
    a.kv = cache.sequence();
    a.kv_head = l.kv_heads - 1, a.group = c.group;
    a.q = q.data() + i * q_stride, a.q_stride = q_stride;
    a.tokens = std::min(chunk, c.tokens - i), a.position = c.context - c.tokens + i;
    a.window = c.window, a.score_scale = 1.f / std::sqrt(static_cast<float>(l.key_dim)),
    a.softcap = c.softcap;
    a.alibi = c.alibi.empty() ? nullptr : c.alibi.data();
    a.sinks = c.sinks.empty() ? nullptr : c.sinks.data();
    a.out = padded_out.data() + i * out_stride, a.out_stride = out_stride;
    a.scratch = scratch.data(), a.nonfinite = nonfinite.data() + i;
    attend(a);
  }
  std::vector<float> out;
  for (size_t i = 0; i < c.tokens; ++i) {
    const float* row = padded_out.data() + i * out_stride;
    out.insert(out.end(), row, row + c.group * l.value_dim);
    EXPECT_EQ(row[out_stride - 1], -7.f) << "wrote behind a row: " << c.text();
    EXPECT_EQ(nonfinite[i], 0);
  }
  return out;
}

inline void expect_equal(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      FAIL() << what << ": element " << i << " of " << a.size() << ": " << a[i] << " against " << b[i];
}

}  // namespace tally::kernels::attention
