// A file's units, checked, to their places in the resident layout: nearly a copy, one warp a unit. Units are aligned to
// four bytes only, so words are what is copied; sign+mantissa bytes move 16 a lane and are woven; exceptions turn
// round. Leaps are found in the bits once they are there.

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/resident_block.cuh"
#include "cuda/packing/unit_decode.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32)
    gather_units_kernel(PackedSource source, const std::uint32_t* headers, const std::uint32_t* unit_offsets,
                        const std::uint32_t* table, ResidentTarget to) {
  __shared__ std::uint32_t shared[SharedTable<1>::kWords];
  let_next_start();
  wait_for_previous();
  SharedTable<1>::fill(shared, table, threadIdx.x, kWarps * 32);
  __syncthreads();
  const codec::UnitGrid& grid = source.grid;
  const std::uint64_t index = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= grid.units()) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t tile = index / grid.col_blocks(), block = index % grid.col_blocks();

  const std::uint8_t* const bytes = source.sign_mantissa + grid.sign_mantissa_offset(tile, block) + lane * 16;
  for (std::uint32_t group = 0; group < grid.block_groups(block); ++group) {
    const uint4 v = *reinterpret_cast<const uint4*>(bytes + group * codec::kGroupBytes);
    *reinterpret_cast<uint4*>(place_sign_mantissa(to, tile, block, group) + lane * 16) = {weave(v.x), weave(v.y),
                                                                                          weave(v.z), weave(v.w)};
  }

  const auto* const unit =
      reinterpret_cast<const std::uint32_t*>(source.streams + source.tile_offsets[tile]) + unit_offsets[index];
  const codec::UnitHeader header = codec::decode_unit_header(unit[0]);
  std::uint32_t* const to_starts = place_unit(grid, headers, to, tile, block, lane);
  const std::uint32_t start_words = codec::start_bytes(header) / 4;
  if (lane < start_words) to_starts[lane] = unit[1 + lane];
  const std::uint32_t* const bits = unit + codec::bits_offset(header) / 4;
#pragma unroll 4
  for (std::uint32_t i = lane; i < header.words; i += 32) to_starts[start_words + i] = bits[i];
  __syncwarp();

  const std::uint32_t groups = grid.block_groups(block);
  const std::uint32_t leaps = find_leaps(to_starts + start_words, header.words, lane_start(to_starts, header, lane),
                                         groups, SharedTable<1>(shared, 0));
  const std::uint32_t all = codec::decode_unit_header(headers[index]).exceptions;
  const std::uint32_t* const list = unit + codec::exceptions_offset(header) / 4;
  std::uint32_t taken = 0, written = 0;  // of the file's list, of the new one
  for (std::uint32_t group = 0; group < groups; ++group) {
    std::uint32_t end = 0;
    for (std::uint32_t i = lane; i < header.exceptions; i += 32) end += list[i] >> 25 <= group ? 1 : 0;
    end = __reduce_add_sync(~0u, end);
    const bool has_leaps = __any_sync(~0u, has_leap(leaps, group));
    for (std::uint32_t i = taken + lane; i < end; i += 32) {
      const std::uint32_t number = written + i - taken;
      *(to_starts - 1 - number) =
          resident_exception(list[i] >> 16, list[i] & 0xFFFF, number + 1 == all, i + 1 < end || has_leaps);
    }
    written += end - taken;
    taken = end;
    written += write_leaps(to_starts, leaps, group, written, all, lane);
  }
}

}  // namespace

cudaError_t gather_units(const PackedSource& source, const std::uint32_t* headers, const std::uint32_t* unit_offsets,
                         const std::uint32_t* table, const ResidentTarget& to, cudaStream_t stream) {
  const std::uint64_t blocks = (source.grid.units() + kWarps - 1) / kWarps;
  if (blocks == 0 || blocks >= std::uint64_t{1} << 31) return cudaErrorInvalidValue;
  return launch(gather_units_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * 32), 0, stream, source, headers,
                unit_offsets, table, to);
}

}  // namespace glyd::cuda
