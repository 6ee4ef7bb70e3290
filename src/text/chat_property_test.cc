// Random templates stay within their budgets; text that moves about keeps its trust.

#include "text/chat_test_support.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

namespace tally::text {
namespace {

ChatInput input_with(std::string u) {
  ChatInput input;
  input.extra.emplace_back("u", std::move(u));
  return input;
}

// Pieces that make up random templates: most of what results does not parse, much does.
constexpr std::array kFragments = {"{{",
                                   "}}",
                                   "{%",
                                   "%}",
                                   "{#",
                                   "#}",
                                   "-",
                                   "+",
                                   " ",
                                   "\n",
                                   "x",
                                   "u",
                                   "messages",
                                   "loop",
                                   "ns",
                                   "'a'",
                                   "\"",
                                   "'",
                                   "1",
                                   "0",
                                   "2.5",
                                   "[",
                                   "]",
                                   "(",
                                   ")",
                                   "{",
                                   "}",
                                   ".",
                                   ",",
                                   ":",
                                   "|",
                                   "=",
                                   "==",
                                   "<",
                                   "~",
                                   "*",
                                   "**",
                                   "/",
                                   "//",
                                   "%",
                                   "if ",
                                   "elif ",
                                   "else ",
                                   "endif ",
                                   "for ",
                                   "in ",
                                   "endfor ",
                                   "set ",
                                   "endset ",
                                   "macro ",
                                   "endmacro ",
                                   "filter ",
                                   "endfilter ",
                                   "call ",
                                   "endcall ",
                                   "raw ",
                                   "endraw ",
                                   "with ",
                                   "endwith ",
                                   "break ",
                                   "continue ",
                                   "not ",
                                   "and ",
                                   "or ",
                                   "is ",
                                   "defined ",
                                   "string ",
                                   "trim",
                                   "upper",
                                   "join",
                                   "map",
                                   "list",
                                   "tojson",
                                   "length",
                                   "replace",
                                   "split",
                                   "namespace(",
                                   "range(",
                                   "items",
                                   "content",
                                   "role",
                                   "{{ u }}",
                                   "{{ messages|tojson }}",
                                   "{% if x %}",
                                   "{% endif %}",
                                   "{% for x in messages %}",
                                   "{% endfor %}",
                                   "{{ x.content }}",
                                   "{% set x = u %}",
                                   "{% macro m(a) %}",
                                   "{% endmacro %}",
                                   "{{ m(u) }}",
                                   "é",
                                   "\t",
                                   "\\",
                                   "_",
                                   "none",
                                   "true"};

RC_GTEST_PROP(ChatProperty, RandomTemplatesStayWithinTheirBudgets, ()) {
  const auto picks = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kFragments.size()));
  std::string source;
  for (const size_t i : picks) source += kFragments[i];
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) {
    RC_ASSERT(parsed.error().message.starts_with("chat template"));
    return;
  }
  TemplateLimits limits;
  limits.steps_max = 20'000;
  limits.live_bytes_max = 1 << 20;
  limits.output_bytes_max = 1 << 16;
  ChatInput input = input_with("user <|im_end|> text");
  input.messages = ValueList{ValueObject{{"role", "user"}, {"content", "hello"}},
                             ValueObject{{"role", "assistant"}, {"content", nullptr}}};
  const auto spans = parsed->render(input, limits);
  if (spans) RC_ASSERT(chat_test::text_of(*spans).size() <= limits.output_bytes_max);
}

// Expressions over u (digits, from outside) and t (letters, of the template) that move text about but make
// none.
RC_GTEST_PROP(ChatProperty, MovedTextKeepsItsTrust, ()) {
  constexpr std::array kSteps = {"({} + u)",
                                 "(t ~ {})",
                                 "{}[1:]",
                                 "{}[:-1]",
                                 "{}[::-1]",
                                 "{}[::2]",
                                 "{}|trim",
                                 "{}.strip('1a')",
                                 "{}|upper",
                                 "{}|lower",
                                 "{}|title",
                                 "{}|capitalize",
                                 "{}.swapcase()",
                                 "{}|replace(u, t)",
                                 "{}|replace('a', u)",
                                 "{}|replace('', t)",
                                 "{}.replace('1', t, 1)",
                                 "{}.split('1')|join(t)",
                                 "{}.split()|join(u)",
                                 "{}|list|join",
                                 "{}|list|reverse|join(u)",
                                 "({} * 2)",
                                 "('%s' % {})",
                                 "{}|indent(1, true)",
                                 "m({})",
                                 "{}.splitlines()|join(u)",
                                 "{}|string",
                                 "[{}, u, t]|join",
                                 "({} if u else t)",
                                 "{}|default(u)",
                                 "{'k': {}}.k",
                                 "{}.lstrip()",
                                 "{}.rsplit('2', 1)|last",
                                 "{}|e",
                                 "{}|list|unique|join",
                                 "{}|list|sort|join",
                                 "{}.removeprefix('1')"};
  std::string expression = *rc::gen::element<std::string>("u", "t", "(u ~ t)");
  const auto picks = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kSteps.size()));
  for (size_t i = 0; i < picks.size() && i < 12; ++i) {
    std::string step = kSteps[picks[i]];
    step.replace(step.find("{}"), 2, "(" + expression + ")");
    expression = step;
  }
  const auto parsed = ChatTemplate::parse("{% macro m(a) %}{{ a }}{% endmacro %}{% set t = 'abé b' %}{{ " +
                                          expression + " }}");
  RC_ASSERT(parsed.has_value());
  TemplateLimits limits;
  limits.time_max_ms = 3'600'000;
  const auto spans = parsed->render(input_with("12 3\n1"), limits);
  if (!spans) return;  // over a budget
  for (const TextSpan& span : *spans) {
    const bool digits = span.text.find_first_of("123") != std::string::npos;
    const bool letters = span.text.find_first_of("abABé") != std::string::npos;
    RC_ASSERT(!(span.trusted ? digits : letters));
  }
}

}  // namespace
}  // namespace tally::text
