#pragma once
// Byte-level BPE as tokenizer.json describes it: text to token ids and back.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace glyd::text {

using TokenId = std::int32_t;

// Bytes [begin, end) of an input.
struct Range {
  std::size_t begin = 0, end = 0;
};

struct EncodeOptions {
  // Apply the file's post_processor (Llama: a BOS in front). Off for rendered chat templates, which write it
  // themselves.
  bool add_special = true;
  // In these ranges (ascending, disjoint) added tokens with special = yes are ordinary text: what a user typed cannot
  // become a control token. BPE still runs across the borders.
  std::span<const Range> inert = {};
};

class Tokenizer {
 public:
  // tokenizer.json of `dir`, or vocab.json + merges.txt with the added tokens of tokenizer_config.json.
  // Throws Error(Model) naming file and key for anything damaged or not implemented.
  static Tokenizer load(const std::filesystem::path& dir);

  // A tokenizer.json already in memory, without eos() and bos(); `what` opens every message. Throws Error(Model).
  static Tokenizer parse(std::string_view tokenizer_json, const std::string& what);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Throws Error(Usage) when `input` is not UTF-8, naming the byte, or longer than 2 GiB. Safe from several threads.
  // Time is near-linear whatever the text; Error(Model) when a pattern of the file's own takes too long on it.
  std::vector<TokenId> encode(std::string_view input, const EncodeOptions& options = {}) const;

  // The bytes of one token (an added token: its content); empty for an id without a token.
  std::string_view bytes(TokenId id) const;

  // All bytes joined, malformed UTF-8 replaced by U+FFFD. `skip_special` leaves out added tokens with special = yes.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  bool has_token(TokenId id) const;                             // false for padding rows of the embedding
  bool is_special(TokenId id) const;                            // an added token with special = yes
  TokenId size() const;                                         // one more than the largest id with a token
  std::optional<TokenId> find(std::string_view content) const;  // an added token, by its exact content
  std::optional<TokenId> eos() const;                           // tokenizer_config.json's eos_token
  std::optional<TokenId> bos() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace glyd::text
