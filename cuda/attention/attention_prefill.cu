// Causal attention of chunks of prompts over the paged cache, flash attention's way.
//
// What binds it is the tensor cores, then the shared memory that feeds them. A block of 4 warps takes one kv head of
// one sequence and a tile of rows; a row is (token, query head), the query heads of the kv head side by side, so that
// short chunks fill the tile too and all of them share the keys and values. It walks the keys in tiles from position 0:
// copies of the next tile are under way while scores, the running softmax and the weighted values of this one are
// computed in registers. A warp has 32 rows (16 for heads wider than 128), so that each fragment of keys or values that
// it reads from shared memory feeds two instructions. Probabilities are rounded to bf16 for the product with the
// values, their sum is not; nothing else is rounded.
//
// A row's result depends neither on its place in a tile nor on the rows beside it: tiles of keys lie at multiples of
// their size from position 0, rows of an instruction are independent, and a tile that is masked for a row altogether
// leaves its maximum, hence adds exact zeros to sums scaled by exactly one. So a prompt may be cut anywhere.
//
// Shared memory holds rows of kDim bf16 values (head_dim rounded up to 64, zeros behind it) whose 16-byte chunks are
// permuted by row % 8, which spreads the rows of an 8 x 8 matrix over the banks. Blocks with the longest rows come
// first.

#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/attention/device.cuh"
#include "cuda/common/launch.h"

namespace glyd::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

struct Arguments {
  const std::uint16_t* q;
  std::int64_t q_stride;
  PagedCache cache;
  AttentionBatch batch;
  int heads;
  float scale;  // times log2(e)
  Activations out;
};

template <int kDimensions>
struct Shape {
  static constexpr int kDim = kDimensions;
  static constexpr int kChunks = kDim / 8;               // 16 bytes each
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kRows = kWarps * 16 * kRowTiles;  // a block
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;    // a tile
  static constexpr int kBlocksOfProcessor = 2;
  static constexpr int kQueryBytes = kRows * kDim * 2;
  static constexpr int kTileBytes = kKeys * kDim * 2;
  static constexpr int kSharedBytes = kQueryBytes + 4 * kTileBytes;  // two stages of keys and values
};

// Offset in bytes of a 16-byte chunk.
template <class S>
__device__ __forceinline__ std::uint32_t place(int row, int chunk) {
  return static_cast<std::uint32_t>((row * S::kChunks + (chunk ^ (row & 7))) * 16);
}

// Rows of q of the block's tile, zeros behind the last.
template <class S>
__device__ void copy_queries(const Arguments& a, std::uint32_t to, std::int64_t first_token, int first_row, int rows,
                             int ratio, int first_head) {
  for (int i = threadIdx.x; i < S::kRows * S::kChunks; i += kThreads) {
    const int row = i / S::kChunks;
    const int chunk = i % S::kChunks;
    const int r = first_row + row;
    const bool real = r < rows && chunk * 8 < a.cache.head_dim;
    const std::uint16_t* from = a.q;
    if (real) from += (first_token + r / ratio) * a.q_stride + (first_head + r % ratio) * a.cache.head_dim + chunk * 8;
    copy_async(to + place<S>(row, chunk), from, real);
  }
}

// Keys and values of a tile, zeros behind the context. `ids`: lane i has entry i of the 32 of the block table that the
// tile's are among, the first of them `first_id`.
template <class S>
__device__ __forceinline__ void copy_tile(const Arguments& a, std::uint32_t keys, std::uint32_t values, int kv_head,
                                          int tile, int context, int ids, int first_id) {
  static_assert(S::kKeys * S::kChunks % kThreads == 0, "lanes exchange table entries in every round");
  const int block_size = a.cache.kv_heads * kCacheBlock * a.cache.head_dim;
#pragma unroll 2  // more only costs registers
  for (int round = 0; round < S::kKeys * S::kChunks / kThreads; ++round) {
    const int i = round * kThreads + static_cast<int>(threadIdx.x);
    const int row = i / S::kChunks;
    const int chunk = i % S::kChunks;
    const int block = __shfl_sync(~0u, ids, first_id + row / kCacheBlock);
    const bool real = tile * S::kKeys + row < context && chunk * 8 < a.cache.head_dim;
    const int within = (kv_head * kCacheBlock + row % kCacheBlock) * a.cache.head_dim + chunk * 8;
    const std::int64_t offset = real ? block * static_cast<std::int64_t>(block_size) + within : 0;
    copy_async(keys + place<S>(row, chunk), a.cache.keys + offset, real);
    copy_async(values + place<S>(row, chunk), a.cache.values + offset, real);
  }
}

