// Templates and inputs that mean harm: each is refused with one clear line, in bounded time, memory and
// stack.

#include "base/clock.h"
#include "text/chat_test_support.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>
#include <functional>

namespace tally::text {
namespace {

// Runs `work` on a thread with a stack of so many bytes (more where a sanitizer makes frames large).
void run_with_stack(size_t bytes, const std::function<void()>& work) {
#if defined(TALLY_INSTRUMENTED)
  bytes *= 6;
#endif
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread{};
  const auto entry = [](void* arg) -> void* {
    (*static_cast<const std::function<void()>*>(arg))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, entry, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string repeat(std::string_view text, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

std::string parse_error(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source);
  return parsed ? "(no error)" : parsed.error().message;
}

// The error of a template that parses; "(no error)" if it renders.
std::string render_error(const std::string& source, const ChatInput& input = {},
                         const TemplateLimits& limits = {}) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) return "parse: " + parsed.error().message;
  const auto spans = parsed->render(input, limits);
  if (spans) return "(no error)";
  EXPECT_EQ(spans.error().code, base::ErrorCode::kBadData);
  return spans.error().message;
}

TemplateLimits patient() {
  TemplateLimits limits;
  limits.time_max_ms = 3'600'000;
  return limits;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ChatHostile, J1DeepNestingIsRefusedAtParse) {
  const std::vector<std::string> sources = {
      repeat("{% if x %}", 50'000),
      repeat("{% for x in y %}", 50'000),
      repeat("{% macro x() %}", 5'000),
      repeat("{% set x %}", 5'000),
      repeat("{% filter upper %}", 5'000),
      "{{ " + repeat("(", 6'000) + "1" + repeat(")", 6'000) + " }}",
      "{{ " + repeat("[", 6'000) + repeat("]", 6'000) + " }}",
      "{{ " + repeat("{'a':", 6'000) + "1" + repeat("}", 6'000) + " }}",
      "{{ x" + repeat("|trim", 100'000) + " }}",
      "{{ x" + repeat(".a", 100'000) + " }}",
      "{{ x" + repeat("[0]", 100'000) + " }}",
      "{{ x" + repeat("()", 100'000) + " }}",
      "{{ " + repeat("f(", 6'000) + repeat(")", 6'000) + " }}",
      "{{ 1" + repeat("+1", 100'000) + " }}",
      "{{ 1" + repeat("~1", 100'000) + " }}",
      "{{ 1" + repeat("**1", 100'000) + " }}",
      "{{ 1" + repeat(" and 1", 100'000) + " }}",
      "{{ " + repeat("not ", 100'000) + "1 }}",
      "{{ " + repeat("-", 100'000) + "1 }}",
      "{{ 1" + repeat(" if 1 else 1", 60'000) + " }}",
      "{{ 1" + repeat(" if 1", 100'000) + " }}",
      "{{ 1" + repeat(" is string", 50'000) + " }}",
  };
  run_with_stack(512 << 10, [&] {
    for (const std::string& source : sources)
      EXPECT_TRUE(has(parse_error(source), "too deep: more than 100 levels of nesting"))
          << source.substr(0, 40);
  });
}

TEST(ChatHostile, LongButShallowTemplatesAreFine) {
  EXPECT_EQ(render_error("{% if 0 %}a" + repeat("{% elif 0 %}a", 10'000) + "{% endif %}", {}, patient()),
            "(no error)");
  EXPECT_EQ(render_error(repeat("{{ 1 }}", 50'000), {}, patient()), "(no error)");
  EXPECT_EQ(render_error("{{ [" + repeat("1,", 50'000) + "]|length }}", {}, patient()), "(no error)");
  EXPECT_EQ(render_error("{{ 1" + repeat(" < 2", 1) + repeat(" != 3", 20'000) + " }}", {}, patient()),
            "(no error)");
}

TEST(ChatHostile, TheDeepestTemplateRunsOnASmallStack) {
  const std::string parens = "{{ " + repeat("(", 90) + "1" + repeat(")", 90) + " }}";
  const std::string ifs = repeat("{% if 1 %}", 98) + "x" + repeat("{% endif %}", 98);
  const std::string sum = "{% macro m(n) %}{{ n" + repeat("+ 0", 80) + " + m(n) }}{% endmacro %}{{ m(1) }}";
  const std::string nest = "{% macro m() %}" + repeat("{% if 1 %}", 90) + "{{ m() }}" +
                           repeat("{% endif %}", 90) + "{% endmacro %}{{ m() }}";
  run_with_stack(1 << 20, [&] {
    EXPECT_EQ(render_error(parens, {}, patient()), "(no error)");
    EXPECT_EQ(render_error(ifs, {}, patient()), "(no error)");
    EXPECT_TRUE(has(render_error(sum, {}, patient()), "budget"));
    EXPECT_TRUE(has(render_error(nest, {}, patient()), "budget of depth"));
  });
}

TEST(ChatHostile, J2LoopsEndByStepsOrTime) {
  EXPECT_TRUE(has(render_error("{% for i in range(10**12) %}{% endfor %}"), "range too big"));
  EXPECT_TRUE(has(render_error("{{ range(-9223372036854775807, 9223372036854775807) }}"), "range too big"));
  const std::string four =
      "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% for d in "
      "range(10000) %}"
      "x{% endfor %}{% endfor %}{% endfor %}{% endfor %}";
  const int64_t begin = base::now_us();
  const std::string error = render_error(four);
  EXPECT_LT(base::now_us() - begin, 10'000'000);  // 250 ms, on a machine that also does something else
  EXPECT_TRUE(has(error, "budget of 1000000 steps") || has(error, "budget of 250 ms")) << error;

  TemplateLimits quick = patient();
  quick.steps_max = 100;
  EXPECT_TRUE(has(render_error(four, {}, quick), "budget of 100 steps"));
  TemplateLimits timed;
  timed.time_max_ms = 1;
  timed.steps_max = UINT64_MAX / 2;
  EXPECT_TRUE(has(render_error(four, {}, timed), "budget of 1 ms"));
}

TEST(ChatHostile, J3GrowthEndsByLiveBytes) {
  const std::string doubling = "{% set ns = namespace(s='abcdefgh') %}{% for i in range(60) %}{% set ns.s = ";
  const std::vector<std::string> sources = {
      doubling + "ns.s + ns.s %}{% endfor %}",
      doubling + "ns.s ~ ns.s %}{% endfor %}",
      doubling + "ns.s * 2 %}{% endfor %}",
      doubling + "[ns.s, ns.s]|join %}{% endfor %}",
      doubling +
          "ns.s|replace('a', 'aa') %}{% endfor %}{% for i in range(25) %}{% set ns.s = ns.s|replace('a', "
          "'aa') %}{% endfor %}",
      doubling + "ns.s.replace('', ns.s) %}{% endfor %}",
      doubling + "[ns.s, ns.s]|tojson %}{% endfor %}",
      doubling + "'%s%s' % (ns.s, ns.s) %}{% endfor %}",
      doubling + "(ns.s ~ '\\n' ~ ns.s)|indent(100) %}{% endfor %}",
      doubling + "ns.s|list + ns.s|list %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l * 2 %}{% endfor %}",
      "{{ 'a' * 10**10 }}",
      "{{ ('a' * 10**10)|length }}",
      "{{ [0] * 10**15 }}",
      "{{ 'abc'|indent(10**12, true) }}",
      "{{ ('a,' * 2000000).split(',')|length }}",
      "{{ ('a' * 4000000)|list|length }}",
      "{% macro m() %}{{ 'a' * 1000000 }}{{ m() }}{% endmacro %}{{ m() }}",
  };
  TemplateLimits limits = patient();
  limits.live_bytes_max = 2u << 20;
  for (const std::string& source : sources) {
    const std::string error = render_error(source, {}, limits);
    EXPECT_TRUE(has(error, "budget of 2097152 live bytes")) << source << "\n" << error;
  }
}

TEST(ChatHostile, J3OutputEndsByItsBudget) {
  const std::string source = "{% set s = 'a' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}";
  EXPECT_TRUE(has(render_error(source, {}, patient()), "budget of 8388608 output bytes"));
  TemplateLimits small = patient();
  small.output_bytes_max = 3;
  EXPECT_EQ(render_error("abc", {}, small), "(no error)");
  EXPECT_TRUE(has(render_error("abcd", {}, small), "budget of 3 output bytes"));
}

TEST(ChatHostile, SharedPartsDoNotMakeWalksExponential) {
  const std::string build =
      "{% set a = namespace(l=[1]) %}{% for i in range(90) %}{% set a.l = [a.l, a.l] %}{% endfor %}"
      "{% set b = namespace(l=[1]) %}{% for i in range(90) %}{% set b.l = [b.l, b.l] %}{% endfor %}";
  TemplateLimits limits = patient();
  limits.live_bytes_max = 2u << 20;
  limits.output_bytes_max = 1u << 20;
  for (const std::string use :
       {"{{ a.l == b.l }}", "{{ a.l < b.l }}", "{{ a.l in [b.l] }}", "{{ [a.l, b.l]|unique|list }}",
        "{{ a.l }}", "{{ a.l|tojson }}", "{{ a.l|string }}"})
    EXPECT_TRUE(has(render_error(build + use, {}, limits), "budget")) << use;
}

TEST(ChatHostile, SlowSearchesAreCounted) {
  EXPECT_TRUE(has(render_error("{{ ('a' * 500000 + 'b') in 'a' * 4000000 }}", {}, patient()), "steps"));
  EXPECT_TRUE(has(render_error("{{ ('a' * 4000000).split('a' * 500000 + 'b') }}", {}, patient()), "steps"));
  EXPECT_TRUE(has(render_error("{{ ('a' * 1000000).strip('b' * 1000000 + 'a') }}", {}, patient()), "steps"));
}

TEST(ChatHostile, J4RecursionEndsByCallsOrDepth) {
  EXPECT_TRUE(
      has(render_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "budget of 32 nested calls"));
  EXPECT_TRUE(has(
      render_error("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"),
      "budget of 32 nested calls"));
  EXPECT_TRUE(
      has(render_error("{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}"), "budget"));
  EXPECT_TRUE(has(render_error("{% macro m(x=m()) %}{% endmacro %}{{ m() }}"), "budget of 32 nested calls"));
  const std::string nest = "{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = ";
  EXPECT_TRUE(has(render_error(nest + "[ns.l] %}{% endfor %}"), "budget of depth 100"));
  EXPECT_TRUE(has(render_error(nest + "{'a': ns.l} %}{% endfor %}"), "budget of depth 100"));
  EXPECT_TRUE(has(render_error(nest + "(ns.l,) %}{% endfor %}"), "budget of depth 100"));
}

TEST(ChatHostile, CyclesAreFreed) {  // the leak checker of the sanitizer build looks
  EXPECT_EQ(render_error("{% set a = namespace() %}{% set a.me = a %}{% set a.l = [a, {'k': a}] %}{{ a.l == "
                         "a.l }}{{ a.l }}"),
            "(no error)");
  EXPECT_EQ(
      render_error(
          "{% set a = namespace() %}{% macro m() %}{% endmacro %}{% set a.m = m %}{% set a.get = {}.get %}"
          "{% for x in [1] %}{% set a.loop = loop %}{% endfor %}{% for i in range(3000) %}"
          "{% set a.chain = namespace(next=a.chain) %}{% endfor %}"),
      "(no error)");
  EXPECT_TRUE(has(
      render_error("{% set a = namespace() %}{% for x in [1] %}{% macro m() %}{% endmacro %}{% set a.m = m %}"
                   "{% endfor %}{{ a.m() }}"),
      "after the block that defined it"));
}

TEST(ChatHostile, J4OtherFilesAreNeverRead) {
  for (const std::string word : {"include", "import", "extends", "from", "block"}) {
    EXPECT_EQ(parse_error("\n {%- " + word + " 'x' %}"),
              "chat template line 2 column 6: statement '" + word + "' is not supported");
  }
}

TEST(ChatHostile, J5NothingOfTheHostIsReachable) {
  for (const std::string expression : {"''.__class__", "messages.__len__", "x._private", "''.format",
                                       "{}.__init__.__globals__", "range.__self__", "().__class__"})
    EXPECT_TRUE(has(render_error("{% set x = {} %}{{ " + expression + ".y }}"), "has no attribute"))
        << expression;
  for (const std::string call :
       {"open('x')", "eval('1')", "__import__('os')", "lipsum()", "cycler(1)", "joiner()"})
    EXPECT_TRUE(has(render_error("{{ " + call + " }}"), "is undefined")) << call;
  for (const std::string change :
       {"[].append(1)", "[].extend([1])", "{}.update({})", "{}.pop('a')", "{}.clear()", "{}.setdefault(1)"})
    EXPECT_TRUE(has(render_error("{{ " + change + " }}"), "has no attribute")) << change;
}

TEST(ChatHostile, J6RaisedTextIsCutAndEscaped) {
  EXPECT_EQ(render_error("{{ raise_exception('Only one system message') }}"), "Only one system message");
  EXPECT_EQ(render_error("{{ raise_exception('a\\nb\\x1b') }}"), "a\\x0ab\\x1b");
  const std::string error = render_error("{{ raise_exception('a' * 100000) }}");
  EXPECT_LT(error.size(), 600u);
  EXPECT_TRUE(error.starts_with("aaaa"));
}

TEST(ChatHostile, J7InputsOfTheTemplateCannotBeReplaced) {
  for (const std::string name :
       {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "range"}) {
    ChatInput input;
    input.extra.emplace_back(name, "x");
    EXPECT_EQ(render_error("x", input), "chat template: '" + name + "' cannot be given as an extra variable");
  }
  ChatInput input;
  input.extra.emplace_back("enable_thinking", false);
  input.extra.emplace_back("documents", ValueList{});
  EXPECT_EQ(
      render_error("{% if enable_thinking or documents is none %}{{ raise_exception('lost') }}{% endif %}",
                   input),
      "(no error)");
}

Value nested(size_t levels) {
  Value v = 1;
  for (size_t i = 0; i < levels; ++i) v = ValueObject{{"a", std::move(v)}};
  return v;
}

TEST(ChatHostile, J9DeepOrStrangeInputIsRefused) {
  ChatInput input;
  input.tools = ValueList{nested(100)};
  EXPECT_TRUE(has(render_error("{{ tools|tojson }}", input), "budget of depth 100"));
  input.tools = ValueList{nested(90)};
  EXPECT_EQ(render_error("{{ tools|tojson }}", input), "(no error)");
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    input.tools = ValueList{value};
    EXPECT_TRUE(has(render_error("{{ tools|tojson }}", input), "has no form in JSON"));
  }
  input.tools = nullptr;
  input.messages = ValueList{ValueObject{{"role", "user"}, {"content", std::string(20 << 20, 'a')}}};
  EXPECT_TRUE(has(render_error("x", input, patient()), "live bytes"));
}

TEST(ChatHostile, J8StrangeMessagesNeverCrashABuiltin) {
  const std::vector<Value> contents = {"text",
                                       5,
                                       1.5,
                                       true,
                                       nullptr,
                                       ValueList{},
                                       ValueObject{},
                                       ValueList{"x"},
                                       ValueList{5},
                                       ValueList{ValueObject{{"type", "text"}}},
                                       ValueList{ValueObject{{"type", "image_url"}}},
                                       ValueList(10'000, ValueObject{{"type", "text"}, {"text", "p"}})};
  for (const std::string name : {"chatml", "gemma", "llama3"}) {
    const auto builtin = ChatTemplate::builtin(name);
    ASSERT_TRUE(builtin);
    for (const Value& content : contents)
      for (const std::string role : {"user", "system", "narrator", ""}) {
        ChatInput input;
        input.messages = ValueList{ValueObject{{"role", role}, {"content", content}}};
        (void)builtin->render(input, patient());
      }
    ChatInput none;
    none.messages = ValueList{};
    EXPECT_TRUE(builtin->render(none));
    for (const Value& messages :
         {Value(nullptr), Value("x"), Value(5), Value(ValueList{5, nullptr}), Value(ValueObject{})}) {
      none.messages = messages;
      (void)builtin->render(none);
    }
  }
}

TEST(ChatHostile, J10BrokenSourcesAreRefusedAtParse) {
  EXPECT_EQ(parse_error(std::string("ab\0c", 4)), "chat template line 1 column 3: a NUL at byte 2");
  EXPECT_EQ(parse_error("a\xff"), "chat template line 1 column 2: not UTF-8 at byte 1");
  EXPECT_EQ(parse_error("\xed\xa0\x80"), "chat template line 1 column 1: not UTF-8 at byte 0");
  EXPECT_EQ(parse_error("a\r\nbü\xff"), "chat template line 2 column 3: not UTF-8 at byte 6");
  EXPECT_EQ(parse_error(std::string((1 << 20) + 1, 'a')),
            "chat template: 1048577 bytes, at most 1048576 are allowed");
  EXPECT_EQ(parse_error(std::string(1 << 20, 'a')), "(no error)");
  EXPECT_TRUE(has(parse_error("{{ '\\x00' }}"), "bad \\x escape"));
  EXPECT_TRUE(has(parse_error("{{ '\\ud800' }}"), "bad \\u escape"));
  EXPECT_TRUE(has(parse_error("{{ '\\0' }}"), "NUL escape"));
  EXPECT_TRUE(has(parse_error("{{ '\\x4' }}"), "bad \\x escape"));
  for (const std::string source :
       {"{{", "{%", "{#", "{{ '", "{% raw %}", "{%-", "{{-", "{% if", "{{ \"\\", "{{ 1 -", "{% set a"})
    EXPECT_NE(parse_error(source), "(no error)") << source;
}

}  // namespace
}  // namespace tally::text
