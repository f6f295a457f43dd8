#pragma once
// From the exponents of a matrix to its code: the histogram of pairs, which pairs to code, and how each pair is
// encoded.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "codec/encoder_entry.h"
#include "codec/pair_code.h"

namespace glyd::codec {

inline constexpr int kExceptionBits = 32;  // of an entry in a unit's exception list

// How often each pair of exponents stands in a matrix. Histograms of parts add up in any order to the same sum.
class PairHistogram {
 public:
  PairHistogram() : pairs_(1 << 16), lone_(256) {}
  // Counts that were taken elsewhere: [65536] of pairs, [256] of lone exponents.
  PairHistogram(std::span<const std::uint64_t> pairs, std::span<const std::uint64_t> lone);

  void add_row(std::span<const Bf16> row);  // columns 2 j and 2 j + 1 pair up; the last of an odd row stays alone
  void add(const PairHistogram& other);

  std::uint64_t count(std::uint32_t pair) const { return pairs_[pair]; }  // pair: first << 8 | second
  std::uint64_t lone(std::uint32_t exponent) const { return lone_[exponent]; }
  std::uint64_t weights() const;
  double entropy_bits() const;  // of all pairs: fewer bits than any code of them takes

 private:
  std::vector<std::uint64_t> pairs_, lone_;
};

// Code lengths, at most `max_bits`, that make sum(weight * length) least (package-merge). `weights` ascending, at most
// 2^max_bits of them; lengths come in the same order (descending). One weight gets length 0.
std::vector<std::uint8_t> limited_lengths(std::span<const std::uint64_t> weights, int max_bits);

// The code of least cost for the histogram: streams, table and exceptions together. An exception is counted with more
// than its bits, since it also costs the kernels time. Ties go to fewer and lower pairs, so the choice is
// deterministic. The pair (0,0) is in the code whenever a weight has to be an exception.
PairCode choose_code(const PairHistogram& histogram, int max_bits);

// How an encoder writes each pair (encoder_entry.h).
class PairEncoder {
 public:
  explicit PairEncoder(const PairCode& code);

  std::uint32_t operator[](std::uint32_t pair) const { return entries_[pair]; }
  const std::uint32_t* entries() const { return entries_.data(); }

  // What padding is given: the exponent pair of the cheapest word, and the exponent that makes a pair with `first`
  // cheap and is no exception itself.
  std::uint32_t filler_pair() const { return filler_pair_; }
  std::uint8_t filler_after(std::uint8_t first) const { return filler_after_[first]; }

  // Bits that the histogram's pairs take in streams, and how many exceptions there are. Padding is not counted.
  struct Cost {
    std::uint64_t stream_bits = 0, exceptions = 0;
  };
  Cost cost(const PairHistogram& histogram) const;

 private:
  std::vector<std::uint32_t> entries_;  // [65536]
  std::uint32_t filler_pair_ = 0;
  std::array<std::uint8_t, 256> filler_after_{};
};

}  // namespace glyd::codec
