// attend: every form equals the scalar definition by memcmp; the definition is near a float64 reference on
// the same decoded operands; nothing but position and cache decides a row's bits; and exactly the right
// positions are visible.
#include "kernels/attention/attend_test_support.h"

namespace tally::kernels::attention {
namespace {

void compare_with_scalar(const Case& c, unsigned seed) {
  std::mt19937 rng(seed);
  TestCache cache(c.shape, c.context + c.later, seed);
  const Form& definition = scalar_form(c.shape.codec);
  fill(cache, definition, c.context + c.later, rng);
  const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim, c.q_scale);
  const std::vector<float> expected = attend(c, definition.attend, cache, q, c.tokens);
  for (const float x : expected) ASSERT_TRUE(std::isfinite(x)) << c.text();
  for (const Form& form : simd_forms(c.shape.codec))
    expect_equal(attend(c, form.attend, cache, q, c.tokens), expected,
                 c.text() + " " + std::string(isa_name(form.isa)));
}

// A sequence that goes through every value of a list, in a new random order each time round.
template <class T>
class Cycle {
 public:
  explicit Cycle(std::vector<T> values) : values_(std::move(values)), next_(values_.size()) {}
  T next(std::mt19937& rng) {
    if (next_ == values_.size()) std::shuffle(values_.begin(), values_.end(), rng), next_ = 0;
    return values_[next_++];
  }

