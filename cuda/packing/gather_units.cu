// A file's units, checked, to their places in the resident layout: nearly a copy, one warp a unit. Units are aligned to
// four bytes only, so words are what is copied; sign+mantissa bytes move 16 a lane and are woven; exceptions turn
// round.

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/resident_block.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32)
    gather_units_kernel(PackedSource source, const std::uint32_t* headers, const std::uint32_t* unit_offsets,
                        ResidentTarget to) {
  let_next_start();
  wait_for_previous();
  const codec::UnitGrid& grid = source.grid;
  const std::uint64_t index = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= grid.units()) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t tile = index / grid.col_blocks(), block = index % grid.col_blocks();

  const std::uint8_t* const bytes = source.sign_mantissa + grid.sign_mantissa_offset(tile, block) + lane * 16;
  std::uint8_t* const to_bytes = place_sign_mantissa(grid, to, tile, block) + lane * 16;
  for (std::uint32_t group = 0; group < grid.block_groups(block); ++group) {
    const uint4 v = *reinterpret_cast<const uint4*>(bytes + group * codec::kGroupBytes);
    *reinterpret_cast<uint4*>(to_bytes + group * (kGroupTiles * codec::kGroupBytes)) = {weave(v.x), weave(v.y),
                                                                                        weave(v.z), weave(v.w)};
  }

  const auto* const unit =
      reinterpret_cast<const std::uint32_t*>(source.streams + source.tile_offsets[tile]) + unit_offsets[index];
  const codec::UnitHeader header = codec::decode_unit_header(headers[index]);
  std::uint32_t* const to_starts = place_unit(grid, headers, to, tile, block, lane);
  const std::uint32_t start_words = codec::start_bytes(header) / 4;
  if (lane < start_words) to_starts[lane] = unit[1 + lane];
  const std::uint32_t* const list = unit + codec::exceptions_offset(header) / 4;
  for (std::uint32_t i = lane; i < header.exceptions; i += 32)
    to_starts[-1 - static_cast<std::int32_t>(i)] = resident_exception(list, i, header.exceptions);
  const std::uint32_t* const bits = unit + codec::bits_offset(header) / 4;
#pragma unroll 4
  for (std::uint32_t i = lane; i < header.words; i += 32) to_starts[start_words + i] = bits[i];
}

}  // namespace

cudaError_t gather_units(const PackedSource& source, const std::uint32_t* headers, const std::uint32_t* unit_offsets,
                         const ResidentTarget& to, cudaStream_t stream) {
  const std::uint64_t blocks = (source.grid.units() + kWarps - 1) / kWarps;
  if (blocks == 0 || blocks >= std::uint64_t{1} << 31) return cudaErrorInvalidValue;
  return launch(gather_units_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * 32), 0, stream, source, headers,
                unit_offsets, to);
}

}  // namespace glyd::cuda
