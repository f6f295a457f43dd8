#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace glyd::text {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

std::uint64_t hash_pair(TokenId left, TokenId right) {
  return keyed_hash((static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
                    static_cast<std::uint32_t>(right));
}

std::size_t slots_for(std::size_t merges) {
  std::size_t slots = 16;
  while (slots * 2 < merges * 3) slots *= 2;
  return slots;
}

}  // namespace

Bpe::Bpe(std::size_t merges) : slots_(slots_for(merges)) {}

Bpe::Slot& Bpe::place_of(TokenId left, TokenId right) {
  std::size_t place = hash_pair(left, right) & (slots_.size() - 1);
  while (slots_[place].left != kNoToken && (slots_[place].left != left || slots_[place].right != right)) {
    place = (place + 1) & (slots_.size() - 1);
  }
  return slots_[place];
}

const Bpe::Slot* Bpe::find(TokenId left, TokenId right) const {
  const Slot& slot = const_cast<Bpe*>(this)->place_of(left, right);
  return slot.left == kNoToken ? nullptr : &slot;
}

void Bpe::add(TokenId left, TokenId right, TokenId merged) {
  if (slots_for(count_ + 1) > slots_.size()) {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
    for (const Slot& slot : old) {
      if (slot.left != kNoToken) place_of(slot.left, slot.right) = slot;
    }
  }
  place_of(left, right) = {left, right, count_++, merged};
}

void Bpe::encode(std::string_view piece, const std::array<TokenId, 256>& byte_ids, Scratch& scratch,
                 std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<std::uint32_t>(piece.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols.push_back({byte_ids[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
                       i + 1 == count ? kNone : i + 1, kNone, kNoToken});
  }
  // Looks up what symbol i and the one after it merge to; true when they do.
  auto pair = [&](std::uint32_t i) {
    auto& symbol = symbols[i];
    const Slot* slot = symbol.next == kNone ? nullptr : find(symbol.id, symbols[symbol.next].id);
    symbol.rank = slot ? slot->rank : kNone;
    if (slot) symbol.merged = slot->merged;
    return slot != nullptr;
  };
  auto key = [&](std::uint32_t i) { return (static_cast<std::uint64_t>(symbols[i].rank) << 32) | i; };
  auto push = [&](std::uint32_t i) {
    if (!pair(i)) return;
    heap.push_back(key(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    if (pair(i)) heap.push_back(key(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<std::uint32_t>(top);
    auto& symbol = symbols[i];
    if (symbol.rank != top >> 32) continue;  // one of the two has been merged since
    auto& gone = symbols[symbol.next];
    symbol.id = symbol.merged;
    symbol.next = gone.next;
    gone.rank = kNone;
    if (symbol.next != kNone) symbols[symbol.next].previous = i;
    push(i);
    if (symbol.previous != kNone) push(symbol.previous);
  }
  for (std::uint32_t i = 0; i != kNone && i < count; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace glyd::text
