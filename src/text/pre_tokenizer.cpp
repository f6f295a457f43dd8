#include "text/pre_tokenizer.h"

#include <cstdint>
#include <utility>

#include "text/unicode_classes.h"

namespace glyd::text {

const std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen35Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// The published patterns differ in what belongs to a word and in how many digits go together.
class Scanner : public Splitter {
 public:
  Scanner(std::uint8_t word, int digits) : word_(word), digits_(digits) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = next(text, at);
      sink(text.substr(at, end - at));
      at = end;
    }
  }

 private:
  struct Char {
    std::uint8_t flags = 0;
    unsigned length = 0;  // bytes; 0 at the end of the text
    bool is(int mask) const { return (flags & mask) != 0; }
  };

  Char at(std::string_view text, std::size_t position) const {
    if (position >= text.size()) return {};
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) return {classes_.ascii(byte), 1};
    const CodePoint c = decode_at(text, position);
    return {classes_[c.value], c.length};
  }

  bool is_other(Char c) const { return c.length != 0 && !c.is(word_ | kNumber | kSpace); }

  // The end of the run of characters with one of the classes in `mask`.
  std::size_t run(std::string_view text, std::size_t position, int mask) const {
    for (Char c = at(text, position); c.is(mask); c = at(text, position)) position += c.length;
    return position;
  }

  // 's 't 're 've 'm 'll 'd without regard to case: the bytes after the apostrophe, 0 when it is none of them.
  static std::size_t contraction(std::string_view rest) {
    if (rest.empty()) return 0;
    if (rest.starts_with("\u017F")) return 2;  // the long s is an s
    auto lower = [&](std::size_t i) { return i < rest.size() ? static_cast<char>(rest[i] | 0x20) : '\0'; };
    const char first = lower(0), second = lower(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1;
    if ((first == 'r' || first == 'v') && second == 'e') return 2;
    return first == 'l' && second == 'l' ? 2 : 0;
  }

  // The alternatives of the pattern in their order; returns the end of the piece that begins at `begin`.
  std::size_t next(std::string_view text, std::size_t begin) const {
    const Char c = at(text, begin);
    const std::size_t second = begin + c.length;
    if (text[begin] == '\'') {
      if (const std::size_t length = contraction(text.substr(second))) return second + length;
    }
    // [^\r\n\p{L}\p{N}]?\p{L}+
    if (c.is(word_)) return run(text, second, word_);
    const Char d = at(text, second);
    if (d.is(word_) && !c.is(kNewline | kNumber)) return run(text, second + d.length, word_);
    // \p{N} or \p{N}{1,3}
    if (c.is(kNumber)) {
      std::size_t end = second;
      for (int i = 1; i < digits_; ++i) {
        const Char digit = at(text, end);
        if (!digit.is(kNumber)) break;
        end += digit.length;
      }
      return end;
    }
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    if (is_other(c) || (text[begin] == ' ' && is_other(d))) {
      std::size_t end = second;
      for (Char e = at(text, end); is_other(e); e = at(text, end)) end += e.length;
      return run(text, end, kNewline);
    }
    // \s*[\r\n]+|\s+(?!\S)|\s+
    std::size_t end = begin, last = begin, after_newline = begin;
    for (Char e = c; e.is(kSpace); e = at(text, end)) {
      last = end;
      end += e.length;
      if (e.is(kNewline)) after_newline = end;
    }
    if (after_newline != begin) return after_newline;
    return end == text.size() || last == begin ? end : last;
  }

  const UnicodeClasses& classes_ = UnicodeClasses::get();
  const std::uint8_t word_;
  const int digits_;
};

}  // namespace

std::unique_ptr<Splitter> make_scanner(std::string_view pattern) {
  if (pattern == kQwen2Regex) return std::make_unique<Scanner>(kLetter, 1);
  if (pattern == kQwen35Regex) return std::make_unique<Scanner>(kLetter | kMark, 1);
  if (pattern == kLlama3Regex) return std::make_unique<Scanner>(kLetter, 3);
  return nullptr;
}

std::unique_ptr<Splitter> make_splitter(std::string_view pattern, const std::string& what) {
  if (auto scanner = make_scanner(pattern)) return scanner;
  return make_regex_splitter(pattern, what);
}

void PreTokenizer::split_from(std::size_t step, std::string_view text, const PieceSink& sink) const {
  if (step == steps_.size()) {
    if (!text.empty()) sink(text);
    return;
  }
  if (step + 1 == steps_.size()) return steps_[step]->split(text, sink);
  steps_[step]->split(text, [&](std::string_view piece) { split_from(step + 1, piece, sink); });
}

}  // namespace glyd::text
