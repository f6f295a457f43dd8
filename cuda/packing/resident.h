#pragma once
// The one layout in which packed weights lie in GPU memory, for every number of columns and every kernel. It holds what
// the file's units hold (docs/format.md), and leaps, gathered into blocks of 64 rows x 256 columns: four row tiles,
// what a warp group takes, with one place in memory and one bulk copy a block.
//
//   sign_mantissa  pages of 64 rows x 64 columns, [group of 32 columns][tile 0..3][32 lanes][4 words], each word woven
//                  (weave()), in pairs (page_places.h), [two row groups][64 columns, an even number][2 pages]: a pair
//                  has a page of an even row group and one of the next, in either order
//   streams        blocks one after another in the order (group of 64 rows, column block), each 16-byte aligned:
//                  4 x u32: a word for each tile (TileWord); a tile that does not exist has the first one's
//                  the units without gaps, each: exceptions, lane starts and bits as in the file
//                  zero words up to a multiple of 16 bytes, and 16 bytes more behind the last block
//   block_offsets  [blocks + 1] u32, 16 bytes each: where a block begins in streams; the last one is their size
//   table          [512] u32 by the next 9 bits of a stream: exponents in bits 7-14 and 23-30, length in bits 0-4
//
// A unit's exceptions and leaps stand in front of its lane starts, the first one next to them, as resident_exception()
// and resident_leap(). How many there are follows from the end of the unit before. Tiles that pad the last group of 64
// rows have no unit, and zeros in sign_mantissa.

#include <cstdint>

#include "codec/packed_matrix.h"
#include "cuda/packing/page_places.h"

namespace glyd::cuda {

inline constexpr std::uint32_t kGroupTiles = 4;
inline constexpr std::uint32_t kGroupRows = kGroupTiles * codec::kTileRows;  // 64
inline constexpr std::uint32_t kBlockHeaderBytes = 4 * kGroupTiles;
inline constexpr std::uint32_t kResidentPad = 12;  // bytes a decoder may read behind a unit's bits, and before them
inline constexpr std::uint32_t kTableEntries = 1u << codec::kCodeBits;

// What a block's head says of a tile. Bit 0: `wide`, 1: whether there are exceptions or leaps, 2-16: where the lane
// starts are, in words from the block's start (so that masked off it is a number of bytes), 17-26: `words`.
struct TileWord {
  std::uint32_t place, words;  // of the lane starts; of the bits
  bool wide, exceptions;

  constexpr std::uint32_t start_words() const { return (wide ? 2 : 1) * codec::kLanes / 4; }
  constexpr std::uint32_t end() const { return place + start_words() + words; }
};
constexpr std::uint32_t encode_tile_word(const TileWord& w) {
  return static_cast<std::uint32_t>(w.wide) | static_cast<std::uint32_t>(w.exceptions) << 1 | w.place << 2 |
         w.words << 17;
}
constexpr TileWord decode_tile_word(std::uint32_t word) {
  return {word >> 2 & 0x7FFF, word >> 17, (word & 1) != 0, (word & 2) != 0};
}

inline constexpr std::uint32_t kResidentLast = 1u << 16, kResidentGoesOn = 1u << 17, kResidentLeap = 1u << 18;

// An entry of the list of exceptions: its position from bit 20 on, the weight, bit 16 set in a unit's last one, and bit
// 17 where the next one is in the same group (so that a kernel need not wait for that one to know). None is 0xFFFFFFFF.
constexpr std::uint32_t resident_exception(std::uint32_t position, std::uint32_t weight, bool last,
                                           bool group_goes_on) {
  return position << 20 | (group_goes_on ? kResidentGoesOn : 0) | (last ? kResidentLast : 0) | weight;
}

// A kernel moves a stream's window on once in a group, by a word where bit 5 of the place in the window changes. The
// four pairs of a group may take up to 36 bits, and so two words: a *leap*. Of Gaussian weights it happens to one of
// the 64 streams in one group of a thousand. Leaps are in the list, behind the exceptions of their group, as an entry
// with the weight +0 at the stream's first weight of the group, and bits 17 and 18 set: whether the group goes on
// behind it, a kernel has the time to see from the next entry.
constexpr std::uint32_t resident_leap(std::uint32_t group, std::uint32_t lane, bool lower, bool last) {
  const std::uint32_t position = group * codec::kGroupBytes + lane * 16 + (lower ? 2 : 0);
  return resident_exception(position, 0, last, true) | kResidentLeap;
}
// The leaps of a lane's stream as bits, one a group. The place in the window, 7 bits behind which the stream goes on,
// is that of a word's bit; seen from the downward stream words are mirrored.
class LeapFinder {
 public:
  // `start`: the lane's, in bits.
  constexpr LeapFinder(std::uint32_t start, bool lower) : place_((lower ? 0 - start : start) - 7) {}
  // The next group, whose four pairs take `bits`.
  constexpr void add(std::uint32_t bits) {
    leaps_ |= (place_ % 32 + bits >= 64 ? 1u : 0) << group_++;
    place_ += bits;
  }
  constexpr std::uint32_t leaps() const { return leaps_; }

