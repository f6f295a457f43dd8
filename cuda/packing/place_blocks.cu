// From the sizes of units to the places of blocks: a thread sums up each block's units, then one thread block runs over
// all of them (some ten thousand) and adds up.

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/resident_block.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kScanThreads = 1024;

// The size of every block, in 16 bytes.
__global__ void __launch_bounds__(kThreads)
    block_sizes_kernel(codec::UnitGrid grid, const std::uint32_t* headers, std::uint32_t blocks, std::uint32_t* sizes,
                       PackSummary* summary) {
  let_next_start();
  wait_for_previous();
  const std::uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  const auto col_blocks = static_cast<std::uint32_t>(grid.col_blocks());
  std::uint32_t units = 0, size = 0, resident = 0;  // words
  if (index < blocks) {
    const std::uint64_t first_tile = std::uint64_t{index / col_blocks} * kGroupTiles;
    for (std::uint64_t t = first_tile; t < first_tile + kGroupTiles && t < grid.row_tiles(); ++t) {
      const codec::UnitHeader header = codec::decode_unit_header(headers[grid.unit(t, index % col_blocks)]);
      units += codec::unit_bytes(header) / 4;
      resident += resident_unit_words(header);
    }
    size = resident_block_words(resident, index + 1 == blocks);
    sizes[index] = size / 4;
  }
  const std::uint32_t sum = __reduce_add_sync(~0u, units), most = __reduce_max_sync(~0u, size);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&summary->unit_bytes), 4ull * sum);
    atomicMax(&summary->max_block_bytes, 4 * most);
  }
}

// sizes [blocks] to offsets [blocks + 1], in place.
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(std::uint32_t blocks, std::uint32_t* offsets, PackSummary* summary) {
  __shared__ std::uint32_t warp_sums[kScanThreads / 32];
  let_next_start();
  wait_for_previous();
  const std::uint32_t share = (blocks + kScanThreads - 1) / kScanThreads;
  const std::uint32_t begin = min(blocks, threadIdx.x * share), end = min(blocks, begin + share);
  std::uint32_t sum = 0;
  for (std::uint32_t i = begin; i < end; ++i) sum += offsets[i];

  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t before = sum;  // including this thread's
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) warp_sums[warp] = before;
  __syncthreads();
  for (std::uint32_t w = 0; w < warp; ++w) before += warp_sums[w];
  if (threadIdx.x == kScanThreads - 1) {
    offsets[blocks] = before;
    summary->block_bytes = 16 * std::uint64_t{before};
  }

  std::uint32_t at = before - sum;
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t size = offsets[i];
    offsets[i] = at;
    at += size;
  }
}

}  // namespace

cudaError_t place_blocks(const codec::UnitGrid& grid, const std::uint32_t* headers, std::uint32_t* block_offsets,
                         PackSummary* summary, cudaStream_t stream) {
  const std::uint64_t blocks = (grid.row_tiles() + kGroupTiles - 1) / kGroupTiles * grid.col_blocks();
  if (blocks == 0 || blocks >= std::uint64_t{1} << 31) return cudaErrorInvalidValue;
  const auto count = static_cast<std::uint32_t>(blocks);
  if (const cudaError_t error = launch(block_sizes_kernel, dim3((count + kThreads - 1) / kThreads), dim3(kThreads), 0,
                                       stream, grid, headers, count, block_offsets, summary);
      error != cudaSuccess) {
    return error;
  }
  return launch(scan_kernel, dim3(1), dim3(kScanThreads), 0, stream, count, block_offsets, summary);
}

}  // namespace glyd::cuda
