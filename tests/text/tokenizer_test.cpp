// With a vocabulary of 256 bytes and a few merges, everywhere.

#include "text/tokenizer.h"

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::text;
using Ids = std::vector<TokenId>;

namespace {

// In test::tiny_tokenizer_json: 256 bytes, then " t" 256, "he" 257, " a" 258, "in" 259, " the" 260, "re" 261, "on" 262,
// " w" 263, "ll" 264, "or" 265, "hell" 266, "hello" 267, ..., " world" 270; then the three added tokens from 276.
io::Json tiny_json() { return io::Json::parse(test::tiny_tokenizer_json()); }

Tokenizer parse(const io::Json& json) { return Tokenizer::parse(json.dump(), "dir/tokenizer.json"); }

std::string error_of(const io::Json& json) {
  return test::error_of(Code::Model, [&] { parse(json); });
}

// The error of the tiny file with `value` at `pointer`.
std::string error_with(const char* pointer, const io::Json& value) {
  io::Json json = tiny_json();
  json[io::Json::json_pointer(pointer)] = value;
  return error_of(json);
}

io::Json added(int id, const std::string& content, bool special, bool normalized = false) {
  return {{"id", id}, {"content", content}, {"special", special}, {"normalized", normalized}};
}

}  // namespace

TEST_CASE("text becomes ids and text again", "[text]") {
  const Tokenizer tokenizer = parse(tiny_json());
  CHECK(tokenizer.encode("") == Ids{});
  CHECK(tokenizer.encode("hello world") == Ids{267, 270});
  CHECK(tokenizer.encode(" the") == Ids{260});
  CHECK(tokenizer.encode("!~") == Ids{0, 93});
  CHECK(tokenizer.encode("\n \x7f") == Ids{198, 220, 221});
  CHECK(tokenizer.encode("\u00e9") == tokenizer.encode("e\u0301"));
  CHECK(tokenizer.decode(Ids{267, 270}, false) == "hello world");
  CHECK(tokenizer.bytes(260) == " the");
  CHECK(tokenizer.size() == 279);
  CHECK(tokenizer.has_token(278));
  CHECK_FALSE(tokenizer.has_token(279));
  CHECK_FALSE(tokenizer.has_token(-1));
  CHECK(tokenizer.bytes(279).empty());
  CHECK(tokenizer.decode(Ids{267, 1000, -5}, false) == "hello");
}

TEST_CASE("text that is not UTF-8 is refused with the byte's place", "[text]") {
  const Tokenizer tokenizer = parse(tiny_json());
  CHECK_THROWS_WITH(tokenizer.encode("ab\xff"), Catch::Contains("byte 2") && Catch::Contains("0xff"));
  CHECK_THROWS_AS(tokenizer.encode("\xed\xa0\x80"), Error);
}

TEST_CASE("bytes are joined before they are read as text", "[text]") {
  const Tokenizer tokenizer = parse(tiny_json());
  const Ids ids = tokenizer.encode("\u00e9");
  REQUIRE(ids.size() == 2);
  CHECK(tokenizer.decode(ids, false) == "\u00e9");
  CHECK(tokenizer.decode(Ids{ids[0]}, false) == "\uFFFD");
}

TEST_CASE("added tokens are matched as they are, longest first", "[text]") {
  io::Json json = tiny_json();
  json["added_tokens"].push_back(added(279, "<|im_start|>x", false));
  const Tokenizer tokenizer = parse(json);
  CHECK(tokenizer.encode("<|im_end|>") == Ids{278});
  CHECK(tokenizer.encode("hello<|im_end|> the") == Ids{267, 278, 260});
  CHECK(tokenizer.encode("<|im_start|>x<|im_start|>y") == Ids{279, 277, tokenizer.encode("y")[0]});
  CHECK(tokenizer.encode("<|IM_END|>").size() > 1);
  CHECK(tokenizer.encode("<|im_end|").size() > 1);
  CHECK(tokenizer.encode("<|im_<|im_end|>").back() == 278);
  CHECK(tokenizer.find("<|im_end|>") == 278);
  CHECK_FALSE(tokenizer.find("hello"));
  CHECK(tokenizer.is_special(278));
  CHECK_FALSE(tokenizer.is_special(279));
  CHECK_FALSE(tokenizer.is_special(0));
  CHECK(tokenizer.decode(Ids{267, 278, 279}, true) == "hello<|im_start|>x");
  CHECK(tokenizer.decode(Ids{267, 278}, false) == "hello<|im_end|>");
}

