#include "text/jinja/parse.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "base/text.h"
#include "text/jinja/lexer.h"

namespace glyd::text::jinja {
namespace {

using Kind = Token::Kind;

constexpr std::string_view kCure =
    "the template needs more Jinja than is implemented; pass another one with --chat-template-file";

class Parser {
 public:
  Parser(std::vector<Token> tokens, Template& out) : context_(out.what), tokens_(std::move(tokens)), out_(out) {}

  void run() { out_.body = body({}, ""); }

 private:
  // Counts nested calls of a recursive function.
  struct Nested {
    Nested(const Parser& parser, int& depth) : depth_(depth) {
      if (++depth > kMaxNesting) parser.error_here("nested deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    ~Nested() { --depth_; }
    int& depth_;
  };

  // --- tokens --------------------------------------------------------------------------------------------------------

  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token take() { return std::move(tokens_[std::min(at_++, tokens_.size() - 1)]); }

  bool is(Kind kind) const { return peek().kind == kind; }
  bool is(Kind kind, std::string_view text, std::size_t ahead = 0) const {
    return peek(ahead).kind == kind && peek(ahead).text == text;
  }
  bool is_op(std::string_view text) const { return is(Kind::Operator, text); }
  bool is_word(std::string_view text) const { return is(Kind::Name, text); }
  bool skip_op(std::string_view text) { return is_op(text) && (++at_, true); }
  bool skip_word(std::string_view text) { return is_word(text) && (++at_, true); }

  [[noreturn]] void error_here(const std::string& message) const {
    Context at = context_;
    at.line = peek().line;
    at.error("{}", message);
  }

  std::string found() const {
    switch (peek().kind) {
      case Kind::End:
        return "the end of the template";
      case Kind::PrintEnd:
        return "'}}'";
      case Kind::TagEnd:
        return "'%}'";
      case Kind::String:
        return "the string " + quote(peek().text, 40);
      default:
        return quote(peek().text, 40);
    }
  }

  [[noreturn]] void expected(std::string_view what) const {
    error_here("expected " + std::string(what) + ", found " + found());
  }

  void need_op(std::string_view text) {
    if (!skip_op(text)) expected("'" + std::string(text) + "'");
  }
  void need_word(std::string_view text) {
    if (!skip_word(text)) expected("'" + std::string(text) + "'");
  }
  void need_end() {
    if (!is(Kind::TagEnd)) expected("'%}'");
    ++at_;
  }
  std::string need_name() {
    static constexpr std::string_view kReserved[] = {"and",  "or",    "not",  "in",   "is",    "if",  "else",
                                                     "true", "false", "none", "True", "False", "None"};
    if (!is(Kind::Name) || std::count(std::begin(kReserved), std::end(kReserved), peek().text)) expected("a name");
    return take().text;
  }

  // --- statements ----------------------------------------------------------------------------------------------------

  // Statements up to a tag whose word is in `ends`, whose word is then the next token; `opener` names what is open.
  Body body(std::initializer_list<std::string_view> ends, const std::string& opener) {
    const Nested nested(*this, block_depth_);
    const int open_line = tokens_[at_ > 0 ? at_ - 1 : 0].line;
    Body statements;
    while (true) {
      const Token& token = peek();
      if (token.kind == Kind::End) {
        if (ends.size() == 0) return statements;
        error_here("the " + opener + " of line " + std::to_string(open_line) + " is never closed");
      }
      if (token.kind == Kind::TagBegin) {
        ++at_;
        if (!is(Kind::Name)) expected("a tag");
        if (std::count(ends.begin(), ends.end(), peek().text)) return statements;
        statements.push_back(tag());
      } else {
        auto statement = make(token.kind == Kind::Text ? Stmt::Kind::Text : Stmt::Kind::Print);
        if (token.kind == Kind::Text) {
          statement->text = take().text;
        } else {
          ++at_;
          statement->value = expression();
          if (!is(Kind::PrintEnd)) expected("'}}'");
          ++at_;
        }
        statements.push_back(std::move(statement));
      }
    }
  }

  std::unique_ptr<Stmt> make(Stmt::Kind kind) const {
    auto statement = std::make_unique<Stmt>();
    statement->kind = kind;
    statement->line = peek().line;
    return statement;
  }

  std::unique_ptr<Stmt> tag() {
    const std::string word = peek().text;
    if (word == "if") return if_tag();
    if (word == "for") return for_tag();
    if (word == "set") return set_tag();
    if (word == "macro") return macro_tag();
    if (word == "break" || word == "continue") {
      auto statement = make(word == "break" ? Stmt::Kind::Break : Stmt::Kind::Continue);
      if (loop_depth_ == 0) error_here("'" + word + "' outside of a loop");
      ++at_;
      need_end();
      return statement;
    }
    if (word == "generation") {  // marks what a model wrote, for training; the text is the same
      auto statement = make(Stmt::Kind::Group);
      ++at_;
      need_end();
      statement->body = body({"endgeneration"}, "generation");
      close("endgeneration");
      return statement;
    }
    static constexpr std::string_view kStray[] = {"else",   "elif",     "endif",        "endfor",
                                                  "endset", "endmacro", "endgeneration"};
    if (std::count(std::begin(kStray), std::end(kStray), word)) error_here("unexpected '" + word + "'");
    error_here("unknown tag " + quote(word, 40) + ": " + std::string(kCure));
  }

  void close(std::string_view word) {
    need_word(word);
    need_end();
  }

  std::unique_ptr<Stmt> if_tag() {
    auto statement = make(Stmt::Kind::If);
    do {
      ++at_;  // if, elif
      Stmt::Branch branch;
      branch.condition = expression();
      need_end();
      branch.body = body({"elif", "else", "endif"}, "if");
      statement->branches.push_back(std::move(branch));
    } while (is_word("elif"));
    if (skip_word("else")) {
      need_end();
      statement->otherwise = body({"endif"}, "if");
    }
    close("endif");
    return statement;
  }

  std::unique_ptr<Stmt> for_tag() {
    auto statement = make(Stmt::Kind::For);
    ++at_;
    const bool parenthesised = skip_op("(");
    do {
      statement->targets.push_back(need_name());
    } while (skip_op(","));
    if (parenthesised) need_op(")");
    need_word("in");
    statement->value = or_expression();  // not a whole expression: an `if` here is the loop's condition
    if (skip_word("if")) statement->condition = expression();
    if (is_word("recursive")) error_here("recursive loops are not supported: " + std::string(kCure));
    need_end();
    ++loop_depth_;
    statement->body = body({"else", "endfor"}, "for");
    --loop_depth_;
    if (skip_word("else")) {
      need_end();
      statement->otherwise = body({"endfor"}, "for");
    }
    close("endfor");
    return statement;
  }

  std::unique_ptr<Stmt> set_tag() {
    auto statement = make(Stmt::Kind::Set);
    ++at_;
    statement->targets.push_back(need_name());
    if (skip_op(".")) statement->targets.push_back(need_name());
    if (statement->targets.size() == 1 && is(Kind::TagEnd)) {
      ++at_;
      statement->kind = Stmt::Kind::SetBlock;
      statement->body = body({"endset"}, "set");
      close("endset");
      return statement;
    }
    need_op("=");
    statement->value = expression();
    need_end();
    return statement;
  }

  std::unique_ptr<Stmt> macro_tag() {
    auto statement = make(Stmt::Kind::Macro);
    ++at_;
    statement->name = need_name();
    need_op("(");
    while (!skip_op(")")) {
      Stmt::Parameter parameter{need_name(), nullptr};
      if (skip_op("=")) {
        parameter.fallback = expression();
      } else if (!statement->parameters.empty() && statement->parameters.back().fallback) {
        error_here("the parameter " + quote(parameter.name, 40) + " without a default follows one with a default");
      }
      statement->parameters.push_back(std::move(parameter));
      if (!is_op(")")) need_op(",");
    }
    need_end();
    const int loops = std::exchange(loop_depth_, 0);
    statement->body = body({"endmacro"}, "macro");
    loop_depth_ = loops;
    close("endmacro");
    return statement;
  }

  // --- expressions, the loosest binding first ------------------------------------------------------------------------

  ExprPtr node(Expr::Kind kind, int line) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = line;
    return e;
  }

