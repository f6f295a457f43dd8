#include "text/added_tokens.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace glyd::text {
namespace {

bool touches(Range where, std::span<const Range> ranges) {
  const auto next =
      std::partition_point(ranges.begin(), ranges.end(), [&](const Range& range) { return range.end <= where.begin; });
  return next != ranges.end() && next->begin < where.end;
}

unsigned char byte_at(std::string_view s, std::size_t i) { return static_cast<unsigned char>(s[i]); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const auto& a, const auto& b) { return std::tie(a.content, a.id) < std::tie(b.content, b.id); });
  const auto same = [](const auto& a, const auto& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const AddedToken& token : tokens_) ++first_[byte_at(token.content, 0) + 1];
  for (std::size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
}

const AddedToken* AddedTokens::find_content(std::string_view content) const {
  const auto token = std::lower_bound(tokens_.begin(), tokens_.end(), content,
                                      [](const AddedToken& a, std::string_view b) { return a.content < b; });
  return token != tokens_.end() && token->content == content ? &*token : nullptr;
}

// Narrows the sorted tokens, a byte of the text at a time, to those that begin like it.
const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at, std::span<const Range> inert) const {
  const AddedToken* longest = nullptr;
  auto begin = tokens_.begin() + first_[byte_at(text, at)], end = tokens_.begin() + first_[byte_at(text, at) + 1u];
  for (std::size_t depth = 1; begin != end; ++depth) {
    if (begin->content.size() == depth) {
      if (!begin->special || !touches({at, at + depth}, inert)) longest = &*begin;
      ++begin;
    }
    if (at + depth == text.size()) break;
    const unsigned char byte = byte_at(text, at + depth);
    begin = std::partition_point(begin, end, [&](const auto& token) { return byte_at(token.content, depth) < byte; });
    end = std::partition_point(begin, end, [&](const auto& token) { return byte_at(token.content, depth) == byte; });
  }
  return longest;
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from,
                                                    std::span<const Range> inert) const {
  if (tokens_.empty()) return std::nullopt;
  for (std::size_t at = from; at < text.size(); ++at) {
    const unsigned char byte = byte_at(text, at);
    if (first_[byte] == first_[byte + 1u]) continue;
    if (const AddedToken* token = longest_at(text, at, inert)) return Match{{at, at + token->content.size()}, token};
  }
  return std::nullopt;
}

}  // namespace glyd::text
