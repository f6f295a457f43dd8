#include "io/json_reader.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace glyd;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using io::JsonReader;

namespace {

// Reads any one value and insists on the end of the text.
void read_all(const std::string& text, int max_depth = 16) {
  JsonReader reader(text, "f", max_depth);
  reader.skip();
  reader.end();
}

std::string string_of(const std::string& text) {
  JsonReader reader(text, "f");
  std::string out;
  reader.string(out);
  reader.end();
  return out;
}

}  // namespace

TEST_CASE("values are pulled one after the other", "[io]") {
  const std::string text =
      " { \"a\" : [ 1 , -2.5e3 ] ,\n\t\"b\":{}, \"c\":[], \"d\":\"x\", \"e\":null, \"f\":true}\r\n";
  JsonReader reader(text, "f");
  std::string key, value;
  REQUIRE(reader.kind() == JsonReader::Kind::Object);
  reader.begin_object();
  REQUIRE(reader.next_key(key));
  CHECK(key == "a");
  reader.begin_array();
  REQUIRE(reader.next_element());
  CHECK(reader.number() == "1");
  REQUIRE(reader.next_element());
  CHECK(reader.number() == "-2.5e3");
  CHECK_FALSE(reader.next_element());
  for (const char* name : {"b", "c"}) {
    REQUIRE(reader.next_key(key));
    CHECK(key == name);
    reader.skip();
  }
  REQUIRE(reader.next_key(key));
  REQUIRE(reader.kind() == JsonReader::Kind::String);
  reader.string(value);
  CHECK(value == "x");
  REQUIRE(reader.next_key(key));
  CHECK(reader.kind() == JsonReader::Kind::Null);
  reader.skip();
  REQUIRE(reader.next_key(key));
  CHECK(reader.kind() == JsonReader::Kind::Bool);
  reader.skip();
  CHECK_FALSE(reader.next_key(key));
  CHECK_NOTHROW(reader.end());
}

TEST_CASE("the JSON grammar is kept to the letter", "[io]") {
  for (const char* good : {"0", "-0", "10", "0.5", "1e3", "1E+3", "1.25e-3", "\"\"", "[]", "{}", "[[],{}]", "true",
                           "false", "null", " [1 , 2]\n", "{\"\":{\"\":0}}", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\""}) {
    INFO(good);
    CHECK_NOTHROW(read_all(good));
  }
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[",
                          "]",
                          "}",
                          "[1",
                          "[1,",
                          "[1,]",
                          "[,1]",
                          "[1 2]",
                          "{1:2}",
                          "{a:1}",
                          "{'a':1}",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{,}",
                          "{\"a\":1 \"b\":2}",
                          "01",
                          "-",
                          "-a",
                          "+1",
                          ".5",
                          "1.",
                          "1.e3",
                          "1e",
                          "1e+",
                          "0x10",
                          "tru",
                          "trueX",
                          "nul",
                          "NaN",
                          "Infinity",
                          "\"",
                          "\"\\\"",
                          "\"\\x\"",
                          "\"\\u12\"",
                          "\"\\u12g4\"",
                          "\"\n\"",
                          "1 2",
                          "{}x",
                          "[1}",
                          "{\"a\":1]",
                          "// c\n1",
                          "[1]/**/",
                          "\"a\\"}) {
    INFO(bad);
    CHECK_THROWS_WITH(read_all(bad), Contains("f: not valid JSON") && EndsWith(": fetch it again"));
  }
  CHECK_THROWS_WITH(read_all(std::string("[\0]", 3)), Contains("not valid JSON"));
  CHECK_THROWS_WITH(read_all("[1, x]"), Contains("byte 4") && Contains("'x]'"));
}

TEST_CASE("strings are decoded, halves of characters refused", "[io]") {
  CHECK(string_of("\"a\\u00e9\\n\"") == "a\xC3\xA9\n");
  CHECK(string_of("\"\\ud83d\\ude00\"") == "\xF0\x9F\x98\x80");
  CHECK(string_of("\"\\u0000\"") == std::string(1, '\0'));
  CHECK(string_of("\"\xF0\x9F\x98\x80\"") == "\xF0\x9F\x98\x80");
  for (const char* bad : {"\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\ud800\"", "\"\\ud800x\"", "\"\\ud83d\\n\""}) {
    INFO(bad);
    CHECK_THROWS_WITH(string_of(bad), Contains("surrogate"));
  }
  CHECK_THROWS_WITH(JsonReader("\"\xff\"", "f"), Contains("f: not UTF-8 at byte 1"));
}

TEST_CASE("depth is bounded without recursion", "[io]") {
  CHECK_NOTHROW(read_all("[{\"a\":[0]}]", 3));
  CHECK_THROWS_WITH(read_all("[{\"a\":[0]}]", 2), Contains("nested deeper than 2"));
  CHECK_THROWS_WITH(read_all(std::string(1 << 20, '[')), Contains("nested deeper than 16"));
}

TEST_CASE("unsigned integers are digits alone", "[io]") {
  CHECK(io::parse_unsigned("0") == 0u);
  CHECK(io::parse_unsigned("18446744073709551615") == 18446744073709551615u);
  for (const char* other : {"18446744073709551616", "-1", "-0", "1.0", "1e3", ""}) {
    INFO(other);
    CHECK_FALSE(io::parse_unsigned(other).has_value());
  }
}