 private:
  std::uint32_t place_, leaps_ = 0, group_ = 0;
};

// Of both streams of a lane: bit g says that row g's has a leap in group g, bit 8 + g that of row g + 8.
constexpr bool has_leap(std::uint32_t leaps, std::uint32_t group) { return (leaps >> group & 0x101) != 0; }

// Words of a unit that has `unit_bytes` in the file, or more by its leaps if they are counted as exceptions: all but
// its header.
constexpr std::uint32_t resident_unit_words(const codec::UnitHeader& h) { return codec::unit_bytes(h) / 4 - 1; }
// Words of a block whose units take `unit_words`.
constexpr std::uint32_t resident_block_words(std::uint32_t unit_words, bool last_block) {
  return (kBlockHeaderBytes / 4 + unit_words + 3) / 4 * 4 + (last_block ? 4 : 0);
}

// A word of four sign+mantissa bytes b0 .. b3 of the file, rearranged so that no instruction is spent on spreading
// them: mantissas of b0 in bits 0-6, of b1 in 16-22, their signs in 15 and 31, where a pair of bf16 has them; those of
// b2 and b3 in the same places once the word is rotated right by 8.
constexpr std::uint32_t weave(std::uint32_t bytes) {
  const std::uint32_t b0 = bytes & 0xFF, b1 = bytes >> 8 & 0xFF, b2 = bytes >> 16 & 0xFF, b3 = bytes >> 24;
  return (b0 & 0x7F) | (b3 & 0x80) | (b2 & 0x7F) << 8 | (b0 & 0x80) << 8 | (b1 & 0x7F) << 16 | (b2 & 0x80) << 16 |
         (b3 & 0x7F) << 24 | (b1 & 0x80) << 24;
}

inline constexpr std::uint32_t kSlabBytes = kGroupTiles * codec::kGroupBytes;  // 64 rows x 32 columns of sign_mantissa
static_assert(2 * kSlabBytes == kPageBytes);

// Device pointers; the memory is the owner's.
struct ResidentMatrix {
  std::int64_t rows = 0, cols = 0;
  const std::uint8_t* sign_mantissa = nullptr;  // at a multiple of kQuadBytes, or of 2 where sides are known
  const std::uint8_t* streams = nullptr;
  const std::uint32_t* block_offsets = nullptr;
  const std::uint32_t* table = nullptr;
  std::uint32_t max_block_bytes = 0;  // of the largest block
  std::uint32_t first_group = 0;      // which of all row groups the first one is, where this is a part of a matrix
  // Runs of thread blocks that were taken, from either end: zero between launches. None where the sides are not known.
  std::uint32_t* claims = nullptr;
  PagePlaces places;

  constexpr codec::UnitGrid grid() const {
    return {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)};
  }
  constexpr std::int64_t row_groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
  constexpr std::int64_t col_blocks() const { return static_cast<std::int64_t>(grid().col_blocks()); }
  constexpr std::int64_t col_groups() const { return static_cast<std::int64_t>(grid().groups()); }
  constexpr std::int64_t blocks() const { return row_groups() * col_blocks(); }
  // Of a block in a kernel's shared memory, with what a decoder may read behind it.
  static constexpr std::uint32_t slot_bytes(std::uint32_t block) { return (block + kResidentPad + 127) / 128 * 128; }
  constexpr std::uint32_t slot_bytes() const { return slot_bytes(max_block_bytes); }
  // Rows first_row (a multiple of 64) to first_row + part_rows, as a matrix. It has the claims of all of it.
  constexpr ResidentMatrix part(std::int64_t first_row, std::int64_t part_rows) const {
    ResidentMatrix m = *this;
    m.rows = part_rows;
    m.first_group += static_cast<std::uint32_t>(first_row / kGroupRows);
    m.block_offsets += first_row / kGroupRows * col_blocks();
    return m;
  }
  constexpr std::int64_t row_pages() const { return (col_groups() + 3) / 4 * 2; }
  // Of all of a matrix.
  constexpr std::int64_t sign_mantissa_bytes() const { return (row_groups() + 1) / 2 * row_pages() * kPairBytes; }
  // From sign_mantissa, which lies at `address`, to the tiles of a group of 64 rows and one of 32 columns.
  constexpr std::uint64_t slab_offset(std::uint64_t address, std::uint64_t row_group, std::uint64_t col_group) const {
    const std::uint64_t group = first_group + row_group;
    const bool odd = group % 2 != 0;
    const std::uint64_t pair = (group / 2 * static_cast<std::uint64_t>(row_pages()) + col_group / 2) * kPairBytes;
    return pair + (places.turned(address + pair) != odd ? kPageBytes : 0) + col_group % 2 * kSlabBytes;
  }
};

}  // namespace glyd::cuda
