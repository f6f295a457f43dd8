#pragma once
// Writing the resident layout: a warp finds the place of its unit, and writes what its block has besides units.

#include <cstdint>

#include "cuda/packing/packing.h"

namespace glyd::cuda {

// Words of a block whose units take `unit_words`: its header, the units, and the zeros behind them.
__device__ __forceinline__ std::uint32_t block_words(std::uint32_t unit_words) {
  return (kBlockHeaderBytes / 4 + unit_words + kResidentPad / 4 + 3) / 4 * 4;
}

// Where the unit of (tile, block) goes. All lanes of a warp call it. The warp of a block's first unit also writes the
// block's header, that of its last the zeros at the end.
__device__ __forceinline__ std::uint32_t* place_unit(const codec::UnitGrid& grid, const std::uint32_t* headers,
                                                     const ResidentTarget& to, std::uint64_t tile, std::uint64_t block,
                                                     std::uint32_t lane) {
  const std::uint64_t first_tile = tile / kGroupTiles * kGroupTiles;
  const std::uint64_t index = tile / kGroupTiles * grid.col_blocks() + block;
  const std::uint32_t begin = to.block_offsets[index], end = to.block_offsets[index + 1];
  auto* const start = reinterpret_cast<std::uint32_t*>(to.streams + std::uint64_t{begin} * 16);

  std::uint32_t words = 0;  // of the unit of tile `lane`
  if (lane < kGroupTiles && first_tile + lane < grid.row_tiles())
    words = codec::unit_bytes(codec::decode_unit_header(headers[grid.unit(first_tile + lane, block)])) / 4;
  std::uint32_t at = kBlockHeaderBytes / 4, place = 0, offset = 0;
  for (std::uint32_t t = 0; t < kGroupTiles; ++t) {
    const std::uint32_t size = __shfl_sync(~0u, words, static_cast<int>(t));
    if (t == tile - first_tile) place = at;
    if (t == lane && size > 0) offset = at;
    at += size;
  }
  if (tile == first_tile && lane < kBlockHeaderBytes / 2)
    reinterpret_cast<std::uint16_t*>(start)[lane] = static_cast<std::uint16_t>(offset);
  if (tile == first_tile + kGroupTiles - 1 || tile + 1 == grid.row_tiles())
    for (std::uint32_t i = at + lane; i < (end - begin) * 4; i += 32) start[i] = 0;
  return start + place;
}

// The unit's sign+mantissa bytes of its first group; the next groups' follow kGroupTiles * kGroupBytes apart.
__device__ __forceinline__ std::uint8_t* place_sign_mantissa(const codec::UnitGrid& grid, const ResidentTarget& to,
                                                             std::uint64_t tile, std::uint64_t block) {
  const std::uint64_t group = tile / kGroupTiles * grid.groups() + block * codec::kBlockGroups;
  return to.sign_mantissa + (group * kGroupTiles + tile % kGroupTiles) * codec::kGroupBytes;
}

}  // namespace glyd::cuda
