#include "text/jinja/expression_parser.h"

#include <charconv>

namespace glyd::text::jinja {

void ExpressionParser::add(Expr& e, ExprPtr part) const {
  if (part) deepen(e, *part);
  e.parts.push_back(std::move(part));
}

void ExpressionParser::deepen(Expr& e, const Expr& part) const {
  e.depth = std::max(e.depth, part.depth + 1);
  if (e.depth > kMaxExpressionDepth) {
    error_here("an expression of more than " + std::to_string(kMaxExpressionDepth) + " levels");
  }
}

ExprPtr ExpressionParser::expression() {
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

ExprPtr ExpressionParser::or_expression() {
  ExprPtr e = and_expression();
  while (is_word("or")) {
    const int line = take().line;
    ExprPtr right = and_expression();
    e = node(Expr::Kind::Or, line, std::move(e), std::move(right));
  }
  return e;
}

ExprPtr ExpressionParser::and_expression() {
  ExprPtr e = not_expression();
  while (is_word("and")) {
    const int line = take().line;
    ExprPtr right = not_expression();
    e = node(Expr::Kind::And, line, std::move(e), std::move(right));
  }
  return e;
}

ExprPtr ExpressionParser::not_expression() {
  const int line = peek().line;
  if (!skip_word("not")) return comparison();
  const Nested nested(*this, expression_depth_);
  return node(Expr::Kind::Not, line, not_expression());
}

ExprPtr ExpressionParser::comparison() {
  ExprPtr e = sum();
  ExprPtr chain;
  while (true) {
    const int line = peek().line;
    std::string op;
    if (is(Kind::Operator) && (is_op("==") || is_op("!=") || is_op("<") || is_op("<=") || is_op(">") || is_op(">="))) {
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

ExprPtr ExpressionParser::unfiltered() {
  const int line = peek().line;
  if (skip_op("-")) {
    const Nested nested(*this, expression_depth_);
    return node(Expr::Kind::Negate, line, unfiltered());
  }
  if (is_op("+")) error_here("a '+' in front of a value is not supported: " + std::string(kCure));
  return members(primary());
}

ExprPtr ExpressionParser::primary() {
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

ExprPtr ExpressionParser::constant(Value value, int line) const {
  ExprPtr e = node(Expr::Kind::Constant, line);
  e->constant = std::move(value);
  return e;
}

ExprPtr ExpressionParser::integer() {
  const Token token = take();
  if (token.text.size() > 18) error_here("the number " + token.text + " is too large");
  Integer n = 0;
  for (const char c : token.text) n = n * 10 + (c - '0');
  return constant(Value(n), token.line);
}

ExprPtr ExpressionParser::name_or_constant() {
  const int line = peek().line;
  if (skip_word("true") || skip_word("True")) return constant(Value(true), line);
  if (skip_word("false") || skip_word("False")) return constant(Value(false), line);
  if (skip_word("none") || skip_word("None")) return constant(Value(None{}), line);
  ExprPtr e = node(Expr::Kind::Name, line);
  e->name = need_name();
  out_.names.insert(e->name);
  return e;
}

ExprPtr ExpressionParser::parenthesised(int line) {
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

ExprPtr ExpressionParser::list_literal(int line, std::string_view close) {
  ExprPtr list = node(Expr::Kind::List, line);
  while (!skip_op(close)) {
    add(*list, expression());
    if (!is_op(close)) need_op(",");
  }
  return list;
}

ExprPtr ExpressionParser::dict_literal(int line) {
  ExprPtr dict = node(Expr::Kind::Dict, line);
  while (!skip_op("}")) {
    add(*dict, expression());
    need_op(":");
    add(*dict, expression());
    if (!is_op("}")) need_op(",");
  }
  return dict;
}

ExprPtr ExpressionParser::members(ExprPtr e) {
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

ExprPtr ExpressionParser::subscript(ExprPtr object, int line) {
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

void ExpressionParser::arguments(Expr& e) {
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

ExprPtr ExpressionParser::filters(ExprPtr e) {
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

ExprPtr ExpressionParser::test(ExprPtr subject, int line) {
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

}  // namespace glyd::text::jinja