 private:
  std::vector<T> values_;
  size_t next_;
};

class Attend : public testing::TestWithParam<KvCodec> {
 protected:
  void SetUp() override { set_float_mode(); }
};

TEST_P(Attend, EveryFormEqualsTheDefinition) {
  Cycle<size_t> contexts({1, 2, 15, 16, 17, 63, 64, 65, 127, 130, 1023, 1024, 1025, 2047, 2048, 2049});
  Cycle<size_t> groups({1, 2, 3, 4, 5, 7, 8, 16});
  Cycle<uint32_t> dims({8, 10, 12, 16, 24, 32, 40, 64, 80, 96, 128, 256});
  Cycle<uint32_t> value_dims({0, 0, 0, 8, 12, 20, 40, 48, 128});  // 0: as the key's
  Cycle<size_t> windows({0, 0, 1, 63, 64, 65, 1000, 4096});
  Cycle<uint32_t> blocks({16, 32, 64, 128});
  Cycle<size_t> tokens({1, 1, 2, 3, 6, 9, 17});
  Cycle<float> caps({0.f, 0.f, 0.f, 30.f});
  std::mt19937 rng(11);
  for (unsigned i = 0; i < 48; ++i) {
    Case c;
    c.context = contexts.next(rng);
    c.group = groups.next(rng);
    c.shape = {.codec = GetParam(),
               .kv_heads = 1 + i % 2,
               .key_dim = dims.next(rng),
               .block_tokens = blocks.next(rng)};
    c.shape.value_dim = value_dims.next(rng);
    if (c.shape.value_dim == 0) c.shape.value_dim = c.shape.key_dim;
    c.window = windows.next(rng);
    c.tokens = std::min(tokens.next(rng), c.context);
    if (c.tokens * c.group > 40) c.tokens = 3 > c.context ? 1 : 3;
    c.softcap = caps.next(rng);
    c.later = i % 3 == 0 ? 0 : i % 3 * 5;
    c.q_scale = i % 4 == 1 ? 20.f : 1.f;
    if (i % 3 == 1) c.alibi = some_slopes(c.group);
    if (i % 4 >= 2) c.sinks = some_sinks(c.group);
    compare_with_scalar(c, 100 + i);
  }
}

TEST_P(Attend, EveryFormEqualsTheDefinitionAtALongContext) {
  Case c{.shape = {.codec = GetParam()}, .context = 8193, .tokens = 2, .group = 3};
  c.alibi = some_slopes(3), c.sinks = some_sinks(3);
  compare_with_scalar(c, 3);
}

// Keys longer than values, up to the longest there are.
TEST_P(Attend, EveryFormEqualsTheDefinitionOnWideHeads) {
  for (const auto& [key, value] : {std::pair{192u, 128u}, {576u, 512u}, {128u, 512u}, {500u, 6u}}) {
    Case c{.shape = {.codec = GetParam(), .key_dim = key, .value_dim = value, .block_tokens = 32},
           .context = 140,
           .tokens = 6,
           .group = 3};
    compare_with_scalar(c, 9);
  }
}

// What adds nothing gives the bits of what is not there.
TEST_P(Attend, AFlatSlopeAndASinkFarBelowChangeNothing) {
  for (const Form& form : forms_of(GetParam())) {
    Case c{.shape = {.codec = GetParam()}, .context = 1100, .tokens = 5, .group = 3};
    std::mt19937 rng(12);
    TestCache cache(c.shape, c.context, 2);
    fill(cache, form, c.context, rng);
    const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    const std::vector<float> plain = attend(c, form.attend, cache, q, c.tokens);
    c.alibi.assign(3, 0.f), c.sinks.assign(3, -1e30f);
    expect_equal(attend(c, form.attend, cache, q, c.tokens), plain, c.text());
  }
}

// A file may say anything: no sink makes an output that is not finite, and all forms agree on it.
TEST_P(Attend, AnySinkLeavesTheOutputFinite) {
  Case c{.shape = {.codec = GetParam(), .kv_heads = 1}, .context = 80, .tokens = 2, .group = 7};
  c.sinks = {NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f};
  compare_with_scalar(c, 4);
}

// A tile of many rows: borders of tiles, micro tiles and windows inside one call.
TEST_P(Attend, EveryFormEqualsTheDefinitionOnAPrompt) {
  for (const size_t window : {size_t{0}, size_t{5}, size_t{70}}) {
    Case c{.shape = {.codec = GetParam(), .key_dim = 32, .value_dim = 32, .block_tokens = 16},
           .context = 150,
           .tokens = 150,
           .group = 3,
           .window = window};
    compare_with_scalar(c, 5);
  }
}

TEST_P(Attend, ChunksOfAPromptDoNotMatter) {
  Case c{.shape = {.codec = GetParam(), .key_dim = 24, .value_dim = 16},
         .context = 1100,
         .tokens = 530,
         .group = 2};
  std::mt19937 rng(7);
  const Form best = best_form(GetParam());
  TestCache cache(c.shape, c.context, 1);
  fill(cache, best, c.context, rng);
  const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
  const std::vector<float> whole = attend(c, best.attend, cache, q, c.tokens);
  for (const size_t chunk : {1, 7, 63, 64, 65, 512})
    expect_equal(attend(c, best.attend, cache, q, chunk), whole, "chunk " + std::to_string(chunk));
}

// The cache behind a row does not exist yet when chunks are stored and attended in turn.
TEST_P(Attend, LaterTokensDoNotMatter) {
  Case c{.shape = {.codec = GetParam(), .block_tokens = 32}, .context = 200, .tokens = 200, .group = 2};
  const Form best = best_form(GetParam());
  std::mt19937 rng(8);
  const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
  TestCache whole_cache(c.shape, c.context, 1), cache(c.shape, c.context, 2);
  std::mt19937 tokens_rng(9), same_tokens_rng(9);
  fill(whole_cache, best, c.context, tokens_rng);
  const std::vector<float> whole = attend(c, best.attend, whole_cache, q, c.tokens);

  std::vector<float> out;
  for (size_t p = 0; p < c.context; ++p) {
    const std::vector<float> k = random_values(same_tokens_rng, size_t{2} * c.shape.key_dim);
    const std::vector<float> v =
        random_values(same_tokens_rng, size_t{2} * c.shape.value_dim, p % 7 == 3 ? 0.01f : 1.f);
    ASSERT_TRUE(best.store(cache.sequence(), p, k.data(), v.data()));
    Case row = c;
    row.context = p + 1, row.tokens = 1;
    const size_t stride = c.group * c.shape.key_dim;
    const std::vector<float> one = attend(row, best.attend, cache,
                                          {q.begin() + static_cast<ptrdiff_t>(p * stride),
                                           q.begin() + static_cast<ptrdiff_t>((p + 1) * stride)},
                                          1);
    out.insert(out.end(), one.begin(), one.end());
  }
  expect_equal(out, whole, "stored and attended in turn");
}

TEST_P(Attend, BlockSizeAndPlacementDoNotMatter) {
  for (const Form& form : forms_of(GetParam())) {
    std::vector<float> first;
    for (const uint32_t block : {16u, 32u, 64u, 128u}) {
      Case c{.shape = {.codec = GetParam(), .key_dim = 80, .value_dim = 80, .block_tokens = block},
             .context = 1061,
             .tokens = 5,
             .group = 4};
      std::mt19937 rng(21);
      TestCache cache(c.shape, c.context, block);
      fill(cache, form, c.context, rng);
      const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
      const std::vector<float> out = attend(c, form.attend, cache, q, c.tokens);
      if (first.empty()) first = out;
      expect_equal(out, first, "block of " + std::to_string(block));
    }
  }
}

// float64 attention of one row over decoded operands; q already rotated and quantized where the codec does
// so.
std::vector<double> reference_row(TestCache& cache, const Case& c, const AttentionKernels& codec,
                                  const std::vector<double>& q, size_t position, size_t head) {
  const tensor::KvLayout& l = cache.layout();
  const size_t first = c.window == 0 || position + 1 < c.window ? 0 : position + 1 - c.window;
  std::vector<double> s, out(l.value_dim, 0.0);
  std::vector<float> k(l.key_dim), v(l.value_dim);
  for (size_t p = first; p <= position; ++p) {
    codec.load(cache.sequence(), p, l.kv_heads - 1, k.data(), v.data());
    double dot = 0;
    for (size_t i = 0; i < l.key_dim; ++i) dot += q[i] * static_cast<double>(k[i]);
    dot /= std::sqrt(static_cast<double>(l.key_dim));
    const auto cap = static_cast<double>(c.softcap);
    if (cap != 0) dot = cap * std::tanh(dot / cap);
    if (!c.alibi.empty()) dot -= static_cast<double>(c.alibi[head]) * static_cast<double>(position - p);
    s.push_back(dot);
  }
  double max = *std::max_element(s.begin(), s.end()), sum = 0;
  if (!c.sinks.empty()) {
    max = std::max(max, static_cast<double>(c.sinks[head]));
    sum = std::exp(static_cast<double>(c.sinks[head]) - max);
  }
  for (size_t p = first; p <= position; ++p) {
    const double e = std::exp(s[p - first] - max);
    sum += e;
    codec.load(cache.sequence(), p, l.kv_heads - 1, k.data(), v.data());
    for (size_t i = 0; i < l.value_dim; ++i) out[i] += e * static_cast<double>(v[i]);
  }
  for (double& x : out) x /= sum;
  return out;
}

std::vector<double> query_as_used(KvCodec codec, const float* q, size_t d) {
  std::vector<float> x(q, q + d);
  if (!rotates_keys(codec)) return {x.begin(), x.end()};
  std::vector<int8_t> q8(d);
  rotate(x.data(), d);
  const double scale = static_cast<double>(quantize_127(x.data(), d, q8.data()));
  std::vector<double> out;
  for (const int8_t i : q8) out.push_back(i * scale);
  return out;
}

TEST_P(Attend, IsNearAFloat64Reference) {
  // Nibbles are all positive: what p's rounding adds weighs twice as much as with int8.
  const double tolerance = rotates_values(GetParam()) ? 2.5e-4 : rotates_keys(GetParam()) ? 2e-4 : 1e-5;
  const Case cases[] = {
      {.shape = {.codec = GetParam()}, .context = 700, .tokens = 3, .group = 3},
      {.shape = {.codec = GetParam(), .key_dim = 128, .value_dim = 128},
       .context = 2100,
       .tokens = 2,
       .group = 2},
      {.shape = {.codec = GetParam(), .key_dim = 96, .value_dim = 96},
       .context = 1500,
       .tokens = 2,
       .group = 2,
       .window = 500},
      {.shape = {.codec = GetParam(), .key_dim = 80, .value_dim = 64},
       .context = 300,
       .tokens = 2,
       .group = 2,
       .softcap = 3.f},
      {.shape = {.codec = GetParam()}, .context = 1300, .tokens = 2, .group = 4, .q_scale = 4},
      {.shape = {.codec = GetParam()}, .context = 700, .tokens = 2, .group = 8, .sinks = some_sinks(8)},
      {.shape = {.codec = GetParam()}, .context = 1500, .tokens = 2, .group = 8, .alibi = some_slopes(8)},
      {.shape = {.codec = GetParam(), .key_dim = 24, .value_dim = 40},
       .context = 1100,
       .tokens = 2,
       .group = 4,
       .window = 128,
       .softcap = 5.f,
       .alibi = some_slopes(4),
       .sinks = some_sinks(4)},
      {.shape = {.codec = GetParam(), .key_dim = 8, .value_dim = 8}, .context = 300, .tokens = 2, .group = 2},
      {.shape = {.codec = GetParam(), .key_dim = 12, .value_dim = 10}, .context = 300, .tokens = 2},
      {.shape = {.codec = GetParam(), .key_dim = 40, .value_dim = 24}, .context = 300, .tokens = 2},
      {.shape = {.codec = GetParam(), .key_dim = 192, .value_dim = 128}, .context = 200, .tokens = 2},
      {.shape = {.codec = GetParam(), .key_dim = 576, .value_dim = 512}, .context = 200, .tokens = 2},
  };
  for (const Case& c : cases) {
    std::mt19937 rng(31);
    TestCache cache(c.shape, c.context, 4);
    fill(cache, scalar_form(GetParam()), c.context, rng);
    const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim, c.q_scale);
    const std::vector<float> out = attend(c, scalar_form(GetParam()).attend, cache, q, c.tokens);
    const AttentionKernels codec = select_attention(GetParam(), Isa::kScalar);
    double error = 0, norm = 0;
    for (size_t row = 0; row < c.tokens * c.group; ++row) {
      const std::vector<double> x =
          query_as_used(GetParam(), q.data() + row * c.shape.key_dim, c.shape.key_dim);
      const std::vector<double> expected =
          reference_row(cache, c, codec, x, c.context - c.tokens + row / c.group, row % c.group);
      for (size_t i = 0; i < expected.size(); ++i) {
        const double d = static_cast<double>(out[row * expected.size() + i]) - expected[i];
        error += d * d, norm += expected[i] * expected[i];
      }
    }
    EXPECT_LE(std::sqrt(error / norm), tolerance) << c.text();
    RecordProperty(c.text(), std::to_string(std::sqrt(error / norm)));
  }
}

