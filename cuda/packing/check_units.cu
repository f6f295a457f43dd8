// A file's units are looked at once, before any product trusts them: find_units walks along each row tile, check_units
// decodes every unit and checks what codec::UnitDecoder checks, in its order. Nothing is read outside the matrix: a
// unit's parts lie inside its tile before they are touched, and its bits are followed in a copy with margins of zeros.

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/resident_block.cuh"
#include "cuda/packing/unit_decode.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kWarps = 8;
// A lane's streams are followed for their whole length before their ends are compared: a damaged one leaves the unit by
// as much as 32 words of 9 bits, and by the words that are read ahead.
constexpr std::uint32_t kMargin = codec::kBlockCols / 8 * codec::kCodeBits / 32 + 3;
constexpr std::uint32_t kSlotWords = kMargin + kMaxUnitWords + kMargin;

__device__ __forceinline__ void report(PackSummary* summary, std::uint64_t unit, Problem problem) {
  atomicMax(reinterpret_cast<unsigned long long*>(&summary->problem),
            ~(static_cast<unsigned long long>(unit) << 8 | static_cast<unsigned long long>(problem)));
}

__global__ void __launch_bounds__(kThreads)
    find_units_kernel(PackedSource source, std::uint32_t* headers, std::uint32_t* unit_offsets, PackSummary* summary) {
  let_next_start();
  wait_for_previous();
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (tile >= source.grid.row_tiles()) return;
  const std::uint64_t begin = source.tile_offsets[tile], end = source.tile_offsets[tile + 1];
  std::uint64_t at = begin;
  for (std::uint64_t block = 0; block < source.grid.col_blocks(); ++block) {
    const std::uint64_t unit = source.grid.unit(tile, block), left = end - at;
    const std::uint32_t word = left < 4 ? 0 : *reinterpret_cast<const std::uint32_t*>(source.streams + at);
    const std::uint32_t size = codec::unit_bytes(codec::decode_unit_header(word));
    if (size > left) return report(summary, source.grid.unit(tile, 0), Problem::TileEndsInUnit);
    headers[unit] = word;
    unit_offsets[unit] = static_cast<std::uint32_t>((at - begin) / 4);
    at += size;
  }
  if (at != end) report(summary, source.grid.unit(tile, 0), Problem::TileTooLong);
}

// Whether find_units could not walk along some tile. Its problems are the only ones that are there before check_units
// starts; those that other blocks of check_units report meanwhile do not count here.
__device__ __forceinline__ bool has_lost_tiles(const PackSummary& summary) {
  const auto problem = static_cast<Problem>(~summary.problem & 255);
  return summary.problem != 0 && (problem == Problem::TileEndsInUnit || problem == Problem::TileTooLong);
}

struct WarpMemory {
  std::uint32_t slot[kSlotWords];
  std::uint16_t zeros[codec::kBlockGroups * codec::kLanes];  // by position / 16: which weights are exactly +0
};

__device__ __forceinline__ std::uint32_t zero_halves(std::uint32_t pair) {
  return ((pair & 0xFFFF) == 0 ? 1u : 0) | ((pair >> 16) == 0 ? 2u : 0);
}

// Follows the lane's streams through the copy of the bits, and notes which weights are zero.
__device__ __forceinline__ Problem check_streams(WarpMemory& memory, const SharedTable<1>& table,
                                                 const codec::UnitHeader& header, std::uint32_t groups,
                                                 const std::uint8_t* sign_mantissa, std::uint32_t start,
                                                 std::uint32_t lane) {
  const std::uint32_t* const bits = memory.slot + kMargin;
  PairStream<true> up(bits, header.words, start);
  PairStream<false> down(bits, header.words, start);
  std::uint32_t up_bits = 0, down_bits = 0;
  for (std::uint32_t group = 0; group < groups; ++group) {
    const uint4 v = *reinterpret_cast<const uint4*>(sign_mantissa + group * codec::kGroupBytes + lane * 16);
    const std::uint32_t woven[4] = {weave(v.x), weave(v.y), weave(v.z), weave(v.w)};
    std::uint32_t zeros = 0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      std::uint32_t a[2], b[2];
      up.next_two(table, a[0], a[1]);
      down.next_two(table, b[0], b[1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        up_bits += a[j] & 31;
        down_bits += b[j] & 31;
        zeros |=
            (zero_halves(join_pair<false>(a[j], woven[i + j])) | zero_halves(join_pair<true>(b[j], woven[i + j])) << 2)
            << 4 * (i + j);
      }
    }
    memory.zeros[group * codec::kLanes + lane] = static_cast<std::uint16_t>(zeros);
  }
  const std::uint32_t end = start + up_bits, before = __shfl_up_sync(~0u, end, 1);
  if (__any_sync(~0u, start - down_bits != (lane == 0 ? 0 : before))) return Problem::StreamEnd;
  const std::uint32_t last = __shfl_sync(~0u, end, 31);
  if ((last + 31) / 32 != header.words) return Problem::LastStreamEnd;
  if (last % 32 != 0 && bits[last / 32] >> last % 32 != 0) return Problem::Padding;
  return Problem::None;
}

