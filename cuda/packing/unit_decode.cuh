#pragma once
// One unit of the resident layout (16 rows x 256 columns) back to bf16, by one warp. Lane (g, q) = 4 g + q has 8
// columns of rows g and g + 8 in every group of 32: two bit streams that leave from one bit in opposite directions.
//
// The downward stream is read as if it were an upward one in mirrored memory: words in descending order, each with its
// bits reversed. A window keeps 7 bits that are done with below the next ones, so that the index into the table stands
// at bits 7-15: times 128, it is the address of an entry that has 32 copies. Shifts take their count modulo 32, so a
// table entry is its own shift count, and of the sum of entries the low five bits are the place in the window, bit 5
// says that a word was crossed, and what lies above is of no meaning.

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/packing/resident.h"

namespace glyd::cuda {

inline constexpr std::uint32_t kWindowDone = 7;  // bits of a window below the index
inline constexpr std::uint32_t kMaxUnitWords = codec::kUnitWeights / 2 * codec::kCodeBits / 32;  // of a unit's bits
inline constexpr std::uint32_t kPadWords = kResidentPad / 4;

// The decode table in shared memory. With 32 copies, entry by entry, each lane has a bank of its own.
template <int kCopies>
class SharedTable {
  static_assert(kCopies == 1 || kCopies == 32);

 public:
  static constexpr std::uint32_t kWords = kTableEntries * kCopies;

  // To be called by all `threads` of a block, which then synchronise.
  static __device__ __forceinline__ void fill(std::uint32_t* shared, const std::uint32_t* table, std::uint32_t thread,
                                              std::uint32_t threads) {
    for (std::uint32_t i = thread; i < kWords; i += threads) shared[i] = table[i / kCopies];
  }

  __device__ __forceinline__ SharedTable(const std::uint32_t* shared, std::uint32_t lane)
      : base_(reinterpret_cast<const unsigned char*>(shared)), copy_(lane * 4) {}

  __device__ __forceinline__ std::uint32_t operator[](std::uint32_t window) const {
    const std::uint32_t place = kCopies == 32 ? select_bits(window, copy_, 0xFF80) : window >> 5 & 0x7FC;
    return *reinterpret_cast<const std::uint32_t*>(base_ + place);
  }

 private:
  const unsigned char* base_;
  std::uint32_t copy_;
};

// The pairs of one row and lane, in the order of columns. `bits`: `words` words, in shared or global memory, with
// kPadWords more that may be read on either side.
template <bool kUp>
class PairStream {
 public:
  __device__ __forceinline__ PairStream(const std::uint32_t* bits, std::uint32_t words, std::uint32_t start) {
    const std::int32_t place = static_cast<std::int32_t>(kUp ? start : 32 * words - start) - kWindowDone;
    const std::int32_t word = place >> 5;  // -1 for the first bits
    next_ = kUp ? bits + word : bits + words - 1 - word;
    place_ = static_cast<std::uint32_t>(place) & 31;
    low_ = fetch();
    high_ = fetch();
  }

