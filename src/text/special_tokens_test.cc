#include "text/special_tokens.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tally::text {
namespace {

// At each place from the left the longest text that stands there.
std::optional<SpecialMatch> find_naive(const std::vector<std::string>& texts, std::string_view text,
                                       size_t from) {
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<SpecialMatch> best;
    for (uint32_t i = 0; i < texts.size(); ++i) {
      if (!text.substr(begin).starts_with(texts[i])) continue;
      if (!best || best->end - best->begin < texts[i].size())
        best = SpecialMatch{begin, begin + texts[i].size(), i};
    }
    if (best) return best;
  }
  return std::nullopt;
}

RC_GTEST_PROP(LeftmostLongest, FindsWhatANaiveSearchFinds, ()) {
  const auto letter = rc::gen::elementOf(std::string("aab<|"));
  const auto word = rc::gen::nonEmpty(rc::gen::container<std::string>(letter));
  const auto texts = *rc::gen::unique<std::vector<std::string>>(word);
  std::vector<std::string_view> views(texts.begin(), texts.end());
  std::vector<uint32_t> ids(texts.size());
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const LeftmostLongest automaton(views, ids);
  const auto text = *rc::gen::container<std::string>(*rc::gen::inRange<size_t>(0, 200), letter);
  for (size_t from = 0; from <= text.size();) {
    const auto expected = find_naive(texts, text, from);
    const auto got = automaton.find(text, from);
    RC_ASSERT(got.has_value() == expected.has_value());
    if (!got) break;
    RC_ASSERT(got->begin == expected->begin);
    RC_ASSERT(got->end == expected->end);
    RC_ASSERT(got->id == expected->id);
    from = got->end;
  }
}

VocabularyFields fields_of(const std::vector<std::pair<std::string_view, int64_t>>& tokens) {
  VocabularyFields fields;
  for (const auto& [text, kind] : tokens) {
    fields.tokens.push_back(text);
    fields.kinds.push_back(kind);
  }
  return fields;
}

TEST(SpecialTokens, TwoSetsAndWhatIsLeftOut) {
  const std::string long_text(kSpecialBytesMax + 1, 'x');
  const auto vocabulary = Vocabulary::build(fields_of({{"<s>", 3},
                                                       {"<u>", 4},
                                                       {"<unk>", 2},
                                                       {"[UNUSED7]", 3},
                                                       {"", 3},
                                                       {"\n", 4},
                                                       {"\n\n", 4},
                                                       {"<0x41>", 6},
                                                       {"<free>", 5},
                                                       {long_text, 3},
                                                       {"word", 1}}));
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  const SpecialTokens specials(*vocabulary);
  const auto id_in = [&](std::string_view text, bool all) -> int64_t {
    const auto match = specials.find(text, 0, all);
    return match ? int64_t{match->id} : -1;
  };
  EXPECT_EQ(id_in("a<s>", true), 0);
  EXPECT_EQ(id_in("a<s>", false), -1);
  EXPECT_EQ(id_in("a<u>", true), 1);
  EXPECT_EQ(id_in("a<u>", false), 1);
  EXPECT_EQ(id_in("<unk>", true), 2);
  EXPECT_EQ(id_in("<unk>", false), -1);
  for (const std::string& text :
       {std::string("[UNUSED7]"), std::string("[EMPTY_4]"), std::string("a\nb"), std::string("<0x41>"),
        std::string("<free>"), long_text, std::string("word")}) {
    EXPECT_EQ(id_in(text, true), -1) << text;
  }
  EXPECT_EQ(id_in("a\n\n\nb", false), 6);
  EXPECT_EQ(specials.too_long_count(), 1u);
}

}  // namespace
}  // namespace tally::text
