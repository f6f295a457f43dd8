#pragma once
// The prefix code over pairs of exponents: two weights that are neighbours in a row share one code word.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "codec/packed_matrix.h"

namespace glyd::codec {

// A pair's two 8-bit exponents, the lower column's first, and the length of its code word in bits.
struct CodedPair {
  std::uint8_t first = 0, second = 0, length = 0;
  std::uint32_t value() const { return static_cast<std::uint32_t>(first) << 8 | second; }
};

// A complete canonical code: pairs in the order of (length, value) take consecutive code words. The words are written
// least significant bit first, so word(i) holds the canonical word with its bits mirrored.
class PairCode {
 public:
  // Throws Error(Model), opened by `what`, unless the lengths fill the code space exactly (sum of 2^-length is 1), no
  // length exceeds kMaxCodeBits, no pair comes twice and none has exponent 255: the code never stands for an infinity
  // or a NaN, so that what the main stream adds to a product is always finite.
  explicit PairCode(std::vector<CodedPair> pairs, std::string_view what = "pair code");

  const std::vector<CodedPair>& pairs() const { return pairs_; }  // canonical order
  int bits() const { return pairs_.back().length; }              // length of the longest word; 0 when there is one pair
  std::uint32_t word(std::size_t i) const { return words_[i]; }  // of pairs()[i], first bit lowest

  // [2^index_bits] entries, looked up by the next index_bits (>= bits()) bits of a stream, first bit lowest: the first
  // exponent in bits 7-14, the second in bits 23-30 (where a register with two bf16 wants them), the length in bits
  // 0-4.
  std::vector<std::uint32_t> decode_table(int index_bits) const;

  // Compact form: the number of pairs of each length 0..kMaxCodeBits (u16), then the pairs (first, second) in canonical
  // order.
  std::vector<std::uint8_t> serialize() const;
  static PairCode parse(std::span<const std::uint8_t> bytes, std::string_view what);

 private:
  std::vector<CodedPair> pairs_;
  std::vector<std::uint32_t> words_;
};

// The lowest `bits` bits of x in opposite order.
constexpr std::uint32_t mirror_bits(std::uint32_t x, int bits) {
  std::uint32_t y = 0;
  for (int i = 0; i < bits; ++i) y |= (x >> i & 1) << (bits - 1 - i);
  return y;
}

}  // namespace glyd::codec
