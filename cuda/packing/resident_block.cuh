#pragma once
// Writing the resident layout: a warp finds the place of its unit, and writes what its block has besides units.

#include <cstdint>

#include "cuda/packing/packing.h"

namespace glyd::cuda {

// A unit's header word for the steps to come: its leaps count as exceptions, but not in the size of the file. A weight
// can be an exception, and each of a unit's streams has at most one leap a group: the header's 13 bits hold them all.
static_assert(codec::kTileRows * codec::kBlockCols + 2 * codec::kLanes * codec::kBlockGroups < 1u << 13);
__device__ __forceinline__ void add_leaps(std::uint32_t* headers, std::uint64_t unit, codec::UnitHeader header,
                                          std::uint32_t leaps, PackSummary* summary, std::uint32_t lane) {
  if (lane != 0) return;
  header.exceptions += leaps;
  headers[unit] = codec::encode_unit_header(header);
  if (leaps != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&summary->unit_bytes), 0ull - 4 * leaps);
}

// Where the lane starts of (tile, block) go; the exceptions come before them, the bits behind. All lanes of a warp call
// it. The warp of a block's first unit also writes the block's header, that of its last the zeros at the end.
__device__ __forceinline__ std::uint32_t* place_unit(const codec::UnitGrid& grid, const std::uint32_t* headers,
                                                     const ResidentTarget& to, std::uint64_t tile, std::uint64_t block,
                                                     std::uint32_t lane) {
  const std::uint64_t first_tile = tile / kGroupTiles * kGroupTiles;
  const std::uint64_t index = tile / kGroupTiles * grid.col_blocks() + block;
  const std::uint32_t begin = to.matrix.block_offsets[index], end = to.matrix.block_offsets[index + 1];
  auto* const start = reinterpret_cast<std::uint32_t*>(to.streams + std::uint64_t{begin} * 16);

  std::uint32_t words = 0, word = 0;  // of the unit of tile `lane`
  codec::UnitHeader header{};
  if (lane < kGroupTiles && first_tile + lane < grid.row_tiles()) {
    header = codec::decode_unit_header(headers[grid.unit(first_tile + lane, block)]);
    words = resident_unit_words(header);
  }
  std::uint32_t at = kBlockHeaderBytes / 4, place = 0;
  for (std::uint32_t t = 0; t < kGroupTiles; ++t) {
    const std::uint32_t size = __shfl_sync(~0u, words, static_cast<int>(t));
    const std::uint32_t starts = at + __shfl_sync(~0u, header.exceptions, static_cast<int>(t));
    if (t == tile - first_tile) place = starts;
    if (t == lane) word = encode_tile_word({starts, header.words, header.wide, header.exceptions != 0});
    at += size;
  }
  const std::uint32_t first_word = __shfl_sync(~0u, word, 0);
  if (tile == first_tile && lane < kGroupTiles) start[lane] = words != 0 ? word : first_word;
  if (tile == first_tile + kGroupTiles - 1 || tile + 1 == grid.row_tiles())
    for (std::uint32_t i = at + lane; i < (end - begin) * 4; i += 32) start[i] = 0;
  return start + place;
}

// Writes the leaps of a group as entries `first` and so on of a list of `all` that ends at `list`, and returns how many
// they are. `leaps`: the lane's (find_leaps()). All lanes of a warp call it.
__device__ __forceinline__ std::uint32_t write_leaps(std::uint32_t* list, std::uint32_t leaps, std::uint32_t group,
                                                     std::uint32_t first, std::uint32_t all, std::uint32_t lane) {
  std::uint32_t written = first;
  for (const bool is_lower : {false, true}) {
    const std::uint32_t lanes = __ballot_sync(~0u, leaps >> (is_lower ? codec::kBlockGroups + group : group) & 1);
    const std::uint32_t number = written + __popc(lanes & ((1u << lane) - 1));
    if (lanes >> lane & 1) *(list - 1 - number) = resident_leap(group, lane, is_lower, number + 1 == all);
    written += __popc(lanes);
  }
  return written - first;
}

// Where the sign+mantissa bytes of a tile go in one of its block's groups.
__device__ __forceinline__ std::uint8_t* place_sign_mantissa(const ResidentTarget& to, std::uint64_t tile,
                                                             std::uint64_t block, std::uint32_t group) {
  return to.sign_mantissa +
         to.matrix.slab_offset(reinterpret_cast<std::uint64_t>(to.sign_mantissa), tile / kGroupTiles,
                               block * codec::kBlockGroups + group) +
         tile % kGroupTiles * codec::kGroupBytes;
}

}  // namespace glyd::cuda
