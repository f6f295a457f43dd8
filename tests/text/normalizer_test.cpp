#include "text/normalizer.h"

#include <utf8proc.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "base/text.h"

using namespace glyd;
using namespace glyd::text;

namespace {

std::string nfc(const std::string& s) { return std::string(NfcText(s).text()); }

// utf8proc's own way from string to string.
std::string reference(const std::string& s) {
  utf8proc_uint8_t* out = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(s.c_str()));
  std::string text = reinterpret_cast<const char*>(out);
  std::free(out);
  return text;
}

}  // namespace

TEST_CASE("NFC composes, reorders and replaces", "[text]") {
  CHECK(nfc("plain") == "plain");
  CHECK(nfc("e\u0301") == "\u00e9");
  CHECK(nfc("ae\u0301b") == "a\u00e9b");
  CHECK(nfc("\u0301e") == "\u0301e");
  CHECK(nfc("\u212b") == "\u00c5");  // a singleton
  CHECK(nfc("\uf900") == "\u8c48");
  CHECK(nfc("\u0958") == "\u0915\u093c");  // composition exclusion
  CHECK(nfc("a\u0315\u0323\u0300") == "\u1ea1\u0300\u0315");
  CHECK(nfc("\u1100\u1161\u11a8") == "\uac01");  // Hangul
  CHECK(nfc("\u1e9b\u0323") == "\u1e9b\u0323");
  CHECK(nfc("x\u0301y") == "x\u0301y");
}

TEST_CASE("text that is in NFC is handed back, not copied", "[text]") {
  const std::string input = "Stra\u00dfe नमस्ते 각 \u1ea1\u0300 x\u0301";
  CHECK(NfcText(input).text().data() == input.data());
}

TEST_CASE("NFC equals utf8proc's on random text", "[text]") {
  const std::u32string alphabet =
      U"aeo "
      U"\u0301\u0300\u0323\u0315\u031b\u0345\u0344\u1100\u1161\u11a8\uac00\u212b\u0915\u093c\u0958\u094d\u1e9b\u0f71"
      U"\u0f72"
      U"\u0f73\u00c5\U0001d157\U0001d165\U0001d15e\u2adc\ufb1d\u09c7\u09be";
  std::mt19937 random(7);
  for (int i = 0; i < 50000; ++i) {
    std::string input;
    for (unsigned n = random() % 12; n > 0; --n) {
      const char32_t any = 1 + random() % 0x3FFFF;
      append_utf8(input, random() % 4 || (any >= 0xD800 && any <= 0xDFFF) ? alphabet[random() % alphabet.size()] : any);
    }
    if (nfc(input) != reference(input)) FAIL("different NFC of " << printable(input));
  }
}

TEST_CASE("a long run of unordered marks does not take quadratic time", "[text]") {
  std::string input = "a";
  for (int i = 0; i < 200000; ++i) input += "\u0301\u0323";
  const std::string normal = nfc(input);
  CHECK(normal.size() == input.size());  // "a" and U+0323, 3 bytes, became U+1EA1, of 3 bytes
  CHECK(normal.starts_with("\u1ea1\u0323"));
  CHECK(normal.find("\u0301\u0323") == std::string::npos);
}

TEST_CASE("places in the input are found again in the normalised text", "[text]") {
  const NfcText text(
      "ae\u0301b\u212bc");  // a|e U+0301|b|U+212B|c at 0 1 4 5 8; normalised: a|U+00E9|b|U+00C5|c at 0 1 3 4 6
  REQUIRE(text.text() == "a\u00e9b\u00c5c");
  auto moved = [&](std::size_t begin, std::size_t end) {
    const Range range = text.to_normalized({begin, end});
    return std::pair(range.begin, range.end);
  };
  CHECK(moved(0, 1) == std::pair<std::size_t, std::size_t>(0, 1));
  CHECK(moved(4, 5) == std::pair<std::size_t, std::size_t>(3, 6));  // b and U+212B are one stretch
  CHECK(moved(2, 4) == std::pair<std::size_t, std::size_t>(1, 3));  // half of a rewritten stretch: all of it
  CHECK(moved(0, 2) == std::pair<std::size_t, std::size_t>(0, 3));
  CHECK(moved(8, 9) == std::pair<std::size_t, std::size_t>(6, 7));
  CHECK(moved(5, 9) == std::pair<std::size_t, std::size_t>(3, 7));
}
