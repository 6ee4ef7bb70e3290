#include "serve/openai/output_constraint.h"

#include "base/check.h"
#include "serve/openai/json.h"
#include "serve/openai/values.h"
#include "serve/openai/writer.h"

#include <algorithm>

namespace tally::serve::openai {
namespace {

// How calls are written, in parts of XGrammar's `tag` and `tags_with_separator`: each begins, names its
// function, holds its arguments, ends.
struct CallSpelling {
  std::string_view list_begin = {}, list_marker = {};  // around all of them: a marker, then text
  std::string_view list_end = {}, separator = {};
  std::string_view begin = {}, before_name = {}, after_name_marker = {}, after_name = {};
  std::string_view after_arguments = {}, end = {};
};

CallSpelling spelling_of(const text::OutputFormat& format) {
  constexpr std::string_view kName = "{\"name\": \"", kArguments = "\", \"arguments\": ";
  switch (format.tools) {
    case text::ToolFormat::kHermes:
      return {.separator = "\n",
              .begin = "<tool_call>",
              .before_name = "\n{\"name\": \"",
              .after_name = kArguments,
              .after_arguments = "}\n",
              .end = "</tool_call>"};
    case text::ToolFormat::kLlama3:
      return {.separator = "; ",
              .before_name = kName,
              .after_name = "\", \"parameters\": ",
              .after_arguments = "}"};
    case text::ToolFormat::kMistral:
      if (format.names_first) return {.begin = "[TOOL_CALLS]", .after_name_marker = "[ARGS]"};
      return {.list_begin = "[",
              .list_marker = "[TOOL_CALLS]",
              .list_end = "]",
              .separator = ", ",
              .before_name = kName,
              .after_name = kArguments,
              .after_arguments = "}"};
    case text::ToolFormat::kNone:
      break;
  }
  TALLY_UNREACHABLE("a format without calls");
}

// Writes the parts of a structural tag. Markers that are control tokens can only be written as those: their
// text would be other tokens.
class TagWriter {
 public:
  TagWriter(const text::OutputFormat& format, bool in_thoughts) : format_(format) {
    w_.begin_object().key("type").value("structural_tag").key("format");
    begin_sequence();
    write_thoughts(in_thoughts);
  }

  void write_calls(const ToolUse& use, const CallSpelling& spelling) {
    const bool is_named = use.choice == ToolUse::Choice::kNamed;
    write_marker(spelling.list_marker);
    write_text(spelling.list_begin);
    w_.begin_object().key("type").value("tags_with_separator").key("tags").begin_array();
    for (const Tool& tool : use.tools)
      if (!is_named || tool.name == use.named) write_call(tool, spelling);
    w_.end_array().key("separator").value(spelling.separator).key("at_least_one").value(true);
    w_.key("stop_after_first").value(is_named || !use.parallel).end_object();
    write_text(spelling.list_end);
  }
  // `member` of the element holds a string, or JSON.
  void write_element(const char* type, const char* member, const std::string& text, bool is_json) {
    w_.begin_object().key("type").value(type).key(member);
    is_json ? w_.raw(text) : w_.value(text);
    w_.end_object();
  }
  void write_raw(const std::string& element) { w_.raw(element); }

  std::string take() {
    end_sequence();
    w_.end_object();
    return w_.take();
  }

 private:
  void begin_sequence() { w_.begin_object().key("type").value("sequence").key("elements").begin_array(); }
  void end_sequence() { w_.end_array().end_object(); }

  const text::MarkerToken* token_of(std::string_view marker) const {
    for (const auto* tokens : {&format_.call_tokens, &format_.think_tokens})
      for (const text::MarkerToken& token : *tokens)
        if (token.text == marker) return &token;
    return nullptr;
  }
  void write_token(TokenId id) {
    w_.begin_object().key("type").value("token").key("token").value(raw(id)).end_object();
  }
  // An element of a sequence; none for an empty text.
  void write_text(std::string_view text) {
    if (!text.empty())
      w_.begin_object().key("type").value("const_string").key("value").value(text).end_object();
  }
  void write_marker(std::string_view marker) {
    const auto* token = token_of(marker);
    token ? write_token(token->id) : write_text(marker);
  }
  // The begin or end of a tag: text as it is, or a token.
  void write_edge(std::string_view marker) {
    if (const auto* token = token_of(marker))
      write_token(token->id);
    else
      w_.value(marker);
  }

  // Whatever there is up to and with the end of the thoughts, and the white space behind them. Thoughts that
  // the prompt has not begun may be left out.
  void write_thoughts(bool in_thoughts) {
    if (format_.think_begin.empty()) return;
    const bool by_token = token_of(format_.think_end) != nullptr;
    if (!in_thoughts) w_.begin_object().key("type").value("optional").key("content");
    begin_sequence();
    w_.begin_object().key("type").value("tag").key("begin");
    write_edge(in_thoughts ? "" : std::string_view(format_.think_begin));
    w_.key("content").begin_object().key("type").value(by_token ? "any_tokens" : "any_text").end_object();
    w_.key("end");
    write_edge(format_.think_end);
    w_.end_object();
    w_.begin_object().key("type").value("regex").key("pattern").value("\\n*").end_object();
    end_sequence();
    if (!in_thoughts) w_.end_object();
  }

  void write_call(const Tool& tool, const CallSpelling& spelling) {
    w_.begin_object().key("type").value("tag").key("begin");
    write_edge(spelling.begin);
    w_.key("content");
    begin_sequence();
    write_text(std::string(spelling.before_name) + tool.name + std::string(spelling.after_name));
    write_marker(spelling.after_name_marker);
    write_element("json_schema", "json_schema", tool.parameters, true);
    write_text(spelling.after_arguments);
    end_sequence();
    w_.key("end");
    write_edge(spelling.end);
    w_.end_object();
  }

  const text::OutputFormat& format_;
  Writer w_;
};

}  // namespace

std::string call_constraint(const ToolUse& use, const text::OutputFormat& format, bool in_thoughts) {
  TALLY_CHECK(use.is_forced(), "nothing is forced");
  TagWriter tag(format, in_thoughts);
  tag.write_calls(use, spelling_of(format));
  return tag.take();
}

sample::ConstraintSpec after_thoughts(const sample::ConstraintSpec& spec, const text::OutputFormat& format,
                                      bool in_thoughts) {
  using Kind = sample::ConstraintSpec::Kind;
  if (format.think_begin.empty()) return spec;
  TagWriter tag(format, in_thoughts);
  switch (spec.kind) {
    case Kind::kJsonObject:
      tag.write_element("json_schema", "json_schema", R"({"type":"object"})", true);
      break;
    case Kind::kJsonSchema:
      tag.write_element("json_schema", "json_schema", spec.text, true);
      break;
    case Kind::kRegex:
      tag.write_element("regex", "pattern", spec.text, false);
      break;
    case Kind::kGrammar:
      tag.write_element("grammar", "grammar", spec.text, false);
      break;
    case Kind::kStructuralTag: {
      Json given;
      const bool is_json = !parse_json(spec.text, given) && given.as<JsonObject>() != nullptr;
      const Json* inner = is_json ? Fields(*given.as<JsonObject>()).find("format") : nullptr;
      if (!inner) return spec;
      tag.write_raw(to_text(*inner));
    }
  }
  return {Kind::kStructuralTag, tag.take()};
}

}  // namespace tally::serve::openai
