// Rows of an embedding, looked up by token id. A packed row is one stream of one lane quad in each of its units: four
// threads a column block decode it straight from global memory. It is bound by latency: few bytes, and a chain of
// loads of which each needs the one before (block, unit, lane start, words).

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/unit_decode.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kBlocksACta = kThreads / 4;  // column blocks

struct EmbedTo {
  std::uint16_t* out;  // [tokens][stride]
  std::int64_t stride;
};

__device__ __forceinline__ int real_of_eight(std::int64_t left) { return static_cast<int>(left < 8 ? left : 8); }
__device__ __forceinline__ void store_eight(std::uint16_t* row, std::int64_t col, std::int64_t stride, uint4 weights) {
  if (col < stride) *reinterpret_cast<uint4*>(row + col) = weights;
}

// Thread q of a quad: its columns of the row, upwards (rows 0-7 of a tile) or downwards.
template <bool kUp>
__device__ __forceinline__ void embed_unit(const ResidentUnit& unit, const SharedTable<1>& table, std::uint32_t lane,
                                           std::int64_t col, std::int64_t cols, std::uint16_t* row,
                                           std::int64_t stride) {
  PairStream<kUp> stream(unit.bits(), unit.header.words, lane_start(unit.starts, unit.header, lane));
  for (std::uint32_t group = 0; group < unit.groups; ++group, col += codec::kGroupCols) {
    const uint4 woven = *reinterpret_cast<const uint4*>(unit.sign_mantissa(group) + lane * 16);
    store_eight(row, col, stride, keep_first(next_eight<!kUp>(stream, table, woven), real_of_eight(cols - col)));
  }
}

__global__ void __launch_bounds__(kThreads, 8)
    embed_packed_kernel(ResidentMatrix m, const std::int32_t* ids, EmbedTo to) {
  __shared__ std::uint32_t shared[SharedTable<1>::kWords];
  SharedTable<1>::fill(shared, m.table, threadIdx.x, kThreads);
  __syncthreads();
  let_next_start();
  wait_for_previous();
  const SharedTable<1> table(shared, 0);
  const std::int32_t id = ids[blockIdx.x];
  std::uint16_t* const row = to.out + blockIdx.x * to.stride;
  const std::uint32_t block = blockIdx.y * kBlocksACta + threadIdx.x / 4, q = threadIdx.x % 4;
  const bool has_block = block < m.col_blocks();
  const std::uint32_t row_in_tile = static_cast<std::uint32_t>(id) % codec::kTileRows;
  const std::int64_t first_col = static_cast<std::int64_t>(block) * codec::kBlockCols;

  const bool decodes = id >= 0 && has_block;
  const unsigned decoding = __ballot_sync(~0u, decodes);
  if (decodes) {
    const std::uint32_t tile = static_cast<std::uint32_t>(id) / codec::kTileRows;
    const ResidentUnit unit(m, tile / kGroupTiles, block, tile % kGroupTiles);
    const std::uint32_t lane = row_in_tile % 8 * 4 + q;
    if (row_in_tile < 8) {
      embed_unit<true>(unit, table, lane, first_col + q * 8, m.cols, row, to.stride);
    } else {
      embed_unit<false>(unit, table, lane, first_col + q * 8, m.cols, row, to.stride);
    }
    __syncwarp(decoding);  // exceptions go on top of what the quad stored
    for (std::uint32_t i = q; i < unit.exceptions; i += 4) {
      const std::uint32_t entry = unit.exception(i), position = entry >> 20;
      if ((entry & kResidentLeap) == 0 && codec::row_of(position) == row_in_tile)
        row[first_col + codec::col_of(position)] = static_cast<std::uint16_t>(entry);
    }
  } else if (has_block) {
    for (std::uint32_t group = 0; group < m.grid().block_groups(block); ++group)
      store_eight(row, first_col + group * codec::kGroupCols + q * 8, to.stride, uint4{});
  }
  // Zeros behind the last group.
  if (blockIdx.y == 0) {
    for (std::int64_t c = m.col_groups() * codec::kGroupCols + threadIdx.x * 8; c < to.stride; c += kThreads * 8)
      store_eight(row, c, to.stride, uint4{});
  }
}

__global__ void __launch_bounds__(kThreads, 8)
    embed_plain_kernel(const std::uint16_t* matrix, std::int64_t matrix_stride, const std::int32_t* ids, int cols,
                       EmbedTo to) {
  let_next_start();
  wait_for_previous();
  const std::int32_t id = ids[blockIdx.x];
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 8;
  uint4 weights{};
  if (id >= 0 && col < cols)
    weights = keep_first(*reinterpret_cast<const uint4*>(matrix + id * matrix_stride + col), real_of_eight(cols - col));
  store_eight(to.out + blockIdx.x * to.stride, col, to.stride, weights);
}

}  // namespace

cudaError_t embed_packed(const ResidentMatrix& matrix, const std::int32_t* ids, int tokens, std::uint16_t* out,
                         std::int64_t stride, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  const std::int64_t parts = (matrix.col_blocks() + kBlocksACta - 1) / kBlocksACta;
  if (tokens < 0 || parts > 65535 || stride % 8 != 0 || stride < matrix.cols) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(parts));
  return launch(embed_packed_kernel, grid, dim3(kThreads), 0, stream, matrix, ids, EmbedTo{out, stride});
}

cudaError_t embed_plain(const std::uint16_t* matrix, std::int64_t matrix_stride, const std::int32_t* ids, int tokens,
                        int cols, std::uint16_t* out, std::int64_t stride, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  const std::int64_t parts = (stride + kThreads * 8 - 1) / (kThreads * 8);
  if (tokens < 0 || cols < 0 || parts > 65535 || stride % 8 != 0 || stride < cols || matrix_stride % 8 != 0 ||
      matrix_stride < cols) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(parts));
  return launch(embed_plain_kernel, grid, dim3(kThreads), 0, stream, matrix, matrix_stride, ids, cols,
                EmbedTo{out, stride});
}

}  // namespace glyd::cuda
