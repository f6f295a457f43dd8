#include "text/pre_tokenizer.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "support/errors.h"
#include "text/pre_tokenizer_oracle.h"

using namespace glyd;
using namespace glyd::text;
using test::pieces;
using Pieces = std::vector<std::string>;

namespace {

Pieces scan(std::string_view pattern, std::string_view input) { return pieces(*make_scanner(pattern), input); }
Pieces match(std::string_view pattern, std::string_view input) {
  return pieces(*make_regex_splitter(pattern, "p"), input);
}

std::string error_of(std::string_view pattern) {
  return test::error_of(Code::Model, [&] { make_regex_splitter(pattern, "tokenizer.json: pre_tokenizer"); });
}

}  // namespace

TEST_CASE("the Qwen2 pattern cuts as specified", "[text]") {
  const std::vector<std::pair<std::string, Pieces>> cases = {
      {"  Hello", {" ", " Hello"}},
      {"a  \n  b", {"a", "  \n", " ", " b"}},
      {"a \n\n b", {"a", " \n\n", " b"}},
      {"x\n  ", {"x", "\n", "  "}},
      {"\t\tint a;", {"\t", "\tint", " a", ";"}},
      {"12345", {"1", "2", "3", "4", "5"}},
      {" 12", {" ", "1", "2"}},
      {"it's IT'S we'LL 'sX", {"it", "'s", " IT", "'S", " we", "'LL", " '", "sX"}},
      {"'tis", {"'t", "is"}},
      {"don\u2019t", {"don", "\u2019t"}},
      {"foo_bar", {"foo", "_bar"}},
      {"(x):\n\n  y", {"(x", "):\n\n", " ", " y"}},
      {"a\u00a0b", {"a", "\u00a0b"}},
      {"你好，世界！", {"你好", "，世界", "！"}},
      {"नमस्ते", {"नमस", "्त", "े"}},
      {std::string("x\0y", 3), {"x", std::string("\0y", 2)}},
      {"''''s", {"''''", "s"}},
      {"'\u017F", {"'\u017F"}},                          // the long s is an s
      {"a\u180eb \u180e", {"a", "\u180eb", " \u180e"}},  // U+180E is no white space
      {"!\u200b\u001c\r\n\r\nx", {"!\u200b\u001c\r\n\r\n", "x"}},
      {"!\u0085\u0085x", {"!", "\u0085", "\u0085x"}},  // U+0085 is white space, but no line end
      {"", {}}};
  for (const auto& [input, expected] : cases) {
    CAPTURE(input);
    CHECK(scan(kQwen2Regex, input) == expected);
    CHECK(match(kQwen2Regex, input) == expected);
  }
}

TEST_CASE("Qwen3.5 keeps marks with letters, Llama 3 groups digits", "[text]") {
  CHECK(scan(kQwen35Regex, "नमस्ते") == Pieces{"नमस्ते"});
  CHECK(scan(kQwen35Regex, "1\u0301a\u0301!\u0301") == Pieces{"1", "\u0301a\u0301", "!\u0301"});
  CHECK(scan(kQwen35Regex, "123") == Pieces{"1", "2", "3"});
  CHECK(scan(kLlama3Regex, "1234567 12") == Pieces{"123", "456", "7", " ", "12"});
  CHECK(scan(kLlama3Regex, "½①Ⅷ٣") == Pieces{"½①Ⅷ", "٣"});
}

TEST_CASE("only the published patterns have a scanner", "[text]") {
  CHECK(make_scanner(std::string(kQwen2Regex) + " ") == nullptr);
  CHECK(make_scanner(kGpt2Regex) == nullptr);
}

