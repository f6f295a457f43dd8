// The fallback: vocab.json and merges.txt, and what tokenizer_config.json adds to them.

#include <charconv>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "text/tokenizer_json.h"

namespace glyd::text {
namespace {

using io::Json;
namespace fs = std::filesystem;

// The object in `path`; an empty one when there is no such file.
Json read_object(const fs::path& path) {
  if (!io::is_regular_file(path)) return Json::object();
  Json root = io::parse_json(io::read_text(path, kMaxTokenizerBytes), path.string());
  if (!root.is_object()) fail(Code::Model, "{}: {}, expected an object", printable(path.string()), root.type_name());
  return root;
}

// A token named in tokenizer_config.json: its text, or an object with it.
std::optional<std::string> named_token(const Json& config, const char* key, const std::string& what) {
  const Json& value = member(config, key);
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && member(value, "content").is_string()) return member(value, "content").get<std::string>();
  fail(Code::Model, "{}: {} is {}, expected a string or an object with content", what, key, value.type_name());
}

// added_tokens_decoder: {"151643": {"content": ..., "special": ...}, ...}
std::vector<AddedToken> decoder_tokens(const Json& section, const std::string& what) {
  if (!section.is_object()) fail(Code::Model, "{}: {}, expected an object", what, section.type_name());
  std::vector<AddedToken> tokens;
  for (const auto& [key, entry] : section.items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      fail(Code::Model, "{}: the key {} is no token id", what, quote(key));
    }
    tokens.push_back(read_added_token(entry, id, what + ": " + key));
  }
  return tokens;
}

// added_tokens.json: {"<|endoftext|>": 151643, ...}. Those that the configuration names for a purpose are special.
std::vector<AddedToken> listed_tokens(const Json& list, const Json& config, const std::string& what,
                                      const std::string& config_name) {
  std::set<std::string> special;
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    if (const auto token = named_token(config, key, config_name)) special.insert(*token);
  }
  if (const Json& more = member(config, "additional_special_tokens"); more.is_array()) {
    for (const Json& token : more) {
      if (token.is_string()) special.insert(token.get<std::string>());
    }
  }
  std::vector<AddedToken> tokens;
  for (const auto& [content, id] : list.items()) {
    if (!id.is_number_integer()) fail(Code::Model, "{}: the id of {} is no integer", what, quote(content));
    const Json entry = {{"content", content}, {"special", special.contains(content)}, {"normalized", false}};
    tokens.push_back(read_added_token(entry, id.get<std::int64_t>(), what));
  }
  return tokens;
}

void read_merges_file(TokenizerParts& parts, const fs::path& path) {
  const std::string what = printable(path.string());
  const std::string text = io::read_text(path, kMaxTokenizerBytes);
  if (const std::size_t good = valid_utf8_prefix(text); good != text.size()) {
    fail(Code::Model, "{}: not UTF-8 at byte {}", what, good);
  }
  std::string_view rest = text;
  std::size_t rank = 0;
  bool first = true;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    // Only a first line can be a comment: "#" is a token, and published merges begin with it.
    const bool version = std::exchange(first, false) && line.starts_with("#version");
    if (version || (line.empty() && rest.empty())) continue;
    add_merge_line(parts, line, rank++, what);
  }
}

}  // namespace

NamedTokens load_named_tokens(const fs::path& dir) {
  const fs::path path = dir / "tokenizer_config.json";
  const Json config = read_object(path);
  const std::string what = printable(path.string());
  return {named_token(config, "bos_token", what), named_token(config, "eos_token", what)};
}

TokenizerParts load_vocab_and_merges(const fs::path& dir) {
  const fs::path vocab = dir / "vocab.json";
  TokenizerParts parts(read_vocabulary(read_object(vocab), printable(vocab.string())));
  parts.byte_ids = parts.vocabulary.byte_ids();
  parts.nfc = true;
  parts.pre_tokenizer.add(make_scanner(kQwen2Regex));
  read_merges_file(parts, dir / "merges.txt");

  const fs::path config_path = dir / "tokenizer_config.json", list_path = dir / "added_tokens.json";
  const Json config = read_object(config_path);
  const std::string config_name = printable(config_path.string()), list_name = printable(list_path.string());
  if (const Json& decoder = member(config, "added_tokens_decoder"); !decoder.is_null()) {
    const std::string what = config_name + ": added_tokens_decoder";
    add_added_tokens(parts, decoder_tokens(decoder, what), what);
  } else {
    add_added_tokens(parts, listed_tokens(read_object(list_path), config, list_name, config_name), list_name);
  }
  return parts;
}

}  // namespace glyd::text
