// A cut call of attend: whatever the parts and their order, every form gives the bits of the scalar
// definition in one call; parts touch nothing of each other's; and refused tokens stay refused.
#include "kernels/attention/attend_test_support.h"

namespace tally::kernels::attention {
namespace {

constexpr float kUntouched = -7.f;

// The call of all tokens of a case, and all it writes to.
class Call {
 public:
  Call(const Case& c, TestCache& cache, const std::vector<float>& q)
      : out_(c.tokens * c.group * c.shape.value_dim, kUntouched), nonfinite_(c.tokens, 0) {
    args_.kv = cache.sequence();
    args_.kv_head = cache.layout().kv_heads - 1, args_.group = c.group;
    args_.q = q.data(), args_.q_stride = c.group * c.shape.key_dim;
    args_.tokens = c.tokens, args_.position = c.context - c.tokens, args_.window = c.window;
    args_.score_scale = 1.f / std::sqrt(static_cast<float>(c.shape.key_dim)), args_.softcap = c.softcap;
    args_.alibi = c.alibi.empty() ? nullptr : c.alibi.data();
    args_.sinks = c.sinks.empty() ? nullptr : c.sinks.data();
    args_.out = out_.data(), args_.out_stride = c.group * c.shape.value_dim;
    args_.nonfinite = nonfinite_.data();
    span_floats_ = c.tokens * c.group * attend_state_floats(c.shape.value_dim);
    states_.assign((spans().end - spans().begin) * span_floats_, kUntouched);
  }

  SpanRange spans() const { return attend_spans(args_.position, args_.tokens, args_.window); }
  // Floats of the states before span `span`.
  size_t states_before(size_t span) const { return (span - spans().begin) * span_floats_; }

  void run_part(AttendFn attend, SpanRange part) {
    run(attend, {.states = states_.data(), .span_begin = part.begin, .span_end = part.end});
  }
  void merge(AttendFn attend) { run(attend, {.states = states_.data(), .merge = true}); }

  const std::vector<float>& out() const { return out_; }
  const std::vector<float>& states() const { return states_; }
  const std::vector<uint8_t>& nonfinite() const { return nonfinite_; }

 private:
  // Fresh memory each time: nothing may pass from part to part through it.
  void run(AttendFn attend, const AttendCut& cut) {
    TestScratch scratch(attend_scratch_bytes(*args_.kv.layout, args_.group));
    args_.cut = &cut, args_.scratch = scratch.data();
    attend(args_);
    args_.cut = nullptr;
  }

