#include "text/tokenizer_json.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace glyd::text {

const io::Json& member(const io::Json& object, const char* key) {
  static const io::Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool bool_of(const io::Json& object, const char* key, bool otherwise, const std::string& what) {
  const io::Json& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) fail(Code::Model, "{}: {} is {}, expected true or false", what, key, value.type_name());
  return value.get<bool>();
}

std::string string_of(const io::Json& object, const char* key, const std::string& otherwise, const std::string& what) {
  const io::Json& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_string()) fail(Code::Model, "{}: {} is {}, expected a string", what, key, value.type_name());
  return value.get<std::string>();
}

Vocabulary read_vocabulary(const io::Json& vocab, const std::string& what) {
  if (!vocab.is_object()) fail(Code::Model, "{}: {}, expected an object of tokens and ids", what, vocab.type_name());
  Vocabulary vocabulary(what, vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<std::uint64_t>() > INT64_MAX)) {
      fail(Code::Model, "{}: token {} has the id {}, expected an integer from 0 to {}", what, quote(token),
           quote(id.dump(), 40), kMaxTokenId);
    }
    vocabulary.add(id.get<std::int64_t>(), token);
  }
  return vocabulary;
}

void add_merge(TokenizerParts& parts, std::string_view left, std::string_view right, std::size_t rank,
               const std::string& what) {
  auto id_of = [&](std::string_view token) {
    const TokenId id = parts.vocabulary.find_symbols(token);
    if (id == kNoToken) {
      fail(Code::Model, "{}: merge {} ({} with {}): {} is not in the vocabulary", what, rank, quote(left), quote(right),
           quote(token));
    }
    return id;
  };
  std::string merged(left);
  merged += right;
  const TokenId left_id = id_of(left), right_id = id_of(right);
  parts.bpe.add(left_id, right_id, id_of(merged));
}

void add_merge_line(TokenizerParts& parts, std::string_view line, std::size_t rank, const std::string& what) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    fail(Code::Model, "{}: merge {} is {}, expected two tokens with one space between them", what, rank, quote(line));
  }
  add_merge(parts, line.substr(0, space), line.substr(space + 1), rank, what);
}

AddedToken read_added_token(const io::Json& entry, std::int64_t id, const std::string& what) {
  if (!entry.is_object()) fail(Code::Model, "{}: {}, expected an object", what, entry.type_name());
  AddedToken token;
  token.content = string_of(entry, "content", "", what);
  if (token.content.empty()) fail(Code::Model, "{}: no content", what);
  if (token.content.size() > kMaxAddedTokenBytes) {
    fail(Code::Model, "{}: content of {} bytes, expected at most {}", what, token.content.size(), kMaxAddedTokenBytes);
  }
  if (id < 0 || id > kMaxTokenId) {
    fail(Code::Model, "{}: id {} of {}, expected 0 to {}", what, id, quote(token.content), kMaxTokenId);
  }
  token.id = static_cast<TokenId>(id);
  token.special = bool_of(entry, "special", false, what);
  token.normalized = bool_of(entry, "normalized", !token.special, what);
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    if (bool_of(entry, flag, false, what)) {
      fail(Code::Model, "{}: {} has {}, which is not implemented", what, quote(token.content), flag);
    }
  }
  return token;
}

void add_added_tokens(TokenizerParts& parts, std::vector<AddedToken> tokens, const std::string& what) {
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && tokens[i].content == tokens[i - 1].content) {
      fail(Code::Model, "{}: {} occurs twice, with the ids {} and {}", what, quote(tokens[i].content), tokens[i - 1].id,
           tokens[i].id);
    }
    parts.vocabulary.add_literal(tokens[i].id, tokens[i].content);
  }
  parts.added = std::move(tokens);
}

}  // namespace glyd::text