  // The table entries of the next two pairs.
  template <class Table>
  __device__ __forceinline__ void next_two(const Table& table, std::uint32_t& first, std::uint32_t& second) {
    std::uint32_t window = __funnelshift_r(low_, high_, place_);
    first = table[window];
    window = __funnelshift_r(window, 0, first);
    second = table[window];
    place_ += first + second;
    if (place_ & 32) {
      low_ = high_;
      high_ = fetch();
      place_ ^= 32;
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t fetch() {
    const std::uint32_t word = *next_;
    next_ += kUp ? 1 : -1;
    return kUp ? word : __brev(word);
  }

  const std::uint32_t* next_;
  std::uint32_t low_, high_, place_;
};

// Where a lane's streams start, from its unit's lane starts.
template <class Header>
__device__ __forceinline__ std::uint32_t lane_start(const std::uint32_t* starts, const Header& header,
                                                    std::uint32_t lane) {
  if (header.wide) return reinterpret_cast<const std::uint16_t*>(starts)[lane];
  return header.words * lane + header.words / 2 + reinterpret_cast<const std::uint8_t*>(starts)[lane] -
         codec::kStartBias;
}

// The leaps of a lane's two streams (has_leap()).
template <class Table>
__device__ __forceinline__ std::uint32_t find_leaps(const std::uint32_t* bits, std::uint32_t words, std::uint32_t start,
                                                    std::uint32_t groups, const Table& table) {
  PairStream<true> up(bits, words, start);
  PairStream<false> down(bits, words, start);
  LeapFinder upper(start, false), lower(start, true);
  for (std::uint32_t group = 0; group < groups; ++group) {
    std::uint32_t a, b, c, d;
    up.next_two(table, a, b);
    up.next_two(table, c, d);
    upper.add((a & 31) + (b & 31) + (c & 31) + (d & 31));
    down.next_two(table, a, b);
    down.next_two(table, c, d);
    lower.add((a & 31) + (b & 31) + (c & 31) + (d & 31));
  }
  return upper.leaps() | lower.leaps() << codec::kBlockGroups;
}

// Two weights of a lane: the exponents of a table entry, signs and mantissas of a woven word: row g's where they
// belong, those of row g + 8 turned out of place by 8 bits.
template <bool kLower>
__device__ __forceinline__ std::uint32_t join_pair(std::uint32_t entry, std::uint32_t woven) {
  return select_bits(entry, kLower ? __funnelshift_r(woven, woven, 8) : woven, 0x7F807F80);
}

// The next 8 weights of one row, row g or (kLower) row g + 8: four pairs of its stream joined with the lane's four
// woven words.
template <bool kLower, class Stream, class Table>
__device__ __forceinline__ uint4 next_eight(Stream& stream, const Table& table, uint4 woven) {
  std::uint32_t a, b, c, d;
  stream.next_two(table, a, b);
  stream.next_two(table, c, d);
  return {join_pair<kLower>(a, woven.x), join_pair<kLower>(b, woven.y), join_pair<kLower>(c, woven.z),
          join_pair<kLower>(d, woven.w)};
}

// Zeros in the place of all but the first `count` of eight weights.
__device__ __forceinline__ uint4 keep_first(uint4 v, int count) {
  const auto keep = [count](std::uint32_t pair, int at) {
    return count >= at + 2 ? pair : count == at + 1 ? pair & 0xFFFF : 0;
  };
  return count >= 8 ? v : uint4{keep(v.x, 0), keep(v.y, 2), keep(v.z, 4), keep(v.w, 6)};
}

// A unit where it lies in the resident layout.
struct ResidentUnit {
  const std::uint32_t* starts;  // lane starts, with the exceptions before them
  TileWord header;
  std::uint32_t groups, exceptions;

  __device__ __forceinline__ ResidentUnit(const ResidentMatrix& m, std::uint32_t row_group, std::uint32_t block,
                                          std::uint32_t tile)
      : page_(reinterpret_cast<std::uint64_t>(m.sign_mantissa) +
              m.slab_offset(reinterpret_cast<std::uint64_t>(m.sign_mantissa), row_group, block * codec::kBlockGroups)),
        tile_(tile) {
    const std::uint32_t col_blocks = static_cast<std::uint32_t>(m.col_blocks());
    const std::uint64_t at = m.block_offsets[static_cast<std::uint64_t>(row_group) * col_blocks + block];
    const std::uint8_t* const start = m.streams + at * 16;
    const auto* const words = reinterpret_cast<const std::uint32_t*>(start);
    header = decode_tile_word(words[tile]);
    starts = words + header.place;
    exceptions = header.place - (tile == 0 ? kBlockHeaderBytes / 4 : decode_tile_word(words[tile - 1]).end());
    groups = m.grid().block_groups(block);
  }
  __device__ __forceinline__ const std::uint8_t* sign_mantissa(std::uint32_t group) const {
    return reinterpret_cast<const std::uint8_t*>(slab_of_block(page_, group)) + tile_ * codec::kGroupBytes;
  }
  __device__ __forceinline__ std::uint32_t exception(std::uint32_t i) const {
    return *(starts - 1 - static_cast<std::int32_t>(i));
  }
  __device__ __forceinline__ const std::uint32_t* bits() const { return starts + header.start_words(); }

 private:
  std::uint64_t page_;  // the block's first
  std::uint32_t tile_;
};

}  // namespace glyd::cuda
