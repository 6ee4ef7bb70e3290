// A cut call whose first spans another call attended for it (AttendCut::Shared), among tokens of other
// sequences that have the same blocks there: every form gives the bits of the scalar definition in one call.
#include "kernels/attention/attend_test_support.h"

namespace tally::kernels::attention {
namespace {

class AttendShared : public testing::TestWithParam<KvCodec> {
 protected:
  void SetUp() override { set_float_mode(); }
};

// The tokens of the case are the last of `others` + tokens rows that attend the first `spans` together.
std::vector<float> attend_shared(const Case& c, AttendFn attend, TestCache& cache,
                                 const std::vector<float>& q, const std::vector<float>& other_q,
                                 size_t spans) {
  const tensor::KvLayout& l = cache.layout();
  const size_t row = c.group * l.key_dim, others = other_q.size() / row;
  const size_t floats = attend_state_floats(l.value_dim) * c.group;
  std::vector<float> queries = other_q;
  queries.insert(queries.end(), q.begin(), q.end());
  const SpanRange all = attend_spans(c.context - c.tokens, c.tokens, 0);
  std::vector<float> shared(spans * (others + c.tokens) * floats, NAN);
  std::vector<float> own((all.end - spans) * c.tokens * floats, NAN);
  std::vector<float> out(c.tokens * c.group * l.value_dim, NAN);
  std::vector<uint8_t> nonfinite(c.tokens, 0);
  TestScratch scratch(attend_scratch_bytes(l, c.group));
  AttendArgs a;
  a.kv = cache.sequence();
  a.kv_head = l.kv_heads - 1, a.group = c.group, a.softcap = c.softcap;
  a.score_scale = 1.f / std::sqrt(static_cast<float>(l.key_dim));
  a.scratch = scratch.data();
  a.q = queries.data(), a.q_stride = row, a.tokens = others + c.tokens, a.position = spans * kSpanTokens;
  AttendCut cut{.states = shared.data(), .span_begin = 0, .span_end = spans};
  a.cut = &cut;
  attend(a);

  a.q = q.data(), a.tokens = c.tokens, a.position = c.context - c.tokens;
  a.sinks = c.sinks.empty() ? nullptr : c.sinks.data();
  a.out = out.data(), a.out_stride = c.group * l.value_dim, a.nonfinite = nonfinite.data();
  cut = {.states = own.data(),
         .span_begin = spans,
         .span_end = all.end,
         .shared = {.states = shared.data(), .spans = spans, .tokens = others + c.tokens, .token = others}};
  attend(a);
  cut.merge = true;
  attend(a);
  EXPECT_EQ(nonfinite, std::vector<uint8_t>(c.tokens, 0));
  return out;
}

TEST_P(AttendShared, EveryFormEqualsTheDefinition) {
  const size_t contexts[] = {1025, 2049, 2100, 3073}, groups[] = {1, 4, 3, 8}, tokens[] = {1, 2, 5, 1};
  const uint32_t dims[] = {16, 64, 40, 24}, blocks[] = {64, 16, 128, 32};
  std::mt19937 rng(1);
  for (size_t i = 0; i < 4; ++i) {
    Case c{
        .shape = {.codec = GetParam(), .key_dim = dims[i], .value_dim = dims[i], .block_tokens = blocks[i]},
        .context = contexts[i] + tokens[i] - 1,
        .tokens = tokens[i],
        .group = groups[i],
        .softcap = i == 2 ? 30.f : 0.f};
    if (i % 2 == 1) c.sinks = some_sinks(c.group);
    TestCache cache(c.shape, c.context, static_cast<unsigned>(i));
    fill(cache, best_form(GetParam()), c.context, rng);
    const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    const std::vector<float> others = random_values(rng, 3 * c.group * c.shape.key_dim);
    const std::vector<float> expected = attend(c, scalar_form(GetParam()).attend, cache, q, c.tokens);
    for (size_t spans = 1; spans <= (c.context - c.tokens) / kSpanTokens; ++spans)
      for (const Form& form : forms_of(GetParam()))
        expect_equal(attend_shared(c, form.attend, cache, q, others, spans), expected,
                     c.text() + ", " + std::to_string(spans) + " shared, " + std::string(isa_name(form.isa)));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, AttendShared, testing::ValuesIn(all_codecs()),
                         [](const auto& p) { return std::string(tensor::kv_codec_info(p.param).name); });

}  // namespace
}  // namespace tally::kernels::attention
