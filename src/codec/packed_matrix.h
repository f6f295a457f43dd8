#pragma once
// The shape of a packed matrix: constants, index arithmetic and a view as plain structs. Device code includes this
// file. docs/format.md tells the whole format; the words used here (unit, lane, position) are defined there.

#include <cstdint>

namespace glyd::codec {

inline constexpr std::uint32_t kTileRows = 16;    // rows of a unit
inline constexpr std::uint32_t kBlockCols = 256;  // columns of a unit; the last column block may be narrower
inline constexpr std::uint32_t kGroupCols =
    32;  // columns whose weights a lane reads as 16 bytes: two k16 steps of an MMA
inline constexpr std::uint32_t kLanes = 32;
inline constexpr std::uint32_t kBlockGroups = kBlockCols / kGroupCols;
inline constexpr std::uint32_t kGroupBytes = kTileRows * kGroupCols;  // sign+mantissa bytes of a group
inline constexpr std::uint32_t kUnitWeights = kTileRows * kBlockCols;

inline constexpr int kMaxCodeBits = 12;  // longest code word of the format
inline constexpr int kCodeBits = 9;      // what packers use: the kernels' table has 512 entries

inline constexpr std::uint64_t kAlignment = 16;  // of sections, bytes; units are aligned to their 4-byte words

// The 64 bytes that a packed matrix starts with; little-endian. Everything else follows from them (docs/format.md).
struct PackedHeader {
  char magic[8];  // "GLYDMATR"
  std::uint32_t version;
  std::uint32_t code_bytes;  // of the code section, padding not counted
  std::uint64_t rows, cols;
  std::uint64_t stream_bytes;  // of the stream section
  std::uint64_t reserved[3];   // zero
};
static_assert(sizeof(PackedHeader) == 64);
inline constexpr char kMagic[9] = "GLYDMATR";
inline constexpr std::uint32_t kVersion = 1;

// How a rows x cols matrix is cut into units.
struct UnitGrid {
  std::uint64_t rows = 0, cols = 0;