  template <class... Parts>
  ExprPtr node(Expr::Kind kind, int line, ExprPtr first, Parts... rest) const {
    ExprPtr e = node(kind, line);
    add(*e, std::move(first));
    (add(*e, std::move(rest)), ...);
    return e;
  }

  void add(Expr& e, ExprPtr part) const {
    if (part) deepen(e, *part);
    e.parts.push_back(std::move(part));
  }

  void deepen(Expr& e, const Expr& part) const {
    e.depth = std::max(e.depth, part.depth + 1);
    if (e.depth > kMaxExpressionDepth) {
      error_here("an expression of more than " + std::to_string(kMaxExpressionDepth) + " levels");
    }
  }

  ExprPtr expression() {
    const Nested nested(*this, expression_depth_);
    ExprPtr e = or_expression();
    while (is_word("if")) {
      const int line = take().line;
      ExprPtr condition = or_expression();
      ExprPtr otherwise = skip_word("else") ? expression() : nullptr;
      e = node(Expr::Kind::If, line, std::move(condition), std::move(e), std::move(otherwise));
    }
    return e;
  }

  ExprPtr or_expression() {
    ExprPtr e = and_expression();
    while (is_word("or")) {
      const int line = take().line;
      ExprPtr right = and_expression();
      e = node(Expr::Kind::Or, line, std::move(e), std::move(right));
    }
    return e;
  }

