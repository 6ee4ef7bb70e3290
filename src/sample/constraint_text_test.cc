#include "sample/constraint_text.h"

#include "sample/constraint_test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tally::sample {
namespace {

using testing::HasSubstr;
using Kind = ConstraintSpec::Kind;

// A token for each byte, and an end.
ConstraintVocabulary bytes() {
  ConstraintVocabulary v;
  for (int b = 0; b < 256; ++b) v.bytes.emplace_back(1, static_cast<char>(b));
  v.bytes.emplace_back();
  v.end_ids = {TokenId{256}};
  return v;
}

// The JSON of a structural tag with one part, its text escaped as JSON.
std::string tag_of(const std::string& type, const std::string& member, const std::string& json) {
  return R"({"type":"structural_tag","format":{"type":"tag","begin":"<","end":">","content":{"type":")" +
         type + "\",\"" + member + "\":" + json + "}}}";
}

// What only looks like a bracket or a repetition is text; what is one is one wherever it stands.
TEST(ConstraintText, BracketsAndRepetitionsAreReadAsWhatTheyAre) {
  const std::string many = repeated("(", 200);
  std::vector<std::string> choices(200, "(");
  for (size_t i = 0; i < choices.size(); ++i) choices[i] += std::to_string(i) + "{9999}";
  struct Row {
    ConstraintSpec spec;
    std::string says;  // empty: it compiles
  };
  const Row rows[] = {
      {{Kind::kJsonSchema, R"({"type":"string","description":"{1000} )" + many + "\"}"}, ""},
      {{Kind::kJsonSchema, R"({"enum":["a{1000}","[{)" + many + "\"]}"}, ""},
      {{Kind::kJsonSchema, R"({"type":"object","properties":{"pattern":{"const":"{1000}"}}})"}, ""},
      {{Kind::kJsonSchema, R"({"const":{"pattern":"{1000}","maxLength":99999}})"}, ""},
      {{Kind::kJsonSchema, R"({"enum":[{"pattern":"{1000}"},[{"patternProperties":{"a{1000}":1}}]]})"}, ""},
      {{Kind::kJsonSchema,
        R"({"type":"string","default":{"pattern":"{1000}"},"examples":[{"maxItems":99999}]})"},
       ""},
      {{Kind::kJsonSchema, R"({"type":"string","x-form":{"properties":{"a":{"pattern":"a{1000}"}}}})"}, ""},
      {{Kind::kJsonSchema,
        R"({"type":"object","properties":{"const":{"type":"string","pattern":"a{257}"}}})"},
       "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"anyOf":[{"items":{"type":"string","pattern":"a{257}"}},{"type":"null"}]})"},
       "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"string","pattern":"a{257}"}}})"},
       "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"$ref":"#/const","const":{"type":"string","pattern":"a{257}"}})"},
       "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"$ref":"#/%63onst","const":{"type":"string","pattern":"a{257}"}})"},
       "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"$ref":"#/x/y","x":{"y":{"type":"string","pattern":"a{257}"}}})"},
       "bound 257, at most 256"},
      {{Kind::kStructuralTag, tag_of("json_schema", "json_schema", R"({"const":{"pattern":"{1000}"}})")}, ""},
      {{Kind::kJsonSchema, R"({"type":"string","p\u0061ttern":"a{257}"})"}, "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"type":"string","pattern":"a\u007b257}"})"}, "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"type":"object","patternProperties":{"^a{257}$":true}})"},
       "bound 257, at most 256"},
      {{Kind::kJsonSchema, R"({"type":"string","pattern":")" + many + "a" + repeated(")", 200) + "\"}"},
       "200 deep"},
      {choice_of(choices), ""},
      {{Kind::kRegex, repeated("\\(", 200) + repeated("[(]", 200)}, ""},
      {{Kind::kGrammar, "# " + many + "\"\nroot ::= \"a\" [(\"] # {9999}\n"}, ""},
      {{Kind::kGrammar, "# \"\nroot ::= \"a\"{3,99999}"}, "bound 99999, at most 8192"},
      {{Kind::kStructuralTag, tag_of("regex", "pattern", R"("[a-f]{8192}")")}, ""},
      {{Kind::kStructuralTag, tag_of("regex", "pattern", R"("[a-f]{8193}")")}, "bound 8193, at most 8192"},
      {{Kind::kStructuralTag, tag_of("regex", "pattern", "\"" + many + "a" + repeated(")", 200) + "\"")},
       "200 deep"},
      {{Kind::kStructuralTag, tag_of("grammar", "grammar", R"("root ::= \"{9999}\" \"a\"{300}")")}, ""},
      {{Kind::kStructuralTag, tag_of("grammar", "grammar", R"("root ::= root \"a\" | \"b\"")")},
       "begins with itself"},
      {{Kind::kStructuralTag,
        tag_of("grammar", "grammar", R"("start: \"a\" | start \"b\"","syntax":"lark")")},
       ""},
      {{Kind::kStructuralTag,
        tag_of("json_schema", "json_schema", R"({"type":"string","pattern":"a{257}"})")},
       "bound 257, at most 256"},
      {{Kind::kStructuralTag, tag_of("json_schema", "json_schema", R"({"type":"string","maxLength":8193})")},
       "maxLength is 8193, at most 8192"},
      {{Kind::kStructuralTag, tag_of("const_string", "value", "\"{9999} " + many + "\"")}, ""},
  };
  ConstraintCompiler compiler(bytes(), {}, {});
  for (const Row& row : rows) {
    const auto made = compiler.compile(row.spec);
    const std::string shown = row.spec.text.substr(0, 120);
    ASSERT_EQ(static_cast<bool>(made), row.says.empty())
        << shown << ": " << (made ? "" : made.error().message);
    EXPECT_THAT(made ? "" : made.error().message, HasSubstr(row.says)) << shown;
  }
}

// A schema is as deep in a structural tag, which thoughts before the answer make of it, as alone.
TEST(ConstraintText, ASchemaInATagMayBeAsDeepAsAlone) {
  ConstraintCompiler compiler(bytes(), {}, {});
  for (const int lists : {127, 128}) {
    const std::string schema = R"({"const":)" + repeated("[", lists) + repeated("]", lists) + "}";
    const bool fits = lists + 1 <= 128;
    EXPECT_EQ(static_cast<bool>(compiler.compile({Kind::kJsonSchema, schema})), fits) << lists;
    const ConstraintSpec tag{Kind::kStructuralTag, tag_of("json_schema", "json_schema", schema)};
    EXPECT_EQ(static_cast<bool>(compiler.compile(tag)), fits) << lists;
  }
}

TEST(ConstraintText, RulesThatAreNotThereBeginWithNothing) {
  std::string printed;
  for (int i = 0; i < 100; ++i)
    printed += "r" + std::to_string(i) + " ::= ((m" + std::to_string(i) + " \"x\"))\n";
  EXPECT_EQ(left_recursive_rule(printed), "");
  EXPECT_EQ(left_recursive_rule(printed + "m7 ::= ((r7))\n").substr(1), "7");
}

}  // namespace
}  // namespace tally::sample