// Equal keys and one-hot values: out[c] is 1 / (positions seen) where position c is seen, and exactly 0 where
// it is not (nearly so where values are rotated).
TEST_P(Attend, SeesExactlyTheWindow) {
  constexpr size_t kDim = 256;
  const float slack = rotates_values(GetParam()) ? 0.1f : 1e-3f,
              zero = rotates_values(GetParam()) ? slack : 0.f;
  for (const Form& form : forms_of(GetParam())) {
    size_t emulated_cases = 0;
    TestCache cache(
        {.codec = GetParam(), .kv_heads = 1, .key_dim = 16, .value_dim = kDim, .block_tokens = 32}, 1200, 2);
    const std::vector<float> k(16, 1.f), q(16 * 40, 1.f);
    for (size_t p = 0; p < 1200; ++p) {
      std::vector<float> v(kDim, 0.f);
      v[p % kDim] = 1.f;
      ASSERT_TRUE(form.store(cache.sequence(), p, k.data(), v.data()));
    }
    for (const size_t window : {0, 1, 2, 15, 16, 17, 63, 64, 65, 200, 256})
      for (const size_t position :
           {0, 1, 14, 15, 16, 40, 62, 63, 64, 65, 127, 200, 215, 1000, 1023, 1024, 1025, 1087, 1150}) {
        if (window == 0 && position >= kDim - 40) continue;
        if (!host_has(form.isa) && ++emulated_cases % 5 != 0) continue;  // slow
        Case c{.shape =
                   {.codec = GetParam(), .kv_heads = 1, .key_dim = 16, .value_dim = kDim, .block_tokens = 32},
               .context = position + 40,
               .tokens = 40,
               .window = window};
        const std::vector<float> out = attend(c, form.attend, cache, q, c.tokens);
        for (size_t t = 0; t < c.tokens; ++t) {
          const size_t last = position + t, n = window == 0 ? last + 1 : std::min(window, last + 1);
          for (size_t i = 0; i < n; ++i)
            ASSERT_NEAR(out[t * kDim + (last - i) % kDim] * static_cast<float>(n), 1.f, slack)
                << c.text() << ": row at " << last << " does not see " << last - i;
          const auto zeros =
              std::count_if(out.begin() + static_cast<ptrdiff_t>(t * kDim),
                            out.begin() + static_cast<ptrdiff_t>((t + 1) * kDim),
                            [&](float x) { return std::fabs(x) * static_cast<float>(n) <= zero; });
          ASSERT_EQ(static_cast<size_t>(zeros), kDim - n)
              << c.text() << ": row at " << last << " sees too much";
        }
      }
  }
}

