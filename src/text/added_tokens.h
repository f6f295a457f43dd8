#pragma once
// Tokens that are matched in the text itself, before anything else looks at it: <|im_end|>, <think>.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace glyd::text {

constexpr std::size_t kMaxAddedTokenBytes = 512;  // bounds the work at each byte of the text

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;     // control: dropped by decode(skip_special), not matched in inert ranges
  bool normalized = false;  // matched after normalisation instead of before
};

class AddedTokens {
 public:
  // `tokens` in any order, none empty. Of several with the same content the lowest id stays (NFC can make them equal).
  explicit AddedTokens(std::vector<AddedToken> tokens = {});

  struct Match {
    Range where;
    const AddedToken* token;
  };

  // The first match at or after byte `from`, the longest at its place. A special token does not match where it would
  // touch one of the `inert` ranges (ascending, disjoint).
  std::optional<Match> find(std::string_view text, std::size_t from, std::span<const Range> inert) const;

  const AddedToken* find_content(std::string_view content) const;
  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at, std::span<const Range> inert) const;

  std::vector<AddedToken> tokens_;          // ascending by content
  std::array<std::uint32_t, 257> first_{};  // tokens that begin with byte b: [first_[b], first_[b + 1])
};

}  // namespace glyd::text