// 32 entries of a sequence's block table, one a lane.
__device__ __forceinline__ int load_ids(const std::int32_t* table, int first, int context) {
  const int entry = first + static_cast<int>(threadIdx.x % 32);
  return entry * kCacheBlock < context ? table[entry] : 0;
}

// A warp's rows: what the softmax carries from tile to tile. Index [tile of 16 rows][upper or lower 8].
template <class S>
struct Rows {
  float out[S::kRowTiles][S::kChunks][4] = {};
  float max[S::kRowTiles][2];  // as a power of two
  float sum[S::kRowTiles][2] = {};
};

// Scores of a warp's rows with a tile's keys.
template <class S>
__device__ __forceinline__ void score(float (&scores)[S::kRowTiles][S::kKeys / 8][4], std::uint32_t queries,
                                      std::uint32_t keys) {
  const int lane = threadIdx.x % 32;
  const int key = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
  for (int k = 0; k < S::kDim / 16; ++k) {
    std::uint32_t q[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      load_matrices(q[m], queries + place<S>(m * 16 + (lane & 15), 2 * k + (lane >> 4)));
    }
#pragma unroll
    for (int n = 0; n < S::kKeys / 16; ++n) {
      std::uint32_t b[4];
      load_matrices(b, keys + place<S>(n * 16 + key, 2 * k + (lane >> 3 & 1)));
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        multiply_add(scores[m][2 * n], q[m], b[0], b[1]);
        multiply_add(scores[m][2 * n + 1], q[m], b[2], b[3]);
      }
    }
  }
}

// Takes out the keys behind each row's own position. The lane's first row is `row`, its first key `key`.
template <class S>
__device__ __forceinline__ void mask(float (&scores)[S::kRowTiles][S::kKeys / 8][4], int row, int rows, int ratio,
                                     int before, int key) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int visible = before + min(row + m * 16 + half * 8, rows - 1) / ratio - key;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
        if (n * 8 > visible) scores[m][n][2 * half] = -INFINITY;
        if (n * 8 + 1 > visible) scores[m][n][2 * half + 1] = -INFINITY;
      }
    }
  }
}

// Scores become probabilities under the new maximum; what was summed so far is brought to it.
template <class S>
__device__ __forceinline__ void softmax(Rows<S>& rows, float (&scores)[S::kRowTiles][S::kKeys / 8][4], float scale) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = -INFINITY;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
        max = fmaxf(max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      max = fmaxf(rows.max[m][half], quad_max(max) * scale);
      const float factor = power_of_two(rows.max[m][half] - max);
      rows.max[m][half] = max;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = power_of_two(fmaf(scores[m][n][i], scale, -max));
          sum += scores[m][n][i];
        }
      }
      rows.sum[m][half] = fmaf(rows.sum[m][half], factor, sum);
#pragma unroll
      for (int n = 0; n < S::kChunks; ++n) {
        rows.out[m][n][2 * half] *= factor;
        rows.out[m][n][2 * half + 1] *= factor;
      }
    }
  }
}

