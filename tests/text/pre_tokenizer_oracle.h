#pragma once
// What the tests and the fuzzer of the pre-tokenizer share: the pieces of a text, and where scanner and PCRE2 may
// differ.

#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "text/pre_tokenizer.h"
#include "text/unicode_classes.h"

namespace glyd::test {

inline std::vector<std::string> pieces(const text::Splitter& splitter, std::string_view input) {
  std::vector<std::string> found;
  splitter.split(input, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

// Whether PCRE2's tables, which are older than the scanner's, have no such character where the scanner sees one.
inline bool is_newer_than_pcre2(char32_t cp) {
  if (!(text::UnicodeClasses::get()[cp] & (text::kLetter | text::kNumber | text::kMark))) return false;
  static const auto unassigned_after_x = text::make_regex_splitter("x(?=\\p{Cn})", "test");
  std::string probe = "x";
  append_utf8(probe, cp);
  return pieces(*unassigned_after_x, probe).size() == 2;  // without a match the probe is one piece
}

// `input` with such characters left out; `input` is UTF-8.
inline std::string without_newer_characters(std::string_view input) {
  std::string kept;
  for (std::size_t at = 0; at < input.size();) {
    const text::CodePoint c = text::decode_at(input, at);
    if (!is_newer_than_pcre2(c.value)) kept += input.substr(at, c.length);
    at += c.length;
  }
  return kept;
}

}  // namespace glyd::test