// Blocks wholly before the window may have been given back: their table entries mean nothing.
TEST_P(Attend, DoesNotTouchBlocksBeforeTheWindow) {
  for (const Form& form : forms_of(GetParam())) {
    Case c{.shape = {.codec = GetParam(), .block_tokens = 16},
           .context = 300,
           .tokens = 4,
           .group = 2,
           .window = 50};
    std::mt19937 rng(5);
    TestCache cache(c.shape, c.context, 3);
    fill(cache, form, c.context, rng);
    const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    const std::vector<float> expected = attend(c, form.attend, cache, q, c.tokens);
    cache.forget_blocks_before(c.context - c.tokens + 1 - c.window);
    expect_equal(attend(c, form.attend, cache, q, c.tokens), expected, c.text());
  }
}

TEST_P(Attend, RefusesATokenWhoseQueryIsNotFinite) {
  for (const Form& form : forms_of(GetParam())) {
    Case c{.shape = {.codec = GetParam()}, .context = 90, .tokens = 20, .group = 3};
    std::mt19937 rng(5);
    TestCache cache(c.shape, c.context, 3);
    fill(cache, form, c.context, rng);
    std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    std::vector<float> expected = attend(c, form.attend, cache, q, c.tokens);
    const size_t q_stride = c.group * c.shape.key_dim, out_stride = c.group * c.shape.value_dim;
    const float bad[] = {INFINITY, -INFINITY, NAN};
    const size_t at[] = {3, 11, 19};
    for (size_t i = 0; i < 3; ++i) {
      q[at[i] * q_stride + 70 + i] = bad[i];  // the second head
      std::fill_n(expected.begin() + static_cast<ptrdiff_t>(at[i] * out_stride), out_stride, 0.f);
    }
    std::vector<float> out(c.tokens * out_stride, 1.f);
    std::vector<uint8_t> nonfinite(c.tokens, 0);
    TestScratch scratch(attend_scratch_bytes(cache.layout(), c.group));
    AttendArgs a;
    a.kv = cache.sequence(), a.kv_head = 1, a.group = c.group, a.q = q.data(), a.q_stride = q_stride;
    a.tokens = c.tokens, a.position = c.context - c.tokens;
    a.score_scale = 1.f / std::sqrt(static_cast<float>(c.shape.key_dim));
    a.out = out.data(), a.out_stride = out_stride, a.scratch = scratch.data(), a.nonfinite = nonfinite.data();
    form.attend(a);
    expect_equal(out, expected, "others are not disturbed");
    for (size_t i = 0; i < c.tokens; ++i) EXPECT_EQ(nonfinite[i], i == 3 || i == 11 || i == 19) << i;
  }
}

