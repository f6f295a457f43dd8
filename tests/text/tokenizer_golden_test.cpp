// Published vocabularies and the shipped models against ids that the reference library computed.

#include <catch2/catch.hpp>

#include "base/text.h"
#include "support/fixtures.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

using namespace glyd;
using namespace glyd::text;
using Ids = std::vector<TokenId>;

namespace {

io::Json read_json(const std::filesystem::path& path) { return io::parse_json(test::read_file(path), path.string()); }

io::Json qwen3_goldens() { return read_json(test::tests_dir() / "text" / "tokenizer_goldens.json")["qwen3"]; }

// Null without the data.
const Tokenizer* qwen3() {
  static const auto dir = test::test_data("qwen3-tokenizer");
  if (!dir) {
    WARN("skipped: no qwen3-tokenizer in $GLYD_TEST_DATA");
    return nullptr;
  }
  static const Tokenizer tokenizer = Tokenizer::load(*dir);
  return &tokenizer;
}

void check_prompts(const Tokenizer& tokenizer, const io::Json& prompts) {
  REQUIRE(prompts.size() > 5);
  for (const io::Json& prompt : prompts) {
    CAPTURE(prompt["text"].dump());
    CHECK(tokenizer.encode(prompt["text"].get<std::string>()) == prompt["ids"].get<Ids>());
  }
}

}  // namespace

TEST_CASE("Qwen3: golden encodings", "[text]") {
  if (!qwen3()) return;
  check_prompts(*qwen3(), qwen3_goldens());
}

TEST_CASE("Qwen3: sizes, special tokens, padding", "[text]") {
  if (!qwen3()) return;
  CHECK(qwen3()->size() == 151669);
  CHECK(qwen3()->find("<|endoftext|>") == 151643);
  CHECK(qwen3()->eos() == 151645);
  CHECK_FALSE(qwen3()->bos());
  CHECK(qwen3()->is_special(151656));
  CHECK_FALSE(qwen3()->is_special(151657));
  CHECK_FALSE(qwen3()->has_token(151669));
  CHECK(qwen3()->decode(Ids{64, 151645, 65, 151668, 151900}, true) == "ab</think>");
}

TEST_CASE("Qwen3: every token as one piece is itself", "[text]") {
  if (!qwen3()) return;
  // Tokens that hold white space or several words are cut by the pattern, so the vocabulary is read anew with one that
  // cuts nothing. Tokens that are not UTF-8 cannot be put in as text.
  io::Json json = read_json(*test::test_data("qwen3-tokenizer") / "tokenizer.json");
  json["pre_tokenizer"] = json["pre_tokenizer"]["pretokenizers"][1];
  json["normalizer"] = nullptr;
  const Tokenizer whole = Tokenizer::parse(json.dump(), "whole");
  int malformed = 0, wrong = 0;
  std::size_t longest = 0;
  for (TokenId id = 0; id < 151643; ++id) {
    const std::string_view bytes = whole.bytes(id);
    longest = std::max(longest, bytes.size());
    if (!is_valid_utf8(bytes)) {
      ++malformed;
    } else if (whole.encode(bytes) != Ids{id}) {
      ++wrong;
    }
  }
  CHECK(malformed == 1448);
  CHECK(wrong == 0);
  CHECK(longest == 128);
  CHECK(whole.bytes(56940) == std::string(128, ' '));
}

TEST_CASE("Qwen3: merge r makes token 256 + r, in both spellings and from merges.txt", "[text]") {
  if (!qwen3()) return;
  const auto dir = *test::test_data("qwen3-tokenizer");
  io::Json json = read_json(dir / "tokenizer.json");
  std::string merges = "#version: 0.2\n";
  int wrong = 0, rank = 0;
  for (io::Json& merge : json["model"]["merges"]) {
    const auto left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    if (json["model"]["vocab"][left + right] != 256 + rank++) ++wrong;
    merge = left + " " + right;
    merges += left + " " + right + "\n";
  }
  CHECK(wrong == 0);
  CHECK(rank == 151387);
  CHECK(merges.size() == 1671853);
  const Tokenizer strings = Tokenizer::parse(json.dump(), "strings");
  test::TempDir pair;
  test::write_file(pair.path() / "vocab.json", json["model"]["vocab"].dump());
  test::write_file(pair.path() / "merges.txt", merges);
  test::write_file(pair.path() / "tokenizer_config.json", test::read_file(dir / "tokenizer_config.json"));
  const Tokenizer files = Tokenizer::load(pair.path());
  const io::Json goldens = qwen3_goldens();
  check_prompts(strings, goldens);
  check_prompts(files, goldens);
}

TEST_CASE("Qwen3: streaming equals decoding at every token", "[text]") {
  if (!qwen3()) return;
  const io::Json goldens = qwen3_goldens();
  for (const io::Json& prompt : goldens) {
    const Ids ids = prompt["ids"].get<Ids>();
    StreamDecoder decoder(*qwen3(), false);
    std::string text;
    for (const TokenId id : ids) {
      text += decoder.push(id);
      CHECK(is_valid_utf8(text));
    }
    CHECK(text + decoder.finish() == qwen3()->decode(ids, false));
  }
  StreamDecoder decoder(*qwen3(), false);
  CHECK(decoder.push(61804) == " ");
  CHECK(decoder.push(101) == "\U0001F468");
}

TEST_CASE("Qwen3: what a user types cannot become a control token", "[text]") {
  if (!qwen3()) return;
  const std::string text = "<|im_start|>user\n\nHi<|im_end|><|im_end|>\n";
  const std::vector<Range> inert = {{17, 30}};  // "\nHi<|im_end|>"
  const Ids ids = qwen3()->encode(text, {.add_special = false, .inert = inert});
  // "\n" of the template and "\n" of the user merge to 271.
  CHECK(ids == Ids{151644, 872, 271, 13048, 27, 91, 318, 6213, 91, 29, 151645, 198});
}

TEST_CASE("shipped models: token ids of the golden prompts", "[text]") {
  for (const char* name : {"tiny-austen", "tiny-austen-qwen2"}) {
    const io::Json golden = test::recorded(name);
    const Tokenizer tokenizer = Tokenizer::load(test::shipped_model(name));
    check_prompts(tokenizer, golden["prompts"]);
    const io::Json& passage = golden["passage"];
    CHECK(tokenizer.encode(passage["text"].get<std::string>()) == passage["ids"].get<Ids>());
    for (const io::Json& prompt : golden["prompts"]) {
      CHECK(tokenizer.decode(prompt["greedy_ids"].get<Ids>(), false) == prompt["greedy_text"].get<std::string>());
    }
    CHECK(tokenizer.eos() == 4095);
  }
}

TEST_CASE("shipped models: tokenizer.json and vocab.json with merges.txt agree", "[text]") {
  for (const char* name : {"tiny-austen", "tiny-austen-qwen2"}) {
    const auto dir = test::shipped_model(name);
    test::TempDir pair;
    for (const char* file : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
      test::write_file(pair.path() / file, test::read_file(dir / file));
    }
    const Tokenizer a = Tokenizer::load(dir), b = Tokenizer::load(pair.path());
    CHECK(a.size() == b.size());
    const io::Json golden = test::recorded("tiny-austen");
    for (const io::Json& prompt : golden["prompts"]) {
      const auto text = prompt["text"].get<std::string>();
      CHECK(a.encode(text) == b.encode(text));
    }
  }
}
