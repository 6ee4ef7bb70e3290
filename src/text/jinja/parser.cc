#include "text/jinja/parser.h"

#include "base/utf8.h"
#include "text/jinja/cursor.h"

#include <algorithm>
#include <array>

namespace tally::text::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : c_(tokenize(source)) {}

  std::unique_ptr<const Program> run() {
    auto program = std::make_unique<Program>();
    program->body = body({});
    program->names = c_.take_names();
    return program;
  }

 private:
  // Statements up to a tag that opens with one of `ends`, which stays to be read; with none, up to the end of
  // the source.
  Body body(Words ends) {
    const Cursor::Level level(c_);
    Body out;
    while (true) {
      if (c_.at(Tok::kEnd)) {
        if (ends.size() != 0)
          c_.fail_here("expected '" + std::string(*ends.begin()) + "', got the end of the template");
        return out;
      }
      if (c_.at(Tok::kText)) {
        out.push_back(make(StmtKind::kText));
        out.back().text = c_.take().text;
      } else if (c_.at(Tok::kOutputBegin)) {
        c_.take();
        out.push_back(make(StmtKind::kOutput));
        out.back().exprs.push_back(parse_tuple(c_));
        expect(Tok::kOutputEnd, "'}}'");
      } else {
        c_.take();
        if (!c_.at(Tok::kName)) c_.unexpected("a statement");
        if (std::find(ends.begin(), ends.end(), c_.token().text) != ends.end()) return out;
        out.push_back(statement());
      }
    }
  }

  Stmt make(StmtKind kind) const {
    Stmt s;
    s.kind = kind;
    s.line = c_.token().line;
    return s;
  }

  void expect(Tok kind, const char* what) {
    if (!c_.at(kind)) c_.unexpected(what);
    c_.take();
  }
  void block_end() { expect(Tok::kBlockEnd, "'%}'"); }

  // The closing tag of a block whose body was just read.
  void end_tag() {
    c_.take();
    block_end();
  }

  Stmt statement() {
    const std::string_view word = c_.token().text;
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro_statement();
    if (word == "filter") return filter_statement();
    if (word == "call") return call_statement();
    if (word == "with" || word == "generation") return scope_statement();
    if (word == "break" || word == "continue") return jump_statement();
    constexpr std::array<std::string_view, 8> kEnds = {"endif",     "endfor",  "endset", "endmacro",
                                                       "endfilter", "endcall", "else",   "elif"};
    if (std::find(kEnds.begin(), kEnds.end(), word) != kEnds.end())
      c_.fail_here("'" + std::string(word) + "' has no beginning");
    c_.fail_here("statement '" + base::escape_for_log(word, 64) + "' is not supported");
  }

  Stmt if_statement() {
    Stmt s = make(StmtKind::kIf);
    do {
      c_.take();
      s.exprs.push_back(parse_tuple(c_, false));
      block_end();
      s.bodies.push_back(body({"endif", "else", "elif"}));
    } while (c_.at_name("elif"));
    if (c_.at_name("else")) {
      end_tag();
      s.bodies.push_back(body({"endif"}));
    }
    end_tag();
    return s;
  }

  Stmt for_statement() {
    Stmt s = make(StmtKind::kFor);
    c_.take();
    s.target = target(false);
    if (!c_.skip_name("in")) c_.unexpected("'in'");
    s.exprs.push_back(parse_tuple(c_, false));
    s.exprs.push_back(c_.skip_name("if") ? parse_expr(c_) : nullptr);
    if (c_.at_name("recursive")) c_.fail_here("a recursive for is not supported");
    block_end();
    ++loops_;
    s.bodies.push_back(body({"endfor", "else"}));
    --loops_;
    if (c_.at_name("else")) {
      end_tag();
      s.bodies.push_back(body({"endfor"}));
    }
    end_tag();
    return s;
  }

  Target target(bool namespaces) {
    Target t;
    const bool bracket = c_.skip_op("(");
    t.names.push_back(name());
    if (namespaces && c_.skip_op(".")) {
      t.attribute = c_.expect_name();
      return t;
    }
    while (c_.skip_op(",")) {
      t.unpacks = true;
      if (!c_.at(Tok::kName) || c_.at_name("in")) break;
      t.names.push_back(name());
    }
    if (bracket) c_.expect_op(")");
    return t;
  }

  NameId name() {
    if (c_.at_op("(")) c_.fail_here("nested unpacking is not supported");
    const std::string_view text = c_.expect_name();
    constexpr std::array<std::string_view, 6> kConstants = {"true", "True", "false", "False", "none", "None"};
    if (std::find(kConstants.begin(), kConstants.end(), text) != kConstants.end())
      c_.fail_here("'" + std::string(text) + "' cannot be assigned to");
    return c_.intern(text);
  }

  Stmt set_statement() {
    Stmt s = make(StmtKind::kSet);
    c_.take();
    s.target = target(true);
    if (c_.skip_op("=")) {
      s.exprs.push_back(parse_tuple(c_));
      block_end();
      return s;
    }
    s.kind = StmtKind::kSetBlock;
    s.exprs.push_back(c_.skip_op("|") ? parse_filter_chain(c_) : nullptr);
    block_end();
    s.bodies.push_back(closed_body("endset"));
    return s;
  }

  // A body that break and continue cannot leave.
  Body closed_body(std::string_view end) {
    const uint32_t outer = std::exchange(loops_, 0);
    Body out = body({end});
    loops_ = outer;
    c_.take();
    if (c_.at(Tok::kName)) c_.take();  // endmacro may repeat the name
    block_end();
    return out;
  }

  // `(a, b=1)`; the defaults go behind what `s.exprs` holds.
  void parameters(Stmt& s) {
    c_.expect_op("(");
    const size_t before = s.exprs.size();
    while (!c_.skip_op(")")) {
      if (!s.params.empty()) c_.expect_op(",");
      if (c_.skip_op(")")) break;
      s.params.push_back(name());
      if (c_.skip_op("=")) {
        s.exprs.push_back(parse_expr(c_));
      } else if (s.exprs.size() != before) {
        c_.fail_here("a parameter without a default follows one with a default");
      }
    }
  }

  Stmt macro_statement() {
    Stmt s = make(StmtKind::kMacro);
    c_.take();
    s.name = name();
    parameters(s);
    block_end();
    s.bodies.push_back(closed_body("endmacro"));
    return s;
  }

  Stmt filter_statement() {
    Stmt s = make(StmtKind::kFilter);
    c_.take();
    s.exprs.push_back(parse_filter_chain(c_));
    block_end();
    s.bodies.push_back(closed_body("endfilter"));
    return s;
  }

  Stmt call_statement() {
    Stmt s = make(StmtKind::kCall);
    c_.take();
    s.exprs.push_back(nullptr);
    if (c_.at_op("(")) parameters(s);
    s.exprs[0] = parse_expr(c_);
    if (s.exprs[0]->kind != ExprKind::kCall) c_.unexpected("a call");
    block_end();
    s.bodies.push_back(closed_body("endcall"));
    return s;
  }

  Stmt scope_statement() {
    Stmt s = make(StmtKind::kScope);
    const bool with = c_.take().text == "with";
    while (with && !c_.at(Tok::kBlockEnd)) {
      if (!s.params.empty()) c_.expect_op(",");
      s.params.push_back(name());
      c_.expect_op("=");
      s.exprs.push_back(parse_expr(c_));
    }
    block_end();
    s.bodies.push_back(body({with ? "endwith" : "endgeneration"}));
    end_tag();
    return s;
  }

  Stmt jump_statement() {
    Stmt s = make(c_.at_name("break") ? StmtKind::kBreak : StmtKind::kContinue);
    if (loops_ == 0) c_.fail_here("'" + std::string(c_.token().text) + "' outside a loop");
    end_tag();
    return s;
  }

  Cursor c_;
  uint32_t loops_ = 0;  // for statements around this place
};

}  // namespace