TEST_CASE("in inert ranges control tokens are text, and merges go on across the borders", "[text]") {
  io::Json json = tiny_json();
  json["added_tokens"].push_back(added(279, "<think>", false));
  const Tokenizer tokenizer = parse(json);
  auto encode = [&](const std::string& text, std::vector<Range> inert) {
    return tokenizer.encode(text, {.add_special = false, .inert = inert});
  };
  const std::string text = "<|im_start|>x<|im_end|><|im_end|>";
  const Ids all = encode(text, {});
  CHECK(all == Ids{277, 87, 278, 278});
  // The first <|im_end|> (bytes 13 to 22) was typed by a user.
  Ids expected = {277};
  for (const char c : std::string("x<|im_end|>")) expected.push_back(tokenizer.encode(std::string(1, c))[0]);
  expected.push_back(278);
  CHECK(encode(text, {{12, 23}}) == expected);
  CHECK(encode(text, {{13, 23}}) == expected);
  CHECK(encode(text, {{22, 23}}) == expected);  // a token that is only touched is not matched either
  CHECK(encode(text, {{23, 23}}) == all);
  CHECK(encode("<think>", {{0, 7}}) == Ids{279});  // not special: a word of the template's language
  CHECK(encode("hello", {{0, 2}}) == Ids{267});
  CHECK(encode("hello", {{1, 2}, {3, 5}}) == Ids{267});
}

TEST_CASE("added tokens marked normalized are matched after NFC", "[text]") {
  io::Json json = tiny_json();
  json["added_tokens"].push_back(added(279, "e\u0301!", true, true));
  const Tokenizer tokenizer = parse(json);
  CHECK(tokenizer.encode("e\u0301!") == Ids{279});
  CHECK(tokenizer.encode("\u00e9!") == Ids{279});
  CHECK(tokenizer.encode("hello\u00e9! the") == Ids{267, 279, 260});
  CHECK(tokenizer.decode(Ids{279}, false) == "e\u0301!");
  CHECK(tokenizer.find("e\u0301!") == 279);
  // "e U+0301 !" twice, four bytes each; the second is inert.
  const std::vector<Range> inert = {{4, 8}};
  const Ids ids = tokenizer.encode("e\u0301!e\u0301!", {.add_special = true, .inert = inert});
  CHECK(ids.size() == 4);
  CHECK(ids[0] == 279);
}

