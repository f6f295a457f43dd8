#include "io/json.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/errors.h"

using namespace glyd;
using Catch::Matchers::Contains;

TEST_CASE("JSON from files is parsed strictly", "[io]") {
  CHECK(io::parse_json(R"( {"a": [1, 2.5, "x", null, true]} )", "f")["a"].size() == 5);
  CHECK_THROWS_WITH(io::parse_json("{} x", "f.json"), Contains("f.json") && Contains("not valid JSON") &&
                                                          Contains("; the file is damaged or was edited: fetch it"));
  CHECK_THROWS_WITH(io::parse_json("\n<html>", "f.json"), Contains("; it is a web page") && Contains("fetch it again"));
  CHECK_THROWS_WITH(io::parse_json("\"\xFF\"", "f.json"), Contains("not UTF-8") && Contains("fetch it again"));
  CHECK_THROWS_WITH(io::parse_json("", "f.json"), Contains("f.json"));
  CHECK_THROWS_WITH(io::parse_json("{\"a\":1,}", "f"), Contains("not valid JSON"));
  CHECK_THROWS_WITH(io::parse_json("{\"a\":1,\"a\":2}", "f"), Contains("'a'") && Contains("twice"));
  CHECK_THROWS_WITH(io::parse_json("\"\xff\"", "f"), Contains("not UTF-8 at byte 1"));
  CHECK_THROWS_WITH(io::parse_json("\"\\ud800\"", "f"), Contains("f"));
  CHECK_THROWS_WITH(io::parse_json("[1e999]", "f"), Contains("f"));
}

TEST_CASE("nesting is bounded, however deep the text goes", "[io]") {
  CHECK_NOTHROW(io::parse_json("[[[[]]]]", "f", 4));
  CHECK_THROWS_WITH(io::parse_json("[[[[[]]]]]", "f", 4), Contains("nested deeper than 4"));
  CHECK_THROWS_AS(io::parse_json(std::string(1'000'000, '['), "f"), Error);
}

TEST_CASE("integers keep their kind", "[io]") {
  CHECK(io::parse_json("18446744073709551615", "f").is_number_unsigned());
  CHECK(io::parse_json("-1", "f").is_number_integer());
  CHECK_FALSE(io::parse_json("1.0", "f").is_number_integer());
  CHECK_FALSE(io::parse_json("1e3", "f").is_number_integer());
  CHECK_FALSE(io::parse_json("18446744073709551616", "f").is_number_integer());
}

TEST_CASE("ordered objects keep the order of their keys", "[io]") {
  CHECK(io::parse_ordered_json(R"({"b":1,"a":2})", "f").dump() == R"({"b":1,"a":2})");
  CHECK_THROWS_AS(io::parse_ordered_json(R"({"b":1,"b":2})", "f"), Error);
}

TEST_CASE("many keys take no quadratic time, long tokens no long message", "[io]") {
  std::string text = "{\"k\":0";
  for (int i = 0; i < 300'000; ++i) text += ",\"" + std::to_string(i) + "\":0";
  CHECK(io::parse_ordered_json(text + "}", "f").size() == 300'001);  // minutes if each key were compared with all
  CHECK_THROWS_WITH(io::parse_ordered_json(text + ",\"7\":1}", "f"), Contains("'7'") && Contains("twice"));
  const std::string said =
      test::error_of(Code::Model, [] { io::parse_json("[\"" + std::string(1 << 20, 'x') + "\n\"]", "f"); });
  CHECK(said.size() < 400);
  CHECK_THAT(said, Contains("not valid JSON"));
}
