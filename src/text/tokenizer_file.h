#pragma once
// Reads the files of a tokenizer and checks all they say; what is not implemented is refused by name.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace glyd::text {

struct TokenizerParts {
  explicit TokenizerParts(Vocabulary v) : vocabulary(std::move(v)) {}

  Vocabulary vocabulary;  // the added tokens too
  std::array<TokenId, 256> byte_ids{};
  Bpe bpe;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever merging makes of it
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix, suffix;  // what the post-processor puts around a text
};

// The text of a tokenizer.json; `what` opens every message. Throws Error(Model).
TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& what);

// vocab.json and merges.txt of `dir`, with normalisation and pattern of Qwen2; added tokens from tokenizer_config.json
// (added_tokens_decoder), else added_tokens.json. Throws Error(Model).
TokenizerParts load_vocab_and_merges(const std::filesystem::path& dir);

// The texts of the tokens that tokenizer_config.json of `dir` names; nothing when there is no such file.
struct NamedTokens {
  std::optional<std::string> bos, eos;
};
NamedTokens load_named_tokens(const std::filesystem::path& dir);

}  // namespace glyd::text
