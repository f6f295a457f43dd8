#pragma once
// Pieces of reading that tokenizer.json and the pair vocab.json + merges.txt share.

#include <filesystem>
#include <string>
#include <string_view>

#include "io/json.h"
#include "text/tokenizer_file.h"

namespace glyd::text {

constexpr std::uint64_t kMaxTokenizerBytes = 64u << 20;  // six times the largest published

// The member `key` of an object; null (the JSON value) when it is not there.
const io::Json& member(const io::Json& object, const char* key);

// `key` of an object as bool or string; `otherwise` when it is absent or null. Throws Error(Model) for other types.
bool bool_of(const io::Json& object, const char* key, bool otherwise, const std::string& what);
std::string string_of(const io::Json& object, const char* key, const std::string& otherwise, const std::string& what);

// A vocab object: token to id.
Vocabulary read_vocabulary(const io::Json& vocab, const std::string& what);

// The next merge of `parts`: both sides and what they make must be tokens. `rank` is for the message.
void add_merge(TokenizerParts& parts, std::string_view left, std::string_view right, std::size_t rank,
               const std::string& what);

// A merge as one string, its sides separated by the only space.
void add_merge_line(TokenizerParts& parts, std::string_view line, std::size_t rank, const std::string& what);

// One entry of added_tokens or added_tokens_decoder; refuses flags that are not implemented.
AddedToken read_added_token(const io::Json& entry, std::int64_t id, const std::string& what);

// Puts `tokens` into the vocabulary and the list of `parts`.
void add_added_tokens(TokenizerParts& parts, std::vector<AddedToken> tokens, const std::string& what);

}  // namespace glyd::text
