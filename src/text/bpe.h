#pragma once
// Byte-pair encoding: the merges of a model, applied to one piece of text.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace glyd::text {

class Bpe {
 public:
  // Room for `merges` merges.
  explicit Bpe(std::size_t merges = 0);

  // The next merge: its rank is the number of add() calls before it. A pair given again takes the later rank.
  void add(TokenId left, TokenId right, TokenId merged);

  // Working memory of encode(), to be used again for the next piece.
  struct Scratch {
    struct Symbol {
      TokenId id;
      std::uint32_t previous, next;  // neighbours by index; kNone at the ends
      std::uint32_t rank;            // of the merge with the next symbol; kNone: there is none
      TokenId merged;                // what that merge makes
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;  // rank in the upper half, index in the lower: lowest rank first, leftmost on ties
  };

  // Appends the ids of `piece` to `out`: starting from `byte_ids`, the adjacent pair of lowest rank is merged, the
  // leftmost on ties, until no pair is a merge. Time n log n. `piece` is at most 2^32 - 2 bytes long.
  void encode(std::string_view piece, const std::array<TokenId, 256>& byte_ids, Scratch& scratch,
              std::vector<TokenId>& out) const;

 private:
  struct Slot {
    TokenId left = kNoToken, right = kNoToken;
    std::uint32_t rank = 0;
    TokenId merged = kNoToken;
  };
  Slot& place_of(TokenId left, TokenId right);
  const Slot* find(TokenId left, TokenId right) const;

  std::vector<Slot> slots_;  // open addressing; a power of two, at most 2/3 full
  std::uint32_t count_ = 0;
};

}  // namespace glyd::text
