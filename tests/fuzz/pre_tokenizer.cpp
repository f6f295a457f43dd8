// The scanners against PCRE2 with the same pattern, and the file's own pattern on any text. Input: a byte that chooses,
// then text; or a pattern, a zero byte, text.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "text/pre_tokenizer_oracle.h"

using namespace glyd;

namespace {

void check(bool good) {
  if (!good) std::abort();
}

void compare(std::string_view pattern, const std::string& input) {
  static std::vector<std::pair<std::string, std::unique_ptr<text::Splitter>>> compiled;
  const text::Splitter* regex = nullptr;
  for (const auto& [text, splitter] : compiled) {
    if (text == pattern) regex = splitter.get();
  }
  if (!regex) regex = compiled.emplace_back(pattern, text::make_regex_splitter(pattern, "fuzz")).second.get();
  check(test::pieces(*text::make_scanner(pattern), input) == test::pieces(*regex, input));
}

void match(std::string_view pattern, const std::string& input) {
  try {
    std::string joined;
    for (const std::string& piece : test::pieces(*text::make_splitter(pattern, "fuzz"), input)) {
      check(!piece.empty());
      joined += piece;
    }
    check(joined == input);
  } catch (const Error& e) {
    check(e.code() == Code::Model);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t end = rest.find('\0');
  switch (data[0] % 4) {
    case 0:
      compare(text::kQwen2Regex, test::without_newer_characters(to_valid_utf8(rest)));
      break;
    case 1:
      compare(text::kQwen35Regex, test::without_newer_characters(to_valid_utf8(rest)));
      break;
    case 2:
      compare(text::kLlama3Regex, test::without_newer_characters(to_valid_utf8(rest)));
      break;
    default:
      if (end != std::string_view::npos) match(to_valid_utf8(rest.substr(0, end)), to_valid_utf8(rest.substr(end + 1)));
  }
  return 0;
}