// Extreme operands: a huge single score, all-zero q, all-zero v, values that differ by 1e30 (where the codec
// can hold that).
TEST_P(Attend, ExtremeOperandsStayEqualAndFinite) {
  Case c{.shape = {.codec = GetParam(), .kv_heads = 1}, .context = 140, .tokens = 4, .group = 2};
  const Form& definition = scalar_form(GetParam());
  TestCache cache(c.shape, c.context, 3);
  std::mt19937 rng(6);
  const float most = rotates_values(GetParam()) ? 1e4f : 1e10f;
  for (size_t p = 0; p < c.context; ++p) {
    const std::vector<float> k = random_values(rng, 64, p == 70 ? 1e4f : p % 3 == 0 ? 1e-20f : 1.f);
    const std::vector<float> v = random_values(rng, 64, p % 5 == 0 ? most : p % 5 == 1 ? 0.f : 1e-20f);
    ASSERT_TRUE(definition.store(cache.sequence(), p, k.data(), v.data()));
  }
  for (const float scale : {0.f, 1e-33f, 1e-10f, 1.f, 1e4f}) {
    const std::vector<float> q = random_values(rng, c.tokens * c.group * 64, std::max(scale, 1e-38f));
    const std::vector<float> expected = attend(c, definition.attend, cache, q, c.tokens);
    for (const float x : expected) ASSERT_TRUE(std::isfinite(x)) << scale;
    for (const Form& form : simd_forms(GetParam()))
      expect_equal(attend(c, form.attend, cache, q, c.tokens), expected, "q of " + std::to_string(scale));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Attend, testing::ValuesIn(all_codecs()),
                         [](const auto& p) { return std::string(tensor::kv_codec_info(p.param).name); });

}  // namespace
}  // namespace tally::kernels::attention
