#pragma once
// The tokens of a template, taken one after the other, and what is said when another one was expected.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "text/jinja/lexer.h"
#include "text/jinja/value.h"

namespace glyd::text::jinja {

inline constexpr std::string_view kCure =
    "the template needs more Jinja than is implemented; pass another one with --chat-template-file";

class TokenReader {
 protected:
  using Kind = Token::Kind;

  // `what` opens every message.
  TokenReader(std::vector<Token> tokens, const std::string& what) : context_(what), tokens_(std::move(tokens)) {}

  // Counts nested calls of a recursive function.
  struct Nested {
    Nested(const TokenReader& reader, int& depth) : depth_(depth) {
      if (++depth > kMaxNesting) reader.error_here("nested deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    ~Nested() { --depth_; }
    int& depth_;
  };

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

  Context context_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace glyd::text::jinja
