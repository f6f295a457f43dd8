#include "text/stream_decoder.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::text;

namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::parse(test::tiny_tokenizer_json(), "tiny");
  return tokenizer;
}

TokenId byte_id(char byte) {
  for (TokenId id = 0; id < 256; ++id) {
    if (tiny().bytes(id) == std::string_view(&byte, 1)) return id;
  }
  FAIL("no token for a byte");
  return -1;
}

// The pieces that come out for one token a byte, finish() last.
std::vector<std::string> stream(StreamDecoder decoder, const std::string& bytes) {
  std::vector<std::string> out;
  for (const char byte : bytes) out.push_back(decoder.push(byte_id(byte)));
  out.push_back(decoder.finish());
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const auto& part : parts) all += part;
  return all;
}

std::string until_stop(const std::string& bytes, const std::vector<std::string>& stops) {
  return joined(stream(StreamDecoder(tiny(), false, stops), bytes));
}

using Parts = std::vector<std::string>;

}  // namespace

TEST_CASE("a character comes out when it is complete", "[text]") {
  const StreamDecoder decoder(tiny(), false);
  CHECK(stream(decoder, " \U0001F468!") == Parts{" ", "", "", "", "\U0001F468", "!", ""});
  CHECK(stream(decoder, "\u00e9") == Parts{"", "\u00e9", ""});
  CHECK(stream(decoder, "\xf0\x9f\x91") == Parts{"", "", "", "\uFFFD"});
}

TEST_CASE("bytes that can no longer become a character come out at once", "[text]") {
  const StreamDecoder decoder(tiny(), false);
  CHECK(stream(decoder, "\x80") == Parts{"\uFFFD", ""});
  CHECK(stream(decoder, "\xff") == Parts{"\uFFFD", ""});
  CHECK(stream(decoder, "\xf0\x9f!") == Parts{"", "", "\uFFFD!", ""});
  CHECK(stream(decoder, "\xe0\x80") == Parts{"", "\uFFFD\uFFFD", ""});                // overlong
  CHECK(stream(decoder, "\xed\xa0\x80") == Parts{"", "\uFFFD\uFFFD", "\uFFFD", ""});  // a surrogate
  CHECK(stream(decoder, "\xf4\x90") == Parts{"", "\uFFFD\uFFFD", ""});                // above U+10FFFF
}

TEST_CASE("streaming any bytes equals decoding them at once", "[text]") {
  const std::string alphabet = "aA\xc3\xa9\xe0\xa0\xed\x9f\xf0\x9f\x91\xa8\xf4\x8f\x90\xff\x80\xbf";
  std::mt19937 random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes;
    for (unsigned n = random() % 10; n > 0; --n) bytes += alphabet[random() % alphabet.size()];
    std::vector<TokenId> ids;
    for (const char byte : bytes) ids.push_back(byte_id(byte));
    const Parts parts = stream(StreamDecoder(tiny(), false), bytes);
    CHECK(joined(parts) == tiny().decode(ids, false));
    for (const std::string& part : parts) CHECK(is_valid_utf8(part));
  }
}

TEST_CASE("special tokens are left out or shown", "[text]") {
  const TokenId end = *tiny().find("<|im_end|>");
  StreamDecoder skipping(tiny(), true), showing(tiny(), false);
  CHECK(skipping.push(end).empty());
  CHECK(showing.push(end) == "<|im_end|>");
  CHECK(showing.push(tiny().size()).empty());  // an id without a token
}

TEST_CASE("a stop string ends the text and never shows in part", "[text]") {
  const StreamDecoder decoder(tiny(), false, {"END"});
  CHECK(stream(decoder, "aENDb") == Parts{"a", "", "", "", "", ""});
  CHECK(stream(decoder, "aEN!") == Parts{"a", "", "", "EN!", ""});
  CHECK(stream(decoder, "EEND") == Parts{"", "E", "", "", ""});
  CHECK(stream(decoder, "EN") == Parts{"", "", "EN"});
  StreamDecoder one(tiny(), false, {"END"});
  for (const char c : std::string("xEN")) one.push(byte_id(c));
  CHECK_FALSE(one.stopped());
  one.push(byte_id('D'));
  CHECK(one.stopped());
  CHECK(one.push(byte_id('y')).empty());
  CHECK(one.finish().empty());
}

TEST_CASE("several stop strings: the first that is complete counts", "[text]") {
  CHECK(until_stop("one STOP two END", {"END", "STOP"}) == "one ");
  CHECK(until_stop("xabcd", {"bc", "abcd"}) == "xa");
  CHECK(until_stop("xabc", {"bc", "abc"}) == "x");  // complete together: the longer
  CHECK(until_stop("aabaabaaab", {"aabaaab"}) == "aab");
  CHECK(until_stop("a\u00e9\U0001F468z", {"\U0001F468"}) == "a\u00e9");
  CHECK(until_stop("a\xff\x41", {"\uFFFD"}) == "a");  // the text is searched, not the bytes
  CHECK(until_stop("abc", {}) == "abc");
}

TEST_CASE("stop strings are found however the text is cut", "[text]") {
  std::mt19937 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::string text, stop;
    for (int n = 0; n < 24; ++n) text += static_cast<char>('a' + random() % 2);
    for (unsigned n = 1 + random() % 5; n > 0; --n) stop += static_cast<char>('a' + random() % 2);
    CHECK(until_stop(text, {stop}) == text.substr(0, text.find(stop)));
  }
}

TEST_CASE("stop strings that cannot be met are refused", "[text]") {
  CHECK_THROWS_AS(StreamDecoder(tiny(), false, {""}), Error);
  CHECK_THROWS_AS(StreamDecoder(tiny(), false, {"\xff"}), Error);
}