// Of all that is wrong with the list, what comes first.
__device__ __forceinline__ Problem check_exceptions(const WarpMemory& memory, const codec::UnitHeader& header,
                                                    const std::uint32_t* list, std::uint32_t rows, std::uint32_t cols,
                                                    std::uint32_t lane) {
  std::uint32_t first = ~0u, mask = 0;  // entry << 8 | problem
  for (std::uint32_t i = lane; i < header.exceptions; i += 32) {
    const std::uint32_t position = list[i] >> 16;
    Problem problem = Problem::None;
    if (i > 0 && position <= list[i - 1] >> 16) {
      problem = Problem::ExceptionOrder;
    } else if (position >= codec::kUnitWeights || codec::row_of(position) >= rows || codec::col_of(position) >= cols) {
      problem = Problem::ExceptionOutside;
    } else if ((memory.zeros[position / 16] >> position % 16 & 1) == 0) {
      problem = Problem::ExceptionOnWeight;
    }
    if (problem != Problem::None) first = min(first, i << 8 | static_cast<std::uint32_t>(problem));
    mask |= 1u << (position >> 9 & 31);
  }
  first = __reduce_min_sync(~0u, first);
  if (first != ~0u) return static_cast<Problem>(first & 255);
  return __reduce_or_sync(~0u, mask) == header.group_mask ? Problem::None : Problem::ExceptionGroups;
}

__device__ __forceinline__ Problem check_unit(const PackedSource& source, const SharedTable<1>& table,
                                              WarpMemory& memory, std::uint64_t tile, std::uint64_t block,
                                              const std::uint32_t* unit, const codec::UnitHeader& header,
                                              std::uint32_t lane) {
  if (header.words > kMaxUnitWords) return Problem::LaneStart;
  const std::uint32_t start = lane_start(unit + 1, header, lane);
  if (__any_sync(~0u, start > 32 * header.words)) return Problem::LaneStart;
  const std::uint32_t* const bits = unit + codec::bits_offset(header) / 4;
  for (std::uint32_t i = lane; i < kMargin + header.words + kMargin; i += 32)
    memory.slot[i] = i < kMargin || i >= kMargin + header.words ? 0 : bits[i - kMargin];
  __syncwarp();
  const Problem problem =
      check_streams(memory, table, header, source.grid.block_groups(block),
                    source.sign_mantissa + source.grid.sign_mantissa_offset(tile, block), start, lane);
  __syncwarp();
  if (problem != Problem::None) return problem;
  return check_exceptions(memory, header, unit + codec::exceptions_offset(header) / 4, source.grid.tile_rows(tile),
                          source.grid.block_cols(block), lane);
}

__global__ void __launch_bounds__(kWarps * 32)
    check_units_kernel(PackedSource source, std::uint32_t* headers, const std::uint32_t* unit_offsets,
                       const std::uint32_t* table, PackSummary* summary) {
  __shared__ std::uint32_t shared[SharedTable<1>::kWords];
  __shared__ WarpMemory memory[kWarps];
  let_next_start();
  wait_for_previous();
  if (has_lost_tiles(*summary)) return;
  SharedTable<1>::fill(shared, table, threadIdx.x, kWarps * 32);
  __syncthreads();
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint64_t index = std::uint64_t{blockIdx.x} * kWarps + warp;
  if (index >= source.grid.units()) return;
  const std::uint64_t tile = index / source.grid.col_blocks(), block = index % source.grid.col_blocks();
  const auto* const unit =
      reinterpret_cast<const std::uint32_t*>(source.streams + source.tile_offsets[tile]) + unit_offsets[index];
  const SharedTable<1> decode_table(shared, 0);
  const codec::UnitHeader header = codec::decode_unit_header(headers[index]);
  const Problem problem = check_unit(source, decode_table, memory[warp], tile, block, unit, header, lane);
  if (problem != Problem::None) {
    if (lane == 0) report(summary, index, problem);
    return;
  }
  const std::uint32_t leaps = find_leaps(memory[warp].slot + kMargin, header.words, lane_start(unit + 1, header, lane),
                                         source.grid.block_groups(block), decode_table);
  add_leaps(headers, index, header, __reduce_add_sync(~0u, __popc(leaps)), summary, lane);
}

}  // namespace

cudaError_t find_units(const PackedSource& source, std::uint32_t* headers, std::uint32_t* unit_offsets,
                       PackSummary* summary, cudaStream_t stream) {
  const std::uint64_t blocks = (source.grid.row_tiles() + kThreads - 1) / kThreads;
  if (blocks == 0 || blocks >= std::uint64_t{1} << 31) return cudaErrorInvalidValue;
  return launch(find_units_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, source, headers,
                unit_offsets, summary);
}

cudaError_t check_units(const PackedSource& source, std::uint32_t* headers, const std::uint32_t* unit_offsets,
                        const std::uint32_t* table, PackSummary* summary, cudaStream_t stream) {
  const std::uint64_t blocks = (source.grid.units() + kWarps - 1) / kWarps;
  if (blocks == 0 || blocks >= std::uint64_t{1} << 31) return cudaErrorInvalidValue;
  return launch(check_units_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * 32), 0, stream, source, headers,
                unit_offsets, table, summary);
}

}  // namespace glyd::cuda
