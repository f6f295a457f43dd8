#pragma once
// The tokens of a byte-level BPE model: ids to bytes and back.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace glyd::text {

constexpr TokenId kNoToken = -1;
constexpr TokenId kMaxTokenId = (1 << 22) - 1;  // tables are as long as the largest id: 16 times the largest published

// A hash that an input file cannot aim at: its key differs from run to run.
std::uint64_t keyed_hash(std::string_view bytes);
std::uint64_t keyed_hash(std::uint64_t value);

// Files write tokens in byte symbols: a printable character for each byte. The bytes of `symbols`, false when it holds
// a character that stands for no byte.
bool bytes_of_symbols(std::string_view symbols, std::string& bytes);

class Vocabulary {
 public:
  // `what` (path and key) opens every message; `count` tokens are expected.
  Vocabulary(std::string what, std::size_t count);

  // A token as the file writes it. Throws Error(Model): an id outside 0..kMaxTokenId, an id or a token twice.
  void add(std::int64_t id, std::string_view symbols);

  // An added token, whose text is not in symbols. If it is in the vocabulary too, the id must be the same.
  void add_literal(std::int64_t id, std::string_view content);

  TokenId find(std::string_view bytes) const;            // kNoToken: none of the model's tokens
  TokenId find_symbols(std::string_view symbols) const;  // as the file writes it

  // The id of each single byte. Throws Error(Model) naming the first byte without a token.
  std::array<TokenId, 256> byte_ids() const;

  std::string_view bytes(TokenId id) const;  // empty for an id without a token; valid as long as nothing is added
  bool has(TokenId id) const { return id >= 0 && id < size() && entries_[static_cast<std::size_t>(id)].present; }
  TokenId size() const { return static_cast<TokenId>(entries_.size()); }  // the largest id + 1
  std::size_t longest() const { return longest_; }                        // bytes

 private:
  struct Entry {
    std::uint32_t begin = 0, length : 31 = 0, present : 1 = 0;
  };
  struct Slot {
    std::uint32_t hash = 0;
    TokenId id = kNoToken;
  };
  Entry& new_entry(std::int64_t id, std::string_view shown);
  void store(Entry& entry, std::string_view bytes);
  void grow();

  std::string what_;
  std::string arena_;           // all bytes, end to end
  std::vector<Entry> entries_;  // by id
  std::vector<Slot> slots_;     // open addressing by the hash of the bytes; a power of two, at most 2/3 full
  std::size_t used_ = 0;
  std::size_t longest_ = 0;
  std::map<std::string, TokenId, std::less<>> unspellable_;  // tokens that hold characters which are no byte symbols
};

}  // namespace glyd::text