TEST_CASE("merges as strings, as pairs and mixed are the same", "[text]") {
  const Tokenizer pairs = parse(tiny_json());
  io::Json json = tiny_json();
  std::size_t count = 0;
  for (io::Json& merge : json["model"]["merges"]) {
    if (count++ % 2 == 0) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  CHECK(parse(json).encode("hello world and the sing") == pairs.encode("hello world and the sing"));
  json["model"]["merges"][0] = "a  b";
  CHECK_THAT(error_of(json), Catch::Contains("merge 0") && Catch::Contains("one space"));
  json["model"]["merges"][0] = "ab";
  CHECK_THAT(error_of(json), Catch::Contains("merge 0"));
  json["model"]["merges"][0] = {"h", "e", "l"};
  CHECK_THAT(error_of(json), Catch::Contains("merge 0"));
}

TEST_CASE("vocab.json with merges.txt gives the same ids as tokenizer.json", "[text]") {
  test::TempDir whole, pair, listed;
  const io::Json json = tiny_json();
  test::write_file(whole.path() / "tokenizer.json", json.dump());
  std::string merges = "#version: 0.2\n";
  for (const io::Json& merge : json["model"]["merges"]) {
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  }
  io::Json vocab = json["model"]["vocab"], decoder, list;
  // Merges that begin with "#" are merges.
  vocab["##"] = 300;
  merges += "# #\n";
  for (const io::Json& token : json["added_tokens"]) {
    decoder[std::to_string(token["id"].get<int>())] = token;
    list[token["content"].get<std::string>()] = token["id"];
  }
  for (const auto& dir : {pair.path(), listed.path()}) {
    test::write_file(dir / "vocab.json", vocab.dump());
    test::write_file(dir / "merges.txt", merges);
  }
  test::write_file(pair.path() / "tokenizer_config.json", io::Json{{"added_tokens_decoder", decoder}}.dump());
  test::write_file(listed.path() / "added_tokens.json", list.dump());
  test::write_file(listed.path() / "tokenizer_config.json",
                   io::Json{{"eos_token", "<|im_end|>"}, {"additional_special_tokens", {"<|im_start|>"}}}.dump());
  const std::string text = "<|im_start|>hello world, e\u0301 123<|im_end|>\n";
  const Tokenizer a = Tokenizer::load(whole.path()), b = Tokenizer::load(pair.path()),
                  c = Tokenizer::load(listed.path());
  CHECK(b.encode(text) == a.encode(text));
  CHECK(c.encode(text) == a.encode(text));
  CHECK(b.encode("##") == Ids{300});
  CHECK(b.is_special(*b.find("<|endoftext|>")));
  CHECK(c.is_special(*c.find("<|im_start|>")));
  CHECK(c.eos() == 278);
  CHECK_FALSE(c.is_special(*c.find("<|endoftext|>")));  // nothing says what it is for

  test::write_file(pair.path() / "merges.txt", "h e\n\nr e\n");
  CHECK_THROWS_WITH(Tokenizer::load(pair.path()), Catch::Contains("merges.txt") && Catch::Contains("merge 1"));
}

TEST_CASE("ignore_merges: a piece that is a token is that token", "[text]") {
  io::Json json = tiny_json();
  json["model"]["vocab"]["xyz"] = 300;  // no merge makes it
  CHECK(parse(json).encode("xyz").size() == 3);
  CHECK(parse(json).encode("xyz").size() == 3);
  json["model"]["ignore_merges"] = true;
  CHECK(parse(json).encode("xyz") == Ids{300});
  CHECK(parse(json).encode("xyzx").size() == 4);
}

TEST_CASE("a template post-processor puts its tokens around the text", "[text]") {
  io::Json json = tiny_json();
  const io::Json byte_level = json["post_processor"];
  const io::Json special = {{"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {276}}, {"tokens", {"<|endoftext|>"}}}},
                            {"<|im_end|>", {{"id", "<|im_end|>"}, {"ids", {278}}, {"tokens", {"<|im_end|>"}}}}};
  auto token = [](const char* name) { return io::Json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  const io::Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const io::Json bos = {
      {"type", "TemplateProcessing"}, {"single", {token("<|endoftext|>"), sequence}}, {"special_tokens", special}};
  json["post_processor"] = {{"type", "Sequence"}, {"processors", {byte_level, bos}}};
  CHECK(parse(json).encode("hello") == Ids{276, 267});
  CHECK(parse(json).encode("") == Ids{276});
  CHECK(parse(json).encode("hello", {.add_special = false, .inert = {}}) == Ids{267});
  json["post_processor"] = bos;
  json["post_processor"]["single"].push_back(token("<|im_end|>"));
  CHECK(parse(json).encode("hello") == Ids{276, 267, 278});
  json["post_processor"]["special_tokens"]["<|im_end|>"]["ids"][0] = 999;
  CHECK_THAT(error_of(json), Catch::Contains("post_processor") && Catch::Contains("999"));
  json["post_processor"]["special_tokens"].erase("<|im_end|>");
  CHECK_THAT(error_of(json), Catch::Contains("'<|im_end|>'"));
  json["post_processor"]["single"] = io::Json::array();
  CHECK_THAT(error_of(json), Catch::Contains("sequence"));
  json["post_processor"] = nullptr;
  CHECK(parse(json).encode("hello") == Ids{267});
}

TEST_CASE("a tokenizer without normalizer leaves text as it is", "[text]") {
  io::Json json = tiny_json();
  json["normalizer"] = nullptr;
  CHECK(parse(json).encode("e\u0301").size() == 3);
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  CHECK(parse(json).encode("e\u0301").size() == 2);
}

TEST_CASE("the pattern of the file is used", "[text]") {
  io::Json json = tiny_json();
  io::Json& pattern = json["pre_tokenizer"]["pretokenizers"][0]["pattern"];
  pattern["Regex"] = "[a-z]{2}";
  CHECK(parse(json).encode("hello") == Ids{257, 264, tiny_json()["model"]["vocab"]["o"].get<int>()});
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  CHECK(parse(json).encode("hello world") == Ids{267, 270});
}

TEST_CASE("eos and bos come from tokenizer_config.json", "[text]") {
  test::TempDir dir;
  test::write_file(dir.path() / "tokenizer.json", test::tiny_tokenizer_json());
  CHECK_FALSE(Tokenizer::load(dir.path()).eos());
  const auto config = dir.path() / "tokenizer_config.json";
  test::write_file(config, R"({"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}})");
  CHECK(Tokenizer::load(dir.path()).eos() == 278);
  CHECK(Tokenizer::load(dir.path()).bos() == 276);
  test::write_file(config, R"({"eos_token": "<|nowhere|>", "bos_token": null, "model_max_length": 1e30})");
  CHECK_FALSE(Tokenizer::load(dir.path()).eos());
  CHECK_FALSE(Tokenizer::load(dir.path()).bos());
  test::write_file(config, R"({"eos_token": 5})");
  CHECK_THROWS_WITH(Tokenizer::load(dir.path()),
                    Catch::Contains("tokenizer_config.json") && Catch::Contains("eos_token"));
}

TEST_CASE("a folder without a tokenizer says what was expected", "[text]") {
  test::TempDir dir;
  CHECK_THROWS_WITH(Tokenizer::load(dir.path()), Catch::Contains("tokenizer.json") && Catch::Contains("merges.txt"));
  test::write_file(dir.path() / "tokenizer.model", "x");
  CHECK_THROWS_WITH(Tokenizer::load(dir.path()), Catch::Contains("SentencePiece"));
}

TEST_CASE("SentencePiece-style files are refused by name", "[text]") {
  CHECK_THAT(error_with("/model/byte_fallback", true), Catch::Contains("SentencePiece"));
  CHECK_THAT(error_with("/pre_tokenizer", {{"type", "Metaspace"}}), Catch::Contains("SentencePiece"));
  CHECK_THAT(error_with("/model/type", "Unigram"), Catch::Contains("SentencePiece"));
  CHECK_THAT(error_with("/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}}}}),
             Catch::Contains("SentencePiece"));
}

TEST_CASE("what is not implemented is refused with its place", "[text]") {
  const std::vector<std::tuple<const char*, io::Json, const char*>> cases = {
      {"/model/type", "WordPiece", "model: type 'WordPiece'"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/unk_token", "<unk>", "unk_token"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer: type 'NFKC'"},
      {"/normalizer", "NFC\n", "normalizer"},
      {"/decoder", nullptr, "decoder"},
      {"/decoder", {{"type", "WordPiece"}}, "decoder"},
      {"/post_processor", {{"type", "BertProcessing"}}, "post_processor"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer: no ByteLevel"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits", "'Digits'"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "'Removed'"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", "does not compile"},
      {"/pre_tokenizer/pretokenizers", 1, "pretokenizers"},
      {"/added_tokens/0/lstrip", true, "lstrip"},
      {"/added_tokens/0/rstrip", true, "rstrip"},
      {"/added_tokens/0/single_word", true, "single_word"}};
  for (const auto& [pointer, value, expected] : cases) {
    CAPTURE(pointer);
    CHECK_THAT(error_with(pointer, value), Catch::StartsWith("dir/tokenizer.json") && Catch::Contains(expected));
  }
}

TEST_CASE("damaged files are refused with their place", "[text]") {
  const std::string long_name(5000, 'x');
  const std::vector<std::tuple<const char*, io::Json, const char*>> cases = {
      {"/model", nullptr, "model"},
      {"/model/vocab", nullptr, "model.vocab"},
      {"/model/vocab", io::Json::array(), "model.vocab"},
      {"/model/vocab/a", -1, "'a'"},
      {"/model/vocab/a", 2147483648LL, "2147483648"},
      {"/model/vocab/a", 18446744073709551615ULL, "18446744073709551615"},
      {"/model/vocab/a", 1.0, "1.0"},
      {"/model/vocab/a", "7", "'a'"},
      {"/model/vocab/a", 65, "id 65"},
      {"/model/merges", "x", "model.merges"},
      {"/model/merges/0", {"h", "zz"}, "'zz'"},
      {"/model/merges/0", {"h", "z"}, "'hz'"},
      {"/model/ignore_merges", 1, "ignore_merges"},
      {"/added_tokens", 1, "added_tokens"},
      {"/added_tokens/0", 1, "added_tokens[0]"},
      {"/added_tokens/0/id", "x", "added_tokens[0]"},
      {"/added_tokens/0/id", -1, "added_tokens[0]"},
      {"/added_tokens/0/id", 64, "id 64"},  // "a" is another token
      {"/added_tokens/0/id", 277, "277"},   // so is <|im_start|>
      {"/added_tokens/0/content", "", "content"},
      {"/added_tokens/0/content", "<|im_end|>", "twice"},
      {"/added_tokens/0/content", "a", "'a'"},  // the vocabulary has it with another id
      {"/added_tokens/0/content", long_name, "5000"},
      {"/added_tokens/0/special", "yes", "special"}};
  for (const auto& [pointer, value, expected] : cases) {
    CAPTURE(pointer, value.dump().substr(0, 100));
    CHECK_THAT(error_with(pointer, value), Catch::StartsWith("dir/tokenizer.json") && Catch::Contains(expected));
  }
  io::Json json = tiny_json();
  json["model"]["vocab"].erase("!");
  CHECK_THAT(error_of(json), Catch::Contains("0x21"));
  CHECK_FALSE(error_of(io::Json::array()).empty());
  CHECK_FALSE(error_of(nullptr).empty());
  for (const char* text : {"", "{", "\xff", "{\"model\":1,\"model\":2}"}) {
    CHECK_THROWS_AS(Tokenizer::parse(text, "t"), Error);
  }
}

TEST_CASE("an added token may be in the vocabulary too, with the same id", "[text]") {
  io::Json json = tiny_json();
  json["model"]["vocab"]["<|im_end|>"] = 278;
  CHECK(parse(json).encode("a<|im_end|>") == Ids{64, 278});
}

TEST_CASE("tokens that no bytes spell are their own text", "[text]") {
  io::Json json = tiny_json();
  json["model"]["vocab"]["日本"] = 300;
  const Tokenizer tokenizer = parse(json);
  CHECK(tokenizer.decode(Ids{300}, false) == "日本");
  CHECK(tokenizer.encode("日本").size() == 6);  // made of bytes
}

TEST_CASE("long texts of every kind stay near-linear", "[text]") {
  const Tokenizer tokenizer = parse(tiny_json());
  for (const char* unit :
       {"a", "he", " ", "\n", "1", "<", "<|im_end|", "e\u0301", "\u0301\u0323", "\u1100", "\u0f73"}) {
    std::string text;
    while (text.size() < (1u << 18)) text += unit;
    CHECK_FALSE(tokenizer.encode(text).empty());
  }
}

TEST_CASE("threads may encode at the same time", "[text]") {
  const Tokenizer tokenizer = parse(tiny_json());
  const Ids expected = Tokenizer::parse(test::tiny_tokenizer_json(), "t").encode("hello world and the inner sing");
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (std::size_t i = 0; i < same.size(); ++i) {
    threads.emplace_back([&, i] {
      same[i] = true;
      for (int n = 0; n < 200; ++n) same[i] = same[i] && tokenizer.encode("hello world and the inner sing") == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(same == std::array<bool, 4>{true, true, true, true});
}
