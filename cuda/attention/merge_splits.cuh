#pragma once
// What decode attention's two kernels share, and the second of them: the splits of a query head become its result.

#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/attention/device.cuh"
#include "cuda/common/launch.h"

namespace glyd::cuda {

inline constexpr int kMergeWarps = 8;
inline constexpr int kFewSplits = 8;  // that one warp merges alone, its loads all under way at once
inline constexpr int kMergeThreads = kMergeWarps * 32;

struct DecodeArguments {
  const std::uint16_t* q;
  std::int64_t q_stride;
  PagedCache cache;
  AttentionBatch batch;
  int sequences;
  int heads;
  float scale;  // times log2(e)
  Activations out;
  float* workspace;
};

// What the workspace holds of a split, in words of 4 bytes: the heads' vectors, each head's maximum (as a power of two)
// and sum.
struct SplitRecord {
  __host__ __device__ SplitRecord(int heads, int head_dim)
      : stats(static_cast<std::int64_t>(heads) * head_dim), words((stats + 2 * heads + 3) / 4 * 4) {}
  std::int64_t stats;
  std::int64_t words;
};

__device__ __forceinline__ int splits_of(int context) { return (context + kAttentionSplit - 1) / kAttentionSplit; }

// A head's unfinished result; a lane has dimensions 4 lane .. 4 lane + 3 of each 128.
template <int kParts>
struct PartialHead {
  float4 vector[kParts] = {};
  float max = -INFINITY;
  float sum = 0;

  __device__ __forceinline__ void add(const float4 (&other)[kParts], float other_max, float other_sum) {
    const float new_max = fmaxf(max, other_max);
    const float mine = max == new_max ? 1 : power_of_two(max - new_max);  // both may be -inf
    const float others = other_max == new_max ? 1 : power_of_two(other_max - new_max);
    max = new_max;
    sum = sum * mine + other_sum * others;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      vector[i].x = vector[i].x * mine + other[i].x * others;
      vector[i].y = vector[i].y * mine + other[i].y * others;
      vector[i].z = vector[i].z * mine + other[i].z * others;
      vector[i].w = vector[i].w * mine + other[i].w * others;
    }
  }
};

template <int kParts>
__device__ __forceinline__ void store_head(const DecodeArguments& a, int sequence, int head,
                                           const PartialHead<kParts>& total) {
  const int lane = threadIdx.x % 32;
  const int head_dim = a.cache.head_dim;
  const float factor = total.sum == 0 ? 0.0f : 1.0f / total.sum;  // 0: a sequence without tokens
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float4 v = total.vector[i];
    const std::uint32_t low = pack_bf16(v.x * factor, v.y * factor);
    const std::uint32_t high = pack_bf16(v.z * factor, v.w * factor);
    const uint4 eight{low, high, __shfl_down_sync(~0u, low, 1), __shfl_down_sync(~0u, high, 1)};
    const int dimension = 128 * i + 4 * lane;
    if (lane % 2 == 0 && dimension < head_dim) store8(a.out, sequence, head * head_dim + dimension, eight);
  }
  const int behind = a.heads * head_dim + 8 * lane;
  if (a.out.layout != Layout::Rows && head == a.heads - 1 && behind < (a.heads * head_dim + 31) / 32 * 32) {
    store8(a.out, sequence, behind, uint4{0, 0, 0, 0});
  }
}

// Finishes query heads of one sequence. Block (x, y, z): sequence y and, of the heads 8 x .. 8 x + 7, all when it has
// few splits, a warp each (z = 0); or head 8 x + z, of which warp w takes splits w, w + 8 and so on before the warps'
// results are added in order. Which of the two depends on the sequence alone. kParts: of 128 dimensions.
template <int kParts>
__global__ void __launch_bounds__(kMergeThreads, 4) merge_splits(const DecodeArguments a) {
  constexpr int kAtOnce = kFewSplits / kParts;  // splits that a warp asks for before it adds the first
  __shared__ float4 vectors[kMergeWarps][kParts][32];
  __shared__ float2 stats[kMergeWarps];
  let_next_start();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int sequence = blockIdx.y;
  const int head_dim = a.cache.head_dim;
  const int splits = splits_of(__ldcg(a.batch.context_lengths + sequence));
  const bool together = splits > kFewSplits;
  const int head = static_cast<int>(blockIdx.x) * kMergeWarps + (together ? static_cast<int>(blockIdx.z) : warp);
  if ((!together && blockIdx.z != 0) || (together && head >= a.heads)) return;  // all of the block, or none
  int before = 0;
  for (int i = lane; i < sequence; i += 32) before += splits_of(__ldcg(a.batch.context_lengths + i));
  before = __reduce_add_sync(~0u, before);
  const SplitRecord record(a.heads, head_dim);
  const float* const first = a.workspace + before * record.words;
  wait_for_previous();
  if (head >= a.heads) return;

  PartialHead<kParts> total;
  const int step = together ? kMergeWarps : 1;
  for (int base = together ? warp : 0; base < splits; base += step * kAtOnce) {
    float4 vector[kAtOnce][kParts];
    float2 max_and_sum[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int split = base + j * step;
      const float* from = first + split * record.words;
      max_and_sum[j] = split < splits ? __ldcg(reinterpret_cast<const float2*>(from + record.stats + 2 * head))
                                      : float2{-INFINITY, 0};
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const int dimension = 128 * i + 4 * lane;
        vector[j][i] = split < splits && dimension < head_dim
                           ? __ldcg(reinterpret_cast<const float4*>(from + head * head_dim + dimension))
                           : float4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) total.add(vector[j], max_and_sum[j].x, max_and_sum[j].y);
  }
  if (!together) {
    store_head(a, sequence, head, total);
    return;
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) vectors[warp][i][lane] = total.vector[i];
  if (lane == 0) stats[warp] = float2{total.max, total.sum};
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int w = 1; w < kMergeWarps; ++w) {
    float4 vector[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) vector[i] = vectors[w][i][lane];
    total.add(vector, stats[w].x, stats[w].y);
  }
  store_head(a, sequence, head, total);
}

}  // namespace glyd::cuda