  constexpr std::uint64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  constexpr std::uint64_t col_blocks() const { return (cols + kBlockCols - 1) / kBlockCols; }
  constexpr std::uint64_t units() const { return row_tiles() * col_blocks(); }
  constexpr std::uint64_t groups() const { return (cols + kGroupCols - 1) / kGroupCols; }  // of a row tile
  constexpr std::uint64_t unit(std::uint64_t tile, std::uint64_t block) const { return tile * col_blocks() + block; }
  constexpr std::uint32_t block_groups(std::uint64_t block) const {
    const std::uint64_t left = groups() - block * kBlockGroups;
    return static_cast<std::uint32_t>(left < kBlockGroups ? left : kBlockGroups);
  }
  // Real rows of a tile and real columns of a block; the rest is padding.
  constexpr std::uint32_t tile_rows(std::uint64_t tile) const {
    const std::uint64_t left = rows - tile * kTileRows;
    return static_cast<std::uint32_t>(left < kTileRows ? left : kTileRows);
  }
  constexpr std::uint32_t block_cols(std::uint64_t block) const {
    const std::uint64_t left = cols - block * kBlockCols;
    return static_cast<std::uint32_t>(left < kBlockCols ? left : kBlockCols);
  }
  constexpr std::uint64_t sign_mantissa_bytes() const { return row_tiles() * groups() * kGroupBytes; }
  constexpr std::uint64_t sign_mantissa_offset(std::uint64_t tile, std::uint64_t block) const {
    return (tile * groups() + block * kBlockGroups) * kGroupBytes;
  }
};

// A weight's position is the place of its sign+mantissa byte in its unit: group 3 bits, lane 5 bits (g = lane / 4,
// q = lane % 4), byte 4 bits. Lane (g, q) holds rows g and g + 8 of columns 8 q .. 8 q + 7 of the group, two columns
// of row g, the same two of row g + 8, and so on: the A fragments of two m16n8k16 steps.
constexpr std::uint32_t position_of(std::uint32_t row, std::uint32_t col) {
  const std::uint32_t lane = (row & 7) * 4 + (col >> 3 & 3);
  const std::uint32_t byte = (col >> 1 & 3) * 4 + (row >> 3) * 2 + (col & 1);
  return (col / kGroupCols) << 9 | lane << 4 | byte;
}
constexpr std::uint32_t row_of(std::uint32_t position) { return (position >> 6 & 7) + (position >> 1 & 1) * 8; }
constexpr std::uint32_t col_of(std::uint32_t position) {
  return (position >> 9) * kGroupCols + (position >> 4 & 3) * 8 + (position >> 2 & 3) * 2 + (position & 1);
}

// The first word of a unit in the stream section. Its parts follow each other: this word, lane starts, exceptions,
// bits.
struct UnitHeader {
  std::uint32_t words;       // of the bits, 4 bytes each; as bits, also the average distance of two lanes' starts
  bool wide;                 // lane starts are 16-bit numbers and not 8-bit deviations
  std::uint32_t exceptions;  // entries of the exception list, 4 bytes each
  std::uint32_t group_mask;  // bit i: group i has an exception
};
constexpr std::uint32_t encode_unit_header(const UnitHeader& h) {
  return h.words | static_cast<std::uint32_t>(h.wide) << 10 | h.exceptions << 11 | h.group_mask << 24;
}
constexpr UnitHeader decode_unit_header(std::uint32_t word) {
  return {word & 0x3FF, (word >> 10 & 1) != 0, word >> 11 & 0x1FFF, word >> 24};
}
inline constexpr std::int32_t kStartBias =
    128;  // narrow: lane i starts at bit words * i + words / 2 + byte[i] - kStartBias
constexpr std::uint32_t start_bytes(const UnitHeader& h) { return h.wide ? 2 * kLanes : kLanes; }
constexpr std::uint32_t exceptions_offset(const UnitHeader& h) { return 4 + start_bytes(h); }
constexpr std::uint32_t bits_offset(const UnitHeader& h) { return exceptions_offset(h) + 4 * h.exceptions; }
constexpr std::uint32_t unit_bytes(const UnitHeader& h) { return bits_offset(h) + 4 * h.words; }

// An exception list entry: position << 16 | the weight's 16 bits.
constexpr std::uint32_t exception_entry(std::uint32_t position, std::uint16_t weight) {
  return position << 16 | weight;
}

// Where the sections of a packed matrix lie; the memory is the caller's.
struct PackedMatrix {
  UnitGrid grid;
  const std::uint8_t* code = nullptr;  // serialized pair code
  std::uint32_t code_bytes = 0;
  const std::uint8_t* tile_sizes =
      nullptr;  // [row tiles] u32: size of the tile's units in the stream section, in 4 bytes
  const std::uint8_t* sign_mantissa = nullptr;  // [row tiles][groups][32 lanes][16 bytes]
  const std::uint8_t* streams = nullptr;        // units one after another, (row tile, column block) order
  std::uint64_t stream_bytes = 0;
};

// Byte offsets of the sections, from the start of the packed matrix.
struct SectionOffsets {
  std::uint64_t code, tile_sizes, sign_mantissa, streams, end;
};
constexpr std::uint64_t align_up(std::uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }
constexpr SectionOffsets section_offsets(const UnitGrid& grid, std::uint32_t code_bytes, std::uint64_t stream_bytes) {
  SectionOffsets s{};
  s.code = sizeof(PackedHeader);
  s.tile_sizes = align_up(s.code + code_bytes);
  s.sign_mantissa = align_up(s.tile_sizes + 4 * grid.row_tiles());
  s.streams = s.sign_mantissa + grid.sign_mantissa_bytes();
  s.end = s.streams + stream_bytes;
  return s;
}

}  // namespace glyd::codec
