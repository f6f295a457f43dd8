#include "base/text.h"

#include <catch2/catch.hpp>

using namespace glyd;

TEST_CASE("UTF-8 is checked by Unicode's table of well-formed sequences", "[base]") {
  CHECK(is_valid_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x91\xA8"));
  CHECK(valid_utf8_prefix("ab\xC0\x80") == 2);          // overlong
  CHECK(valid_utf8_prefix("ab\xED\xA0\x80") == 2);      // surrogate
  CHECK(valid_utf8_prefix("ab\xF4\x90\x80\x80") == 2);  // beyond U+10FFFF
  CHECK(valid_utf8_prefix("ab\xE2\x82") == 2);          // cut short
  CHECK(utf8_fault("ab\xE2\x82") == " is not UTF-8: byte 2 is 0xe2");
  CHECK(utf8_fault("a\xC3\xA9").empty());
}

TEST_CASE("malformed UTF-8 becomes U+FFFD once for each maximal subpart", "[base]") {
  CHECK(to_valid_utf8("a\xF0\x9F\x91") == "a\xEF\xBF\xBD");
  CHECK(to_valid_utf8("\xE2\x82"
                      "b") ==
        "\xEF\xBF\xBD"
        "b");
  CHECK(to_valid_utf8("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(to_valid_utf8("\xFF\xFE") == "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("names from files are printed on one line without control characters", "[base]") {
  CHECK(printable("a\nb\x1b[31m") == "a\\nb\\x1b[31m");
  CHECK(printable("\xE2\x80\xAE") == "\\u{202e}");
  CHECK(printable("\xC2\x85") == "\\u{85}");
  CHECK(printable("\xFFz") == "\\xffz");
  CHECK(quote("model.norm.weight") == "'model.norm.weight'");
  const std::string shortened = quote(std::string(5000, 'x'));
  CHECK(shortened.size() < 160);
  CHECK(shortened.find("(5000 bytes)") != std::string::npos);
}

TEST_CASE("code points are encoded as UTF-8", "[base]") {
  std::string s;
  for (const char32_t cp : {U'A', U'\u00e9', U'\u20ac', U'\U0001F468'}) append_utf8(s, cp);
  CHECK(s == "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x91\xA8");
}