  ExprPtr and_expression() {
    ExprPtr e = not_expression();
    while (is_word("and")) {
      const int line = take().line;
      ExprPtr right = not_expression();
      e = node(Expr::Kind::And, line, std::move(e), std::move(right));
    }
    return e;
  }

  ExprPtr not_expression() {
    const int line = peek().line;
    if (!skip_word("not")) return comparison();
    const Nested nested(*this, expression_depth_);
    return node(Expr::Kind::Not, line, not_expression());
  }

  ExprPtr comparison() {
    ExprPtr e = sum();
    ExprPtr chain;
    while (true) {
      const int line = peek().line;
      std::string op;
      if (is(Kind::Operator) &&
          (is_op("==") || is_op("!=") || is_op("<") || is_op("<=") || is_op(">") || is_op(">="))) {
        op = take().text;
      } else if (skip_word("in")) {
        op = "in";
      } else if (is_word("not") && is(Kind::Name, "in", 1)) {
        at_ += 2;
        op = "not in";
      } else {
        return chain ? std::move(chain) : std::move(e);
      }
      if (!chain) chain = node(Expr::Kind::Compare, line, std::move(e));
      add(*chain, sum());
      chain->operators.push_back(std::move(op));
    }
  }

  // Operators of one level, left to right.
  template <class Next>
  ExprPtr binary(std::initializer_list<std::string_view> operators, Next next) {
    ExprPtr e = (this->*next)();
    while (is(Kind::Operator) && std::count(operators.begin(), operators.end(), peek().text)) {
      const Token op = take();
      ExprPtr right = (this->*next)();
      e = node(Expr::Kind::Binary, op.line, std::move(e), std::move(right));
      e->name = op.text;
    }
    return e;
  }

  ExprPtr sum() { return binary({"+", "-"}, &Parser::concatenation); }
  ExprPtr concatenation() { return binary({"~"}, &Parser::product); }
  ExprPtr product() { return binary({"*", "/", "//", "%"}, &Parser::signed_value); }

  ExprPtr signed_value() { return filters(unfiltered()); }