  AttendArgs args_;
  std::vector<float> out_, states_;
  std::vector<uint8_t> nonfinite_;
  size_t span_floats_ = 0;
};

std::vector<float> attend_cut(const Case& c, AttendFn attend, TestCache& cache, const std::vector<float>& q,
                              const std::vector<SpanRange>& parts) {
  Call call(c, cache, q);
  for (const SpanRange& part : parts) call.run_part(attend, part);
  call.merge(attend);
  for (const uint8_t flag : call.nonfinite()) EXPECT_EQ(flag, 0);
  return call.out();
}

SpanRange spans_of(const Case& c) { return attend_spans(c.context - c.tokens, c.tokens, c.window); }

// Cuts where bit i of `borders` is set, behind span begin + i.
std::vector<SpanRange> parts_of(SpanRange spans, unsigned borders) {
  std::vector<SpanRange> parts = {{spans.begin, spans.begin}};
  for (size_t s = spans.begin; s < spans.end; ++s) {
    parts.back().end = s + 1;
    if ((borders >> (s - spans.begin) & 1u) != 0 && s + 1 < spans.end) parts.push_back({s + 1, s + 1});
  }
  return parts;
}

class AttendCutCall : public testing::TestWithParam<KvCodec> {
 protected:
  void SetUp() override { set_float_mode(); }
};

TEST_P(AttendCutCall, EveryFormEqualsTheDefinition) {
  const size_t contexts[] = {1,    2,    63,   1000, 1023, 1024, 1025, 1088,
                             2047, 2048, 2049, 3071, 3073, 4096, 4097, 8193};
  const size_t windows[] = {0, 0, 1, 65, 1000, 0, 1024, 1025, 3000};
  const size_t groups[] = {1, 4, 3, 8, 2}, tokens[] = {1, 1, 3, 1, 9, 2};
  const uint32_t dims[] = {16, 40, 64, 24}, blocks[] = {64, 16, 32, 128};
  std::mt19937 rng(1);
  for (unsigned i = 0; i < 32; ++i) {
    Case c;
    c.context = contexts[i % std::size(contexts)];
    c.group = groups[i % std::size(groups)], c.window = windows[i % std::size(windows)];
    c.tokens = std::min(tokens[i % std::size(tokens)], c.context);
    if (c.context > 4000) c.tokens = 1, c.group = std::min<size_t>(c.group, 3);
    c.shape = {.codec = GetParam(),
               .kv_heads = 1 + i % 2,
               .key_dim = dims[i % 4],
               .value_dim = i % 5 == 0 ? 12 : dims[i % 4],
               .block_tokens = blocks[i / 4 % 4]};
    if (i % 3 == 1) c.alibi = some_slopes(c.group);
    if (i % 4 >= 2) c.sinks = some_sinks(c.group);
    if (i % 6 == 5) c.softcap = 30;
    TestCache cache(c.shape, c.context, i);
    fill(cache, best_form(GetParam()), c.context, rng);
    const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    const std::vector<float> expected = attend(c, scalar_form(GetParam()).attend, cache, q, c.tokens);
    for (const Form& form : forms_of(GetParam())) {
      std::vector<SpanRange> parts = parts_of(spans_of(c), static_cast<unsigned>(rng()));
      std::shuffle(parts.begin(), parts.end(), rng);
      expect_equal(
          attend_cut(c, form.attend, cache, q, parts), expected,
          c.text() + " in " + std::to_string(parts.size()) + " parts, " + std::string(isa_name(form.isa)));
    }
  }
}

// More rows than the forms take together, so that a part may have nothing for some of them.
TEST_P(AttendCutCall, EveryFormEqualsTheDefinitionOnAPrompt) {
  for (const size_t window : {size_t{0}, size_t{5}, size_t{70}}) {
    Case c{.shape = {.codec = GetParam(), .key_dim = 16, .value_dim = 16, .block_tokens = 16},
           .context = 1100,
           .tokens = 150,
           .group = 2,
           .window = window};
    std::mt19937 rng(2);
    TestCache cache(c.shape, c.context, 2);
    fill(cache, best_form(GetParam()), c.context, rng);
    const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    const std::vector<float> expected = attend(c, scalar_form(GetParam()).attend, cache, q, c.tokens);
    for (const Form& form : forms_of(GetParam()))
      expect_equal(attend_cut(c, form.attend, cache, q, {{1, 2}, {0, 1}}), expected,
                   c.text() + " " + std::string(isa_name(form.isa)));
  }
}

TEST_P(AttendCutCall, NoCutAndNoOrderMatters) {
  Case c{.shape = {.codec = GetParam(), .key_dim = 32, .value_dim = 32},
         .context = 3500,
         .tokens = 2,
         .group = 4};
  const Form best = best_form(GetParam());
  std::mt19937 rng(3);
  TestCache cache(c.shape, c.context, 3);
  fill(cache, best, c.context, rng);
  const std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
  const std::vector<float> expected = attend(c, best.attend, cache, q, c.tokens);
  const auto before = [](const SpanRange& a, const SpanRange& b) { return a.begin < b.begin; };
  for (unsigned borders = 0; borders < 8; ++borders) {
    std::vector<SpanRange> parts = parts_of(spans_of(c), borders);
    do {
      expect_equal(attend_cut(c, best.attend, cache, q, parts), expected,
                   "cut at " + std::to_string(borders));
    } while (std::next_permutation(parts.begin(), parts.end(), before));
  }
}

// Parts run side by side: each writes the states of its own spans, and only the merge writes the output.
TEST_P(AttendCutCall, APartWritesItsOwnSpansOnly) {
  for (const Form& form : forms_of(GetParam())) {
    Case c{.shape = {.codec = GetParam(), .key_dim = 16, .value_dim = 16}, .context = 4100, .group = 3};
    std::mt19937 rng(4);
    TestCache cache(c.shape, c.context, 4);
    fill(cache, best_form(GetParam()), c.context, rng);
    const std::vector<float> q = random_values(rng, c.group * c.shape.key_dim);
    Call call(c, cache, q);
    call.run_part(form.attend, {2, 4});
    const auto at = [&](size_t span) {
      return call.states().begin() + static_cast<ptrdiff_t>(call.states_before(span));
    };
    const auto untouched = [](auto begin, auto end) {
      return std::count(begin, end, kUntouched) == end - begin;
    };
    EXPECT_TRUE(untouched(at(0), at(2))) << isa_name(form.isa);
    EXPECT_TRUE(untouched(at(4), call.states().end())) << isa_name(form.isa);
    EXPECT_EQ(std::count(at(2), at(4), kUntouched), 0) << isa_name(form.isa);
    EXPECT_TRUE(untouched(call.out().begin(), call.out().end())) << isa_name(form.isa);
  }
}

TEST_P(AttendCutCall, RefusesATokenWhoseQueryIsNotFinite) {
  for (const Form& form : forms_of(GetParam())) {
    Case c{.shape = {.codec = GetParam(), .key_dim = 32, .value_dim = 16},
           .context = 2050,
           .tokens = 6,
           .group = 3};
    c.sinks = some_sinks(3);
    std::mt19937 rng(5);
    TestCache cache(c.shape, c.context, 3);
    fill(cache, best_form(GetParam()), c.context, rng);
    std::vector<float> q = random_values(rng, c.tokens * c.group * c.shape.key_dim);
    std::vector<float> expected = attend(c, form.attend, cache, q, c.tokens);
    const size_t q_stride = c.group * c.shape.key_dim, out_stride = c.group * c.shape.value_dim;
    for (const size_t token : {1, 5}) {  // in the second head; only the last two tokens see the last span
      q[token * q_stride + 40] = token == 1 ? NAN : INFINITY;
      std::fill_n(expected.begin() + static_cast<ptrdiff_t>(token * out_stride), out_stride, 0.f);
    }
    Call call(c, cache, q);
    for (const SpanRange& part : {SpanRange{2, 3}, {0, 1}, {1, 2}}) call.run_part(form.attend, part);
    call.merge(form.attend);
    expect_equal(call.out(), expected, std::string(isa_name(form.isa)));
    EXPECT_EQ(call.nonfinite(), (std::vector<uint8_t>{0, 1, 0, 0, 0, 1})) << isa_name(form.isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, AttendCutCall, testing::ValuesIn(all_codecs()),
                         [](const auto& p) { return std::string(tensor::kv_codec_info(p.param).name); });

TEST(AttendSpans, AreThoseThatAnyRowSees) {
  const auto expect = [](size_t position, size_t tokens, size_t window, size_t begin, size_t end) {
    const SpanRange spans = attend_spans(position, tokens, window);
    EXPECT_EQ(spans.begin, begin) << position << " " << tokens << " " << window;
    EXPECT_EQ(spans.end, end) << position << " " << tokens << " " << window;
  };
  expect(0, 1, 0, 0, 1), expect(1023, 1, 0, 0, 1), expect(1024, 1, 0, 0, 2), expect(1023, 2, 0, 0, 2);
  expect(5000, 3, 0, 0, 5), expect(5000, 3, 512, 4, 5), expect(4100, 1, 5, 4, 5), expect(4100, 1, 6, 3, 5);
  expect(4096, 8, 1, 4, 5), expect(4095, 2, 1, 3, 5);
}

}  // namespace
}  // namespace tally::kernels::attention
