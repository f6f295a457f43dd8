#include "text/bpe.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

using namespace glyd::text;

namespace {

using Ids = std::vector<TokenId>;

std::array<TokenId, 256> bytes_as_ids() {
  std::array<TokenId, 256> ids{};
  for (int i = 0; i < 256; ++i) ids[static_cast<std::size_t>(i)] = i;
  return ids;
}

Ids encode(const Bpe& bpe, std::string_view piece) {
  Ids out;
  Bpe::Scratch scratch;
  bpe.encode(piece, bytes_as_ids(), scratch, out);
  return out;
}

struct Merge {
  TokenId left, right, merged;
};

// The definition: look for the lowest rank from left to right, merge there, begin again.
Ids encode_by_definition(const std::vector<Merge>& merges, std::string_view piece) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  std::map<std::pair<TokenId, TokenId>, std::pair<std::size_t, TokenId>> ranks;
  for (std::size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = {i, merges[i].merged};
  while (true) {
    std::size_t best = SIZE_MAX, place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second.first < best) best = found->second.first, place = i;
    }
    if (best == SIZE_MAX) return ids;
    ids[place] = ranks[{ids[place], ids[place + 1]}].second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

}  // namespace

TEST_CASE("the lowest rank merges first, the leftmost on ties", "[text]") {
  Bpe bpe;
  bpe.add('a', 'b', 300);
  bpe.add('b', 'c', 301);
  bpe.add('a', 'a', 302);
  bpe.add(302, 'a', 303);
  CHECK(encode(bpe, "") == Ids{});
  CHECK(encode(bpe, "x") == Ids{'x'});
  CHECK(encode(bpe, "abc") == Ids{300, 'c'});
  CHECK(encode(bpe, "aaa") == Ids{303});
  CHECK(encode(bpe, "aaaa") == Ids{302, 302});
  CHECK(encode(bpe, "aaaaa") == Ids{302, 303});
  CHECK(encode(bpe, "aab") == Ids{'a', 300});
}

TEST_CASE("a pair given twice has the later rank", "[text]") {
  Bpe bpe;
  bpe.add('a', 'b', 300);
  bpe.add('b', 'c', 301);
  bpe.add('a', 'b', 300);
  CHECK(encode(bpe, "abc") == Ids{'a', 301});
}

TEST_CASE("any merges give what their definition says", "[text]") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Merge> merges;
    Bpe bpe(random() % 2 ? 0 : 40);
    Ids known = {'a', 'b', 'c'};
    for (TokenId id = 256; id < 296; ++id) {
      const Merge merge{known[random() % known.size()], known[random() % known.size()], id};
      merges.push_back(merge);
      bpe.add(merge.left, merge.right, merge.merged);
      known.push_back(id);
    }
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (unsigned n = random() % 40; n > 0; --n) piece += static_cast<char>('a' + random() % 3);
      if (encode(bpe, piece) != encode_by_definition(merges, piece)) FAIL("different ids of " << piece);
    }
  }
}

TEST_CASE("a megabyte of one letter is near-linear", "[text]") {
  Bpe bpe;
  TokenId last = 'a';
  for (TokenId id = 256; id < 262; ++id) {
    bpe.add(last, last, id);
    last = id;
  }
  CHECK(encode(bpe, std::string(1 << 20, 'a')) == Ids((1 << 20) / 64, 261));
}