  // A sign binds tighter than a filter: -1 | string is (-1) | string.
  ExprPtr unfiltered() {
    const int line = peek().line;
    if (skip_op("-")) {
      const Nested nested(*this, expression_depth_);
      return node(Expr::Kind::Negate, line, unfiltered());
    }
    if (is_op("+")) error_here("a '+' in front of a value is not supported: " + std::string(kCure));
    return members(primary());
  }

  ExprPtr primary() {
    const int line = peek().line;
    if (is(Kind::String)) {
      std::string text = take().text;
      while (is(Kind::String)) text += take().text;  // 'a' 'b' is 'ab'
      return constant(Value(make_str(std::move(text))), line);
    }
    if (is(Kind::Integer)) return integer();
    if (is(Kind::Float)) {
      const Token token = take();
      double x = 0;
      const auto result = std::from_chars(token.text.data(), token.text.data() + token.text.size(), x);
      if (result.ec != std::errc()) error_here("the number " + token.text + " is out of range");
      return constant(Value(x), line);
    }
    if (is(Kind::Name)) return name_or_constant();
    if (skip_op("(")) return parenthesised(line);
    if (skip_op("[")) return list_literal(line, "]");
    if (skip_op("{")) return dict_literal(line);
    expected("a value");
  }

  ExprPtr constant(Value value, int line) const {
    ExprPtr e = node(Expr::Kind::Constant, line);
    e->constant = std::move(value);
    return e;
  }

  ExprPtr integer() {
    const Token token = take();
    if (token.text.size() > 18) error_here("the number " + token.text + " is too large");
    Integer n = 0;
    for (const char c : token.text) n = n * 10 + (c - '0');
    return constant(Value(n), token.line);
  }

  ExprPtr name_or_constant() {
    const int line = peek().line;
    if (skip_word("true") || skip_word("True")) return constant(Value(true), line);
    if (skip_word("false") || skip_word("False")) return constant(Value(false), line);
    if (skip_word("none") || skip_word("None")) return constant(Value(None{}), line);
    ExprPtr e = node(Expr::Kind::Name, line);
    e->name = need_name();
    out_.names.insert(e->name);
    return e;
  }

  // (a) is a; (), (a,) and (a, b) are tuples, which are lists here.
  ExprPtr parenthesised(int line) {
    if (is_op(")")) return list_literal(line, ")");
    ExprPtr first = expression();
    if (skip_op(")")) return first;
    ExprPtr tuple = node(Expr::Kind::List, line, std::move(first));
    while (!skip_op(")")) {
      need_op(",");
      if (!is_op(")")) add(*tuple, expression());
    }
    return tuple;
  }

  ExprPtr list_literal(int line, std::string_view close) {
    ExprPtr list = node(Expr::Kind::List, line);
    while (!skip_op(close)) {
      add(*list, expression());
      if (!is_op(close)) need_op(",");
    }
    return list;
  }

  ExprPtr dict_literal(int line) {
    ExprPtr dict = node(Expr::Kind::Dict, line);
    while (!skip_op("}")) {
      add(*dict, expression());
      need_op(":");
      add(*dict, expression());
      if (!is_op("}")) need_op(",");
    }
    return dict;
  }

  // .name [index] (arguments), as often as they come.
  ExprPtr members(ExprPtr e) {
    while (true) {
      const int line = peek().line;
      if (skip_op(".")) {
        if (!is(Kind::Name)) expected("a name after '.'");
        e = node(Expr::Kind::Member, line, std::move(e));
        e->name = take().text;
      } else if (skip_op("[")) {
        e = subscript(std::move(e), line);
      } else if (is_op("(")) {
        e = node(Expr::Kind::Call, line, std::move(e));
        arguments(*e);
      } else {
        return e;
      }
    }
  }