TEST_CASE("the scanner cuts like PCRE2 with the same pattern", "[text]") {
  // Characters on both sides of every border that the pattern draws, and any others.
  const std::vector<std::string> alphabet = {
      "a",      "B",      "é",      "你",     "ſ",      "s",  "S",  "t",      "re", "'",      "'ll",    "'VE",
      "1",      "٣",      "½",      " ",      "  ",     "\t", "\n", "\r",     "\v", "\u0085", "\u00a0", "\u2028",
      "\u3000", "\u180e", "\u200b", "\u001c", "\ufeff", "!",  "_",  "\u0301", "्",   "👍",      "\u200d", "\u20e3"};
  std::mt19937 random(20240607);
  auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (const auto pattern : {kQwen2Regex, kQwen35Regex, kLlama3Regex}) {
    const auto scanner = make_scanner(pattern);
    const auto regex = make_regex_splitter(pattern, "p");
    for (int i = 0; i < 20000; ++i) {
      std::string input;
      for (std::size_t n = below(16); n > 0; --n) {
        if (below(4) != 0) {
          input += alphabet[below(alphabet.size())];
        } else if (const auto cp = static_cast<char32_t>(below(below(2) ? 0x3100 : 0x110000));
                   cp < 0xD800 || cp > 0xDFFF) {
          append_utf8(input, cp);
        }
      }
      input = test::without_newer_characters(input);
      const Pieces scanned = pieces(*scanner, input);
      if (scanned != pieces(*regex, input)) {
        FAIL("different pieces of " << printable(input) << " with " << pattern);
      }
    }
  }
}

TEST_CASE("a megabyte of one character is cut in linear time", "[text]") {
  for (const char* unit : {" ", "\n", "a", "!", "1", "'", "\u00a0", " \n"}) {
    std::string input;
    while (input.size() < (1u << 20)) input += unit;
    std::size_t total = 0;
    make_scanner(kQwen2Regex)->split(input, [&](std::string_view piece) { total += piece.size(); });
    CHECK(total == input.size());
  }
}

TEST_CASE("what lies between matches is a piece of its own", "[text]") {
  CHECK(match("b+", "aabbabb") == Pieces{"aa", "bb", "a", "bb"});
  CHECK(match("x", "abc") == Pieces{"abc"});
  CHECK(match("$", "ab\nc") == Pieces{"ab", "\nc"});  // an empty match cuts; $ matches at every line end
  CHECK(match("\\S+", "a\u180eb c") == Pieces{"a\u180eb", " ", "c"});
  CHECK(match("[^\\S\\n]+", " \n\u180e\t") == Pieces{" ", "\n\u180e", "\t"});
  CHECK(match("[一-龥]+", "a你好b") == Pieces{"a", "你好", "b"});
}

TEST_CASE("several steps cut the pieces of the one before", "[text]") {
  PreTokenizer steps;
  Pieces found;
  const PieceSink sink = [&](std::string_view piece) { found.emplace_back(piece); };
  steps.split("a1b", sink);
  CHECK(found == Pieces{"a1b"});
  found.clear();
  steps.add(make_splitter("\\p{N}{1,3}", "p"));
  steps.add(make_splitter("[a-c]", "p"));
  steps.split("1234abxyc", sink);
  CHECK(found == Pieces{"123", "4", "a", "b", "xy", "c"});
}

TEST_CASE("patterns that are damaged or mean something else to the reference are refused", "[text]") {
  CHECK_THAT(error_of("(a"), Catch::Contains("tokenizer.json: pre_tokenizer") && Catch::Contains("does not compile"));
  CHECK_THAT(error_of("a\\hb"), Catch::Contains("'\\h'") && Catch::Contains("byte 1"));
  for (const char* pattern :
       {"\\w+", "\\bx", "[[ab]c]", "[a&&b]", "[]a]", "(*UTF)a", "(?m:.)", "a\\Kb", "\\Qs\\E", "\\C"}) {
    CAPTURE(pattern);
    CHECK_FALSE(error_of(pattern).empty());
  }
  CHECK_FALSE(error_of(std::string(70000, 'a')).empty());
  CHECK(error_of("(?i:a)(?=b)(?!c)(?:d)\\\\s").empty());
}

TEST_CASE("a pattern that backtracks without end is an error, not a hang", "[text]") {
  const auto splitter = make_regex_splitter("(?:a|aa|aaa)*[bc]", "p");
  CHECK_THROWS_AS(pieces(*splitter, std::string(200, 'a')), Error);
}
