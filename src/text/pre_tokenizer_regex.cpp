// Patterns that no scanner knows, through PCRE2.
//
// The reference runs them on Oniguruma with Ruby's syntax. Where PCRE2 (UTF and UCP on) reads the same text differently
// it is made equal or refused, never guessed:
//   \s \S        PCRE2 counts U+180E as white space; written as \p{White_Space} and \P{White_Space} instead
//   ^ $          match at every line in Ruby: PCRE2_MULTILINE
//   \h \H \w \W \b \B \R \X \K \G \Q, [ or && inside a class, (*VERB), inline flags but i: refused
// PCRE2 10.42 knows Unicode 14: characters newer than that are unassigned to it, and so neither letters nor marks.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <chrono>
#include <cstdint>

#include "base/error.h"
#include "base/text.h"
#include "text/pre_tokenizer.h"
#include "text/unicode_classes.h"

namespace glyd::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 65536;
constexpr std::uint32_t kMatchLimit = 1'000'000;  // steps of one match
constexpr std::uint32_t kHeapLimitKiB = 32 * 1024;

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Pattern = std::unique_ptr<pcre2_code, Freed<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// `pattern` in the words of PCRE2 (head of this file).
std::string translate(std::string_view pattern, const std::string& what) {
  auto refuse = [&](std::size_t at, std::string_view construct) {
    fail(Code::Model, "{}: the pattern {} has {} at byte {}, which is not implemented", what, quote(pattern), construct,
         at);
  };
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (std::string_view("hHwWbBRXKGQ").find(escaped) != std::string_view::npos) {
        refuse(i - 1, quote(pattern.substr(i - 1, 2)));
      }
      if (escaped == 's') {
        out += "\\p{White_Space}";
      } else if (escaped == 'S') {
        out += "\\P{White_Space}";
      } else {
        out += {'\\', escaped};
      }
      continue;
    }
    if (in_class) {
      if (c == '[') refuse(i, "a class inside a class");
      if (rest.starts_with("&&")) refuse(i, "an intersection of classes");
      if (c == ']') in_class = false;
    } else if (c == '[') {
      if (rest.starts_with("[]") || rest.starts_with("[^]")) refuse(i, "a class that begins with ']'");
      in_class = true;
    } else if (rest.starts_with("(*")) {
      refuse(i, "'(*'");
    } else if (rest.starts_with("(?")) {
      const std::size_t end = rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", 2);
      const std::string_view flags = rest.substr(2, end == std::string_view::npos ? end : end - 2);
      if (flags.find_first_not_of("i-") != std::string_view::npos) refuse(i, "a flag other than i");
    }
    out += c;
  }
  return out;
}

// No text may keep the process busy for long: what a hostile pattern costs beyond kMatchLimit ends here.
class Deadline {
 public:
  explicit Deadline(std::size_t bytes)
      : end_(Clock::now() + std::chrono::seconds(5) + std::chrono::microseconds(bytes)) {}
  bool passed() const { return Clock::now() > end_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

class RegexSplitter : public Splitter {
 public:
  RegexSplitter(std::string_view pattern, const std::string& what) : shown_(quote(pattern)), what_(what) {
    if (pattern.size() > kMaxPatternBytes) {
      fail(Code::Model, "{}: a pattern of {} bytes; at most {} are read", what, pattern.size(), kMaxPatternBytes);
    }
    const std::string text = translate(pattern, what);
    const CompileContext context(pcre2_compile_context_create(nullptr));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    pattern_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                                 context.get()));
    if (!pattern_) {
      fail(Code::Model, "{}: the pattern {} does not compile: {} (at byte {})", what, shown_, message_of(code), offset);
    }
    pcre2_jit_compile(pattern_.get(), PCRE2_JIT_COMPLETE);  // without it (no executable memory) matching is slower
    limits_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(limits_.get(), kMatchLimit);
    pcre2_set_heap_limit(limits_.get(), kHeapLimitKiB);
  }

  void split(std::string_view text, const PieceSink& sink) const override {
    const Deadline deadline(text.size());
    std::size_t piece = 0;  // where the piece that is not handed out yet begins
    auto cut = [&](std::size_t end) {
      if (end > piece) sink(text.substr(piece, end - piece));
      piece = end;
    };
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = match_end(text, at);
      if (end != kNoMatch) cut(at);
      if (end != kNoMatch && end > at) {
        cut(end);
        at = end;
      } else {
        at += decode_at(text, at).length;
      }
      if (deadline.passed()) {
        fail(Code::Model, "{}: the pattern {} takes too long on a text of {} bytes", what_, shown_, text.size());
      }
    }
    cut(text.size());
  }

 private:
  static constexpr std::size_t kNoMatch = SIZE_MAX;

  // The end of the match that begins at `at`.
  std::size_t match_end(std::string_view text, std::size_t at) const {
    thread_local const MatchData data(pcre2_match_data_create(1, nullptr));
    const std::uint32_t options = PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK;
    auto match = [&](std::uint32_t more) {
      return pcre2_match(pattern_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options | more,
                         data.get(), limits_.get());
    };
    int code = match(0);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) code = match(PCRE2_NO_JIT);
    if (code == PCRE2_ERROR_NOMATCH) return kNoMatch;
    if (code < 0) {
      fail(Code::Model, "{}: the pattern {} cannot be matched at byte {}: {}", what_, shown_, at, message_of(code));
    }
    return pcre2_get_ovector_pointer(data.get())[1];
  }

  const std::string shown_, what_;
  Pattern pattern_;
  MatchContext limits_;
};

}  // namespace

std::unique_ptr<Splitter> make_regex_splitter(std::string_view pattern, const std::string& what) {
  return std::make_unique<RegexSplitter>(pattern, what);
}

}  // namespace glyd::text