  ExprPtr subscript(ExprPtr object, int line) {
    ExprPtr bounds[3];
    int colons = 0;
    while (!is_op("]")) {
      if (skip_op(":")) {
        if (++colons > 2) expected("']'");
      } else {
        if (bounds[colons]) expected("']'");
        bounds[colons] = expression();
      }
    }
    if (colons == 0 && !bounds[0]) expected("an index");
    need_op("]");
    if (colons == 0) return node(Expr::Kind::Item, line, std::move(object), std::move(bounds[0]));
    return node(Expr::Kind::Slice, line, std::move(object), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  }

  // (a, b, name=c), appended to `e`.
  void arguments(Expr& e) {
    need_op("(");
    while (!skip_op(")")) {
      if (is_op("*") || is_op("**")) error_here("arguments after '*' are not supported: " + std::string(kCure));
      if (is(Kind::Name) && is(Kind::Operator, "=", 1)) {
        std::string name = need_name();
        ++at_;
        ExprPtr value = expression();
        deepen(e, *value);
        e.keywords.emplace_back(std::move(name), std::move(value));
      } else {
        if (!e.keywords.empty()) error_here("an argument without a name follows one with a name");
        add(e, expression());
      }
      if (!is_op(")")) need_op(",");
    }
  }

  // | filter, is test, as often as they come.
  ExprPtr filters(ExprPtr e) {
    while (true) {
      const int line = peek().line;
      if (skip_op("|")) {
        e = node(Expr::Kind::Filter, line, std::move(e));
        if (!is(Kind::Name)) expected("a filter");
        e->filter = find_filter(peek().text);
        if (!e->filter) error_here("unknown filter " + quote(peek().text, 40) + ": " + std::string(kCure));
        e->name = take().text;
        if (is_op("(")) arguments(*e);
      } else if (skip_word("is")) {
        const bool negated = skip_word("not");
        e = test(std::move(e), line);
        if (negated) e = node(Expr::Kind::Not, line, std::move(e));
      } else {
        return e;
      }
    }
  }

  ExprPtr test(ExprPtr subject, int line) {
    ExprPtr e = node(Expr::Kind::Test, line, std::move(subject));
    if (!is(Kind::Name)) expected("a test");
    e->test = find_test(peek().text);
    if (!e->test) error_here("unknown test " + quote(peek().text, 40) + ": " + std::string(kCure));
    e->name = take().text;
    if (is_op("(")) {
      arguments(*e);
    } else if (is(Kind::String) || is(Kind::Integer) || is(Kind::Float) || is_op("[") || is_op("{") ||
               (is(Kind::Name) && !is_word("else") && !is_word("or") && !is_word("and") && !is_word("is") &&
                !is_word("if") && !is_word("in") && !is_word("not"))) {
      add(*e, members(primary()));  // x is eq 3
    }
    return e;
  }

  Context context_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  Template& out_;
  int block_depth_ = 0, expression_depth_ = 0, loop_depth_ = 0;
};

}  // namespace

Template parse(std::string_view source, const std::string& what) {
  if (source.size() > kMaxSource) {
    fail(Code::Model, "{}: a chat template of {} bytes; at most {} are accepted", printable(what), source.size(),
         kMaxSource);
  }
  const std::size_t good = valid_utf8_prefix(source);
  if (good != source.size()) fail(Code::Model, "{}: not UTF-8 at byte {}", printable(what), good);
  Template out;
  out.what = what;
  Parser(tokenize(source, what), out).run();
  return out;
}

std::string describe(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::Name:
      return expr.name;
    case Expr::Kind::Member:
      return describe(*expr.parts[0]) + "." + expr.name;
    case Expr::Kind::Item: {
      const Str* key = expr.parts[1]->constant.str();
      return describe(*expr.parts[0]) + (key ? "[" + quote(key->text, 40) + "]" : "[...]");
    }
    case Expr::Kind::Slice:
      return describe(*expr.parts[0]) + "[:]";
    case Expr::Kind::Call:
      return describe(*expr.parts[0]) + "(...)";
    case Expr::Kind::Filter:
      return "the result of " + expr.name;
    case Expr::Kind::Constant:
      return "a constant";
    default:
      return "an expression";
  }
}

}  // namespace glyd::text::jinja