// Adds the values, weighted.
template <class S>
__device__ __forceinline__ void add_values(Rows<S>& rows, const float (&p)[S::kRowTiles][S::kKeys / 8][4],
                                           std::uint32_t values) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    std::uint32_t weights[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      for (int i = 0; i < 4; ++i) {
        weights[m][i] = pack_bf16(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < S::kChunks / 2; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, values + place<S>(k * 16 + (lane & 15), 2 * n + (lane >> 4)));
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        multiply_add(rows.out[m][2 * n], weights[m], b[0], b[1]);
        multiply_add(rows.out[m][2 * n + 1], weights[m], b[2], b[3]);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, S::kBlocksOfProcessor) prefill_kernel(const Arguments a) {
  extern __shared__ uint4 memory[];
  let_next_start();
  const int sequence = blockIdx.y;
  const int kv_head = static_cast<int>(blockIdx.x) % a.cache.kv_heads;
  const int ratio = a.heads / a.cache.kv_heads;
  // Before the wait: the batch's arrays are not written by kernels.
  const int context = a.batch.context_lengths[sequence];
  const int first_token = a.batch.query_start[sequence];
  const int tokens = a.batch.query_start[sequence + 1] - first_token;
  const int rows = tokens * ratio;
  const int row_tile = (rows + S::kRows - 1) / S::kRows - 1 - static_cast<int>(blockIdx.x) / a.cache.kv_heads;
  if (row_tile < 0) return;
  const std::int32_t* table = a.batch.block_tables + sequence * a.batch.table_stride;

  const int first_row = row_tile * S::kRows;
  const int first_position = context - tokens + first_row / ratio;
  const int last_position = context - tokens + (min(first_row + S::kRows, rows) - 1) / ratio;
  const int tiles = last_position / S::kKeys + 1;

  constexpr int kIds = S::kKeys / kCacheBlock;  // table entries of a tile
  constexpr int kTilesOfIds = 32 / kIds;
  int ids = load_ids(table, 0, context);
  int next_ids = load_ids(table, 32, context);
  wait_for_previous();

  const auto queries = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const std::uint32_t keys = queries + S::kQueryBytes;
  const std::uint32_t values = keys + 2 * S::kTileBytes;
  copy_queries<S>(a, queries, first_token, first_row, rows, ratio, kv_head * ratio);
  copy_tile<S>(a, keys, values, kv_head, 0, context, ids, 0);
  commit_copies();

  const int lane = threadIdx.x % 32;
  const int c = lane % 4;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * S::kRowTiles;
  const std::uint32_t warp_queries = queries + static_cast<std::uint32_t>(warp_row * S::kDim * 2);
  Rows<S> state;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
    for (int half = 0; half < 2; ++half) state.max[m][half] = -INFINITY;
  }

  for (int tile = 0; tile < tiles; ++tile) {
    const int next = tile + 1;
    if (next % kTilesOfIds == 0) {
      ids = next_ids;
      next_ids = load_ids(table, next * kIds + 32, context);
    }
    if (next < tiles) {
      const auto stage = static_cast<std::uint32_t>(next % 2 * S::kTileBytes);
      copy_tile<S>(a, keys + stage, values + stage, kv_head, next, context, ids, next % kTilesOfIds * kIds);
    }
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    const auto stage = static_cast<std::uint32_t>(tile % 2 * S::kTileBytes);
    float scores[S::kRowTiles][S::kKeys / 8][4] = {};
    score<S>(scores, warp_queries, keys + stage);
    if (next * S::kKeys > first_position + 1) {
      const int row = first_row + warp_row + lane / 4;
      mask<S>(scores, row, rows, ratio, context - tokens, tile * S::kKeys + 2 * c);
    }
    softmax<S>(state, scores, a.scale);
    add_values<S>(state, scores, values + stage);
    __syncthreads();  // the stage is free
  }

  // Results go to the place of the warp's own queries and from there to memory, 16 bytes a lane.
  const int g = lane / 4;
  std::uint8_t* const staged = reinterpret_cast<std::uint8_t*>(memory) + warp_row * S::kDim * 2;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
    for (int half = 0; half < 2; ++half) {
      const float factor = 1.0f / quad_sum(state.sum[m][half]);
#pragma unroll
      for (int n = 0; n < S::kChunks; ++n) {
        *reinterpret_cast<std::uint32_t*>(staged + place<S>(m * 16 + half * 8 + g, n) + c * 4) =
            pack_bf16(state.out[m][n][2 * half] * factor, state.out[m][n][2 * half + 1] * factor);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * S::kRowTiles * S::kChunks; i += 32) {
    const int row = i / S::kChunks;
    const int chunk = i % S::kChunks;
    const int r = first_row + warp_row + row;
    if (r < rows && chunk * 8 < a.cache.head_dim) {
      const int head = kv_head * ratio + r % ratio;
      store8(a.out, first_token + r / ratio, head * a.cache.head_dim + chunk * 8,
             *reinterpret_cast<const uint4*>(staged + place<S>(row, chunk)));
    }
  }
}

template <class S>
cudaError_t launch_prefill(const Arguments& arguments, int sequences, int longest, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(prefill_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int row_tiles = (longest * (arguments.heads / arguments.cache.kv_heads) + S::kRows - 1) / S::kRows;
  return launch(prefill_kernel<S>, dim3(row_tiles * arguments.cache.kv_heads, sequences), dim3(kThreads),
                S::kSharedBytes, stream, arguments);
}

}  // namespace

cudaError_t attention_prefill(const std::uint16_t* q, std::int64_t q_stride, const PagedCache& cache,
                              const AttentionBatch& batch, int sequences, int tokens, int longest, int heads,
                              float scale, const Activations& out, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  if (cache.head_dim % 8 != 0 || cache.head_dim < 8 || cache.head_dim > 256 || heads % cache.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  const Arguments arguments{q, q_stride, cache, batch, heads, scale * 1.44269504f, out};
  switch ((cache.head_dim + 63) / 64) {
    case 1:
      return launch_prefill<Shape<64>>(arguments, sequences, longest, stream);
    case 2:
      return launch_prefill<Shape<128>>(arguments, sequences, longest, stream);
    case 3:
      return launch_prefill<Shape<192>>(arguments, sequences, longest, stream);
    default:
      return launch_prefill<Shape<256>>(arguments, sequences, longest, stream);
  }
}

}  // namespace glyd::cuda
