#pragma once
// Expressions of a template, by recursive descent, the loosest binding first.

#include <algorithm>
#include <initializer_list>

#include "text/jinja/parse.h"
#include "text/jinja/token_reader.h"

namespace glyd::text::jinja {

class ExpressionParser : protected TokenReader {
 protected:
  ExpressionParser(std::vector<Token> tokens, Template& out) : TokenReader(std::move(tokens), out.what), out_(out) {}

  ExprPtr expression();
  ExprPtr or_expression();

  Template& out_;

 private:
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

  void add(Expr& e, ExprPtr part) const;
  void deepen(Expr& e, const Expr& part) const;

  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr comparison();

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

  ExprPtr sum() { return binary({"+", "-"}, &ExpressionParser::concatenation); }
  ExprPtr concatenation() { return binary({"~"}, &ExpressionParser::product); }
  ExprPtr product() { return binary({"*", "/", "//", "%"}, &ExpressionParser::signed_value); }
  ExprPtr signed_value() { return filters(unfiltered()); }
  // A sign binds tighter than a filter: -1 | string is (-1) | string.
  ExprPtr unfiltered();
  ExprPtr primary();
  ExprPtr constant(Value value, int line) const;
  ExprPtr integer();
  ExprPtr name_or_constant();
  // (a) is a; (), (a,) and (a, b) are tuples, which are lists here.
  ExprPtr parenthesised(int line);
  ExprPtr list_literal(int line, std::string_view close);
  ExprPtr dict_literal(int line);
  // .name [index] (arguments), as often as they come.
  ExprPtr members(ExprPtr e);
  ExprPtr subscript(ExprPtr object, int line);
  // (a, b, name=c), appended to `e`.
  void arguments(Expr& e);
  // | filter, is test, as often as they come.
  ExprPtr filters(ExprPtr e);
  ExprPtr test(ExprPtr subject, int line);

  int expression_depth_ = 0;
};

}  // namespace glyd::text::jinja
