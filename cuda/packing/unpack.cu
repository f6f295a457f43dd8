// A packed matrix, or some of its rows, as plain bf16, on every chip and for every width (prompts on sm_90a use
// cuda/products/unpack_rows.cu).
//
// Bound by memory at a high clock: 1.34 bytes are read and 2 written for a weight. At the lower clock of a chip that is
// short of power, by how long 20 warps a multiprocessor wait for their units.
// A warp takes a unit at a time, four neighbours the four tiles of a block. The unit's bits are copied to shared memory
// with all copies under way at once; signs and mantissas come straight to registers, all groups' before the first is
// needed. Every lane stores 16 bytes to each of its two rows for a group, four lanes a sector pair. Exceptions
// overwrite the zeros that the streams leave for them.

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <atomic>

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/unit_decode.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kWarps = 10;  // of two blocks an SM; with more warps the memory is slower
constexpr std::uint32_t kThreads = kWarps * 32;
constexpr std::uint32_t kSlotWords = kPadWords + kMaxUnitWords + kPadWords;
constexpr int kMostGroups = codec::kBlockGroups, kGroupCols = codec::kGroupCols;
constexpr int kCopies = 32;
constexpr std::uint32_t kSharedBytes = 4 * (SharedTable<kCopies>::kWords + kWarps * kSlotWords);

struct UnpackTo {
  std::uint16_t* out;  // [rows][stride]
  std::int64_t rows, stride;
};

// `slot`: kSlotWords words of the warp's own. `out`: where the unit's first weight goes; of what it holds, `rows` rows
// and `cols` columns are the matrix's, and zeros follow up to column `width`.
__device__ __forceinline__ void unpack_unit(const ResidentUnit& unit, const SharedTable<kCopies>& table,
                                            std::uint32_t* slot, std::uint32_t lane, std::uint16_t* out,
                                            std::int64_t stride, int rows, int cols, int width) {
  const std::uint32_t* const bits = unit.bits();
  for (std::uint32_t i = lane; i < unit.header.words; i += 32)
    __pipeline_memcpy_async(slot + kPadWords + i, bits + i, 4);
  __pipeline_commit();
  const std::uint32_t start = lane_start(unit.starts, unit.header, lane);
  const int groups = static_cast<int>(unit.groups);
  uint4 woven[kMostGroups];
#pragma unroll
  for (int i = 0; i < kMostGroups; ++i)
    if (i < groups) woven[i] = load_streaming_16(unit.sign_mantissa(i) + lane * 16);
  __pipeline_wait_prior(0);
  __syncwarp();

  PairStream<true> up(slot + kPadWords, unit.header.words, start);
  PairStream<false> down(slot + kPadWords, unit.header.words, start);
  const int row = static_cast<int>(lane / 4), col = static_cast<int>(lane % 4 * 8);
  std::uint16_t* const to = out + row * stride + col;
  cols -= col;  // from here on as seen from the lane
  width -= col;
#pragma unroll
  for (int i = 0; i < kMostGroups; ++i) {
    if (i >= groups) break;
    const uint4 upper = keep_first(next_eight<false>(up, table, woven[i]), cols - i * kGroupCols);
    if (row < rows && i * kGroupCols < width) *reinterpret_cast<uint4*>(to + i * kGroupCols) = upper;
    const uint4 lower = keep_first(next_eight<true>(down, table, woven[i]), cols - i * kGroupCols);
    if (row + 8 < rows && i * kGroupCols < width) *reinterpret_cast<uint4*>(to + i * kGroupCols + 8 * stride) = lower;
  }

  __syncwarp();  // exceptions go on top of what other lanes stored, and the slot is free again
  for (std::uint32_t i = lane; i < unit.exceptions; i += 32) {
    const std::uint32_t entry = unit.exception(i), position = entry >> 20;
    if ((entry & kResidentLeap) == 0 && static_cast<int>(codec::row_of(position)) < rows)
      out[codec::row_of(position) * stride + codec::col_of(position)] = static_cast<std::uint16_t>(entry);
  }
}

__device__ __forceinline__ int at_most(std::int64_t n, std::int64_t limit) {
  return static_cast<int>(n < limit ? n : limit);
}

__global__ void __launch_bounds__(kThreads, 2)
    unpack_kernel(ResidentMatrix m, std::uint32_t first_row_group, std::uint32_t units, UnpackTo to) {
  extern __shared__ std::uint32_t shared[];
  SharedTable<kCopies>::fill(shared, m.table, threadIdx.x, kThreads);
  __syncthreads();
  let_next_start();
  wait_for_previous();
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t* const slot = shared + SharedTable<kCopies>::kWords + warp * kSlotWords;
  const SharedTable<kCopies> table(shared, lane);
  const auto col_blocks = static_cast<std::uint32_t>(m.col_blocks());
  // Units in the order in which their streams lie: blocks of four tiles. Tiles behind the last row have no unit.
  for (std::uint32_t u = blockIdx.x * kWarps + warp; u < units; u += gridDim.x * kWarps) {
    const std::uint32_t tile = u % kGroupTiles, row_group = u / kGroupTiles / col_blocks;
    const std::uint32_t block = u / kGroupTiles - row_group * col_blocks;
    const std::int64_t row = (static_cast<std::int64_t>(row_group) * kGroupTiles + tile) * codec::kTileRows;
    if (row >= to.rows) continue;
    const std::int64_t col = static_cast<std::int64_t>(block) * codec::kBlockCols;
    std::uint16_t* const out = to.out + row * to.stride + col;
    const int rows = at_most(to.rows - row, codec::kTileRows);
    const ResidentUnit unit(m, first_row_group + row_group, block, tile);
    unpack_unit(unit, table, slot, lane, out, to.stride, rows, at_most(m.cols - col, codec::kBlockCols),
                at_most(to.stride - col, codec::kBlockCols));
    if (block + 1 == col_blocks) {  // zeros behind the last group
      for (int r = 0; r < rows; ++r)
        for (std::int64_t c = unit.groups * codec::kGroupCols + lane * 8; col + c < to.stride; c += 32 * 8)
          *reinterpret_cast<uint4*>(out + r * to.stride + c) = uint4{};
    }
  }
}

// A kernel may use this much shared memory only after it was asked for, once a device.
cudaError_t allow_shared(int device) {
  static std::atomic<std::uint64_t> done{0};
  const std::uint64_t bit = std::uint64_t{1} << (device % 64);
  if (done & bit) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(unpack_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
  if (error == cudaSuccess) done |= bit;
  return error;
}

}  // namespace

cudaError_t unpack(const ResidentMatrix& matrix, std::int64_t first_row, std::int64_t rows, std::uint16_t* out,
                   std::int64_t stride, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const std::int64_t row_groups = (rows + kGroupRows - 1) / kGroupRows;
  const std::int64_t units = row_groups * matrix.col_blocks() * kGroupTiles;
  if (first_row % kGroupRows != 0 || first_row < 0 || rows < 0 || first_row + rows > matrix.rows || stride % 8 != 0 ||
      stride < matrix.cols || units >= std::int64_t{1} << 31) {
    return cudaErrorInvalidValue;
  }
  int device = 0, processors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = allow_shared(device); error != cudaSuccess) return error;
  const std::int64_t blocks = std::min<std::int64_t>((units + kWarps - 1) / kWarps, 2 * std::int64_t{processors});
  return launch(unpack_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kSharedBytes, stream, matrix,
                static_cast<std::uint32_t>(first_row / kGroupRows), static_cast<std::uint32_t>(units),
                UnpackTo{out, rows, stride});
}

}  // namespace glyd::cuda