void Cursor::unexpected(const std::string& wanted) const {
  const bool end = at(Tok::kEnd);
  fail_here("expected " + wanted + ", got " +
            (end ? "the end of the template" : "'" + base::escape_for_log(token().text, 40) + "'"));
}

void Cursor::too_deep() const {
  fail_here("too deep: more than " + std::to_string(kTreeDepthMax) + " levels of nesting");
}

NameId Cursor::intern(std::string_view name) {
  const auto [at, added] = ids_.try_emplace(std::string(name), static_cast<NameId>(names_.size()));
  if (added) names_.emplace_back(name);
  return at->second;
}

namespace {

// Errors: always a Fault, at the line and column of a byte of the source as given.
[[noreturn]] void fail_at(std::string_view source, size_t offset, std::string message) {
  const std::string before = normalize_newlines(std::string(source.substr(0, offset)) + '.');
  Fault fault{std::move(message), 1, false, 0};
  for (const char c : before) {
    if (c == '\n') {
      ++fault.line;
      fault.column = 0;
    } else {
      fault.column += (c & 0xC0) != 0x80 ? 1u : 0u;
    }
  }
  throw fault;
}

}  // namespace

std::unique_ptr<const Program> parse_program(std::string_view source) {
  if (source.size() > kSourceBytesMax)
    fail(std::to_string(source.size()) + " bytes, at most " + std::to_string(kSourceBytesMax) +
         " are allowed");
  if (const size_t nul = source.find('\0'); nul != std::string_view::npos)
    fail_at(source, nul, "a NUL at byte " + std::to_string(nul));
  if (const size_t bad = base::utf8_find_invalid(source); bad != std::string_view::npos)
    fail_at(source, bad, "not UTF-8 at byte " + std::to_string(bad));
  const std::string text = normalize_newlines(source);
  return Parser(text).run();
}

}  // namespace tally::text::jinja
