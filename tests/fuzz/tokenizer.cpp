// Loading any tokenizer.json, and encoding any text. Input: a tokenizer.json, or text for a small tokenizer when it
// does not begin like one.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "support/fixtures.h"
#include "text/normalizer.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

using namespace glyd;

namespace {

void check(bool good) {
  if (!good) std::abort();
}

// Decoding gives the text back, in one go and token by token; with ranges that are inert too.
void round_trip(const text::Tokenizer& tokenizer, const std::string& input, const std::string& expected) {
  const std::vector<text::Range> half = {{input.size() / 3, input.size() / 2}};
  for (const auto& inert : {std::vector<text::Range>{}, half}) {
    const auto ids = tokenizer.encode(input, {.add_special = false, .inert = inert});
    check(tokenizer.decode(ids, false) == expected);
    text::StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (const auto id : ids) streamed += stream.push(id);
    check(streamed + stream.finish() == expected);
  }
}

void load(std::string_view file) {
  static const std::string text = "It's 12 o'clock,  e\u0301\n\n \U0001F468\u200d\U0001F469 <|im_end|> <think>";
  try {
    const auto tokenizer = text::Tokenizer::parse(file, "fuzz");
    for (const auto id : tokenizer.encode(text)) check(tokenizer.has_token(id));
  } catch (const Error& e) {
    check(e.code() == Code::Model);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tiny = text::Tokenizer::parse(test::tiny_tokenizer_json(), "tiny");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with('{')) {
    load(input);
  } else {
    const std::string text = to_valid_utf8(input);
    round_trip(tiny, text, std::string(text::NfcText(text).text()));
  }
  return 0;
}
