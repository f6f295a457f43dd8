#include "text/jinja/lexer.h"

#include <algorithm>
#include <cstdint>

#include "base/text.h"
#include "text/jinja/value.h"

namespace glyd::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string normal_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& what) : context_(what), source_(normal_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t open = next_opening(at_);
      if (open == std::string::npos) {
        put(Token::Kind::Text, source_.substr(at_));
        break;
      }
      text_before(open);
      const int line = context_.line;
      const char kind = source_[open + 1];
      advance(open + 2);
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        comment(line);
      } else {
        tag(kind == '{', line);
      }
    }
    put(Token::Kind::End, "");
    return std::move(tokens_);
  }

 private:
  void put(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), context_.line}); }

  bool follows(std::string_view s) const { return std::string_view(source_).substr(at_).starts_with(s); }

  // Moves to `to`, counting lines.
  void advance(std::size_t to) {
    context_.line += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    at_ = to;
  }

  std::size_t next_opening(std::size_t from) const {
    for (; (from = source_.find('{', from)) != std::string::npos; ++from) {
      const char next = from + 1 < source_.size() ? source_[from + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return from;
    }
    return from;
  }

  // The text between at_ and an opening, with what the opening takes away on its left.
  void text_before(std::size_t open) {
    std::string_view text = std::string_view(source_).substr(at_, open - at_);
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    if (sign == '-') {
      text = text.substr(0, stripped(text, false, true).end);
    } else if (sign != '+' && source_[open + 1] != '{') {
      const std::size_t newline = text.rfind('\n');
      const bool at_line_start = newline != std::string_view::npos || at_ == 0 || source_[at_ - 1] == '\n';
      const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      const Range rest = stripped(text.substr(start), true, false);
      if (at_line_start && rest.begin == rest.end) text = text.substr(0, start);
    }
    if (!text.empty()) put(Token::Kind::Text, std::string(text));
    advance(open);
  }

  // Behind a tag or comment whose closing had `sign` before it: what that takes away on its right.
  void trim_after(char sign, bool trims_newline) {
    if (sign == '-') {
      const std::string_view rest = std::string_view(source_).substr(at_);
      advance(at_ + stripped(rest, true, false).begin);
    } else if (sign != '+' && trims_newline && follows("\n")) {
      advance(at_ + 1);
    }
  }

  void comment(int line) {
    const std::size_t close = source_.find("#}", at_);
    if (close == std::string::npos) {
      context_.line = line;
      context_.error("a comment is opened with '{{#' and never closed with '#}}'");
    }
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance(close + 2);
    trim_after(sign, true);
  }

  void tag(bool is_print, int line) {
    const std::string_view close = is_print ? "}}" : "%}";
    tokens_.push_back({is_print ? Token::Kind::PrintBegin : Token::Kind::TagBegin, "", line});
    std::string brackets;  // what is open, so that the braces of a mapping do not end the tag
    while (true) {
      if (at_ >= source_.size()) {
        context_.line = line;
        context_.error("a tag is opened with '{}' and never closed with '{}'", is_print ? "{{" : "{%", close);
      }
      const char c = source_[at_];
      if (is_blank(c)) {
        advance(at_ + 1);
        continue;
      }
      if (brackets.empty()) {
        const bool has_sign = c == '-' || (c == '+' && !is_print);
        if (std::string_view(source_).substr(at_ + (has_sign ? 1 : 0)).starts_with(close)) {
          put(is_print ? Token::Kind::PrintEnd : Token::Kind::TagEnd, "");
          advance(at_ + (has_sign ? 3 : 2));
          trim_after(has_sign ? c : '\0', !is_print);
          return;
        }
      }
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    const char c = source_[at_];
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      put(Token::Kind::Name, source_.substr(at_, end - at_));
      at_ = end;
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string();
    } else {
      symbol(brackets);
    }
  }

  void number() {
    std::size_t end = at_;
    auto digits = [&] {
      while (end < source_.size() && is_digit(source_[end])) ++end;
    };
    auto at = [&](std::size_t i) { return i < source_.size() ? source_[i] : '\0'; };
    bool is_float = false;
    digits();
    if (at(end) == '.' && is_digit(at(end + 1))) is_float = true, ++end, digits();
    if (at(end) == 'e' || at(end) == 'E') {
      const std::size_t exponent = end + (at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1);
      if (is_digit(at(exponent))) is_float = true, end = exponent, digits();
    }
    if (is_name_start(at(end)) || end - at_ > 30) {
      context_.error("{} is not a number this understands",
                     quote(source_.substr(at_, std::min<std::size_t>(end + 1 - at_, 40))));
    }
    put(is_float ? Token::Kind::Float : Token::Kind::Integer, source_.substr(at_, end - at_));
    at_ = end;
  }

  void symbol(std::string& brackets) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", "<=", ">="};
    static constexpr std::string_view kOne = "+-*/%~|.,:=()[]{}<>";
    for (const std::string_view two : kTwo) {
      if (!follows(two)) continue;
      put(Token::Kind::Operator, std::string(two));
      at_ += 2;
      return;
    }
    const char c = source_[at_];
    if (kOne.find(c) == std::string_view::npos) {
      context_.error("unexpected character {}", quote(source_.substr(at_, character_length(source_, at_)), 16));
    }
    if (c == '(') brackets += ')';
    if (c == '[') brackets += ']';
    if (c == '{') brackets += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) context_.error("'{}' closes nothing that is open", c);
      brackets.pop_back();
    }
    put(Token::Kind::Operator, std::string(1, c));
    ++at_;
  }

  // A string literal: Python's escapes.
  void string() {
    const char quote_mark = source_[at_];
    const int line = context_.line;
    std::string value;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote_mark; ++i) {
      if (source_[i] != '\\' || i + 1 >= source_.size()) {
        value.push_back(source_[i]);
      } else {
        i = escape(i + 1, value);
      }
    }
    if (i >= source_.size()) context_.error("a string is opened with {} and never closed", quote_mark);
    put(Token::Kind::String, std::move(value));
    tokens_.back().line = line;
    advance(i + 1);
  }

  // The escape whose letter is at `i`; returns the place of its last character.
  std::size_t escape(std::size_t i, std::string& value) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeaning = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i];
    if (const auto k = kLetters.find(c); k != std::string_view::npos) {
      value.push_back(kMeaning[k]);
      return i;
    }
    if (c == '\n') return i;  // the line goes on
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char32_t code = 0;
    if (digits != 0) {
      for (; digits > 0; --digits) {
        const char h = ++i < source_.size() ? source_[i] : '\0';
        const char32_t digit = is_digit(h)            ? h - '0'
                               : h >= 'a' && h <= 'f' ? h - 'a' + 10
                               : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                                      : 99;
        if (digit == 99) context_.error("the escape '\\{}' in a string lacks hexadecimal digits", c);
        code = code * 16 + digit;
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        context_.error("the escape '\\{}' in a string is not a character (U+{:04X})", c,
                       static_cast<std::uint32_t>(code));
      }
    } else if (c >= '0' && c <= '7') {
      for (int n = 0; n < 3 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7'; ++n, ++i) {
        code = code * 8 + static_cast<char32_t>(source_[i] - '0');
      }
      --i;
    } else if (c == 'N') {
      context_.error("the escape '\\N' in a string is not supported; write the character itself");
    } else {  // Python keeps the backslash of an escape it does not know
      value.push_back('\\');
      value.push_back(c);
      return i;
    }
    append_utf8(value, code);
    return i;
  }

  Context context_;
  std::string source_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& what) { return Lexer(source, what).run(); }

}  // namespace glyd::text::jinja
