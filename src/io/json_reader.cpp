#include "io/json_reader.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace glyd::io {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string what_broke_json(std::string_view text) {
  const auto start = text.find_first_not_of(" \t\r\n");
  const bool page = start != std::string_view::npos && text[start] == '<';
  return page ? "it is a web page, the download went wrong" : "the file is damaged or was edited";
}

JsonReader::JsonReader(std::string_view text, std::string what, int max_depth, std::string cure)
    : text_(text),
      what_(std::move(what)),
      cure_(what_broke_json(text) + ": " + std::move(cure)),
      max_depth_(static_cast<std::size_t>(max_depth)) {
  const std::size_t good = valid_utf8_prefix(text);
  if (good != text.size()) fail(Code::Model, "{}: not UTF-8 at byte {}; {}", printable(what_), good, cure_);
}

void JsonReader::wrong(std::string_view expected) {
  fail(Code::Model, "{}: not valid JSON: byte {}: expected {}, found {}; {}", printable(what_), at_, expected,
       at_ < text_.size() ? quote(preview(20)) : "the end", cure_);
}

std::string_view JsonReader::preview(std::size_t max_bytes) {
  std::size_t length = std::min(max_bytes, text_.size() - at_);
  // Not in the middle of a character.
  while (length > 0 && at_ + length < text_.size() &&
         (static_cast<unsigned char>(text_[at_ + length]) & 0xC0) == 0x80) {
    --length;
  }
  return text_.substr(at_, length);
}

char JsonReader::peek() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
    ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::expect(char c, std::string_view name) {
  if (peek() != c || at_ == text_.size()) wrong(name);
  ++at_;
}

JsonReader::Kind JsonReader::kind() {
  const char c = peek();
  switch (c) {
    case '{':
      return Kind::Object;
    case '[':
      return Kind::Array;
    case '"':
      return Kind::String;
    case 't':
    case 'f':
      return Kind::Bool;
    case 'n':
      return Kind::Null;
    default:
      break;
  }
  if (c != '-' && !is_digit(c)) wrong("a value");
  return Kind::Number;
}

void JsonReader::begin_object() {
  expect('{', "an object");
  if (first_.size() == max_depth_) fail(Code::Model, "{}: nested deeper than {} levels", printable(what_), max_depth_);
  first_.push_back(true);
}

void JsonReader::begin_array() {
  expect('[', "a list");
  if (first_.size() == max_depth_) fail(Code::Model, "{}: nested deeper than {} levels", printable(what_), max_depth_);
  first_.push_back(true);
}

// Past the comma before the next item, or past `close`.
bool JsonReader::next_item(char close) {
  const bool first = first_.back();
  const char c = peek();
  if (c == close) {
    ++at_;
    first_.pop_back();
    return false;
  }
  if (!first) expect(',', close == '}' ? "',' or '}'" : "',' or ']'");
  first_.back() = false;
  return true;
}

bool JsonReader::next_key(std::string& key) {
  if (!next_item('}')) return false;
  if (peek() != '"') wrong("a key");
  string(key);
  expect(':', "':'");
  return true;
}

bool JsonReader::next_element() { return next_item(']'); }

void JsonReader::string(std::string& out) {
  expect('"', "a string");
  out.clear();
  for (;;) {
    std::size_t plain = at_;
    while (plain < text_.size() && text_[plain] != '"' && text_[plain] != '\\' &&
           static_cast<unsigned char>(text_[plain]) >= 0x20) {
      ++plain;
    }
    out.append(text_, at_, plain - at_);
    at_ = plain;
    if (at_ == text_.size()) wrong("'\"' at the end of a string");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') wrong("no control character inside a string");
    append_utf8(out, escape());
  }
  ++at_;
}

// The character of an escape sequence; a surrogate pair is one character, half of one an error.
char32_t JsonReader::escape() {
  const std::size_t start = at_;
  ++at_;
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  switch (c) {
    case '"':
    case '\\':
    case '/':
      return static_cast<char32_t>(c);
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'u':
      break;
    default:
      at_ = start;
      wrong("an escape sequence");
  }
  const char32_t high = hex4();
  if (high < 0xD800 || high > 0xDFFF) return high;
  if (high <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const char32_t low = hex4();
    if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }
  at_ = start;
  wrong("a character, not half of a surrogate pair");
}

char32_t JsonReader::hex4() {
  std::uint32_t value = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) wrong("four hexadecimal digits");
  at_ += 4;
  return value;
}

std::string_view JsonReader::number() {
  const char first = peek();
  const std::size_t start = at_;
  const auto digits = [&] {
    if (at_ == text_.size() || !is_digit(text_[at_])) wrong("a digit");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  };
  if (first == '-') ++at_;
  if (at_ < text_.size() && text_[at_] == '0') {
    ++at_;
  } else {
    digits();
  }
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
  return text_.substr(start, at_ - start);
}

void JsonReader::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) wrong("a value");
  at_ += word.size();
}

void JsonReader::skip() {
  // Objects and arrays that open inside are walked with `first_` as the stack, so depth stays bounded.
  const std::size_t outside = first_.size();
  std::vector<bool> is_object;
  std::string scratch;
  do {
    if (!is_object.empty() && !(is_object.back() ? next_key(scratch) : next_element())) {
      is_object.pop_back();
      continue;
    }
    switch (kind()) {
      case Kind::Object:
        begin_object(), is_object.push_back(true);
        break;
      case Kind::Array:
        begin_array(), is_object.push_back(false);
        break;
      case Kind::String:
        string(scratch);
        break;
      case Kind::Number:
        number();
        break;
      case Kind::Bool:
        literal(text_[at_] == 't' ? "true" : "false");
        break;
      case Kind::Null:
        literal("null");
        break;
    }
  } while (first_.size() > outside);
}

void JsonReader::end() {
  peek();
  if (at_ != text_.size()) wrong("nothing after the value");
}

const char* kind_name(JsonReader::Kind kind) {
  switch (kind) {
    case JsonReader::Kind::Object:
      return "an object";
    case JsonReader::Kind::Array:
      return "a list";
    case JsonReader::Kind::String:
      return "a string";
    case JsonReader::Kind::Number:
      return "a number";
    case JsonReader::Kind::Bool:
      return "true or false";
    case JsonReader::Kind::Null:
      break;
  }
  return "null";
}

std::optional<std::uint64_t> parse_unsigned(std::string_view number) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return value;
}

}  // namespace glyd::io
