#pragma once
// What decode attention's two kernels share, and the second of them: the splits of a query head become its result.
//
// The second kernel has next to nothing to do, so what it takes is its start. Its blocks are no more than are resident
// beside those of the first, and find out what there is to merge while the first is still at work.

#include <algorithm>
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

// first[i + 1] = count(0) + ... + count(i), first[0] = 0, by all `threads` of the block.
template <class Count>
__device__ __forceinline__ void add_up(int sequences, int threads, int* first, const Count& count) {
  for (int i = threadIdx.x; i < sequences; i += threads) first[i + 1] = count(i);
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int base = 0; base < sequences; base += 32) {
      const int i = base + static_cast<int>(threadIdx.x);
      int sum = i < sequences ? first[i + 1] : 0;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (i < sequences) first[i + 1] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (threadIdx.x == 0) first[0] = 0;
  }
  __syncthreads();
}

// The sequence that number `index` of such a list belongs to; the last one where the list ends before.
__device__ __forceinline__ int find_sequence(const int* first, int sequences, int index) {
  int sequence = 0;
  for (int high = sequences; high - sequence > 1;) {
    const int middle = (sequence + high) / 2;
    if (first[middle] <= index) {
      sequence = middle;
    } else {
      high = middle;
    }
  }
  return sequence;
}

// What a thread block merges at once: of a sequence with few splits eight heads, a warp each; of one with more a single
// head, of which warp w takes splits w, w + 8 and so on before the warps' results are added in order.
__host__ __device__ inline int merges_of(int splits, int heads) {
  return splits > kFewSplits ? heads : (heads + kMergeWarps - 1) / kMergeWarps;
}

// kParts: of 128 dimensions. Dynamic shared memory: two lists of `sequences` + 1 words.
template <int kParts>
__global__ void __launch_bounds__(kMergeThreads, 4) merge_splits(const DecodeArguments a) {
  constexpr int kAtOnce = kFewSplits / kParts;  // splits that a warp asks for before it adds the first
  __shared__ float4 vectors[kMergeWarps][kParts][32];
  __shared__ float2 stats[kMergeWarps];
  extern __shared__ int lists[];
  int* const first_split = lists;
  int* const first_merge = lists + a.sequences + 1;
  let_next_start();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head_dim = a.cache.head_dim;
  add_up(a.sequences, kMergeThreads, first_split,
         [&](int i) { return splits_of(__ldcg(a.batch.context_lengths + i)); });
  add_up(a.sequences, kMergeThreads, first_merge,
         [&](int i) { return merges_of(first_split[i + 1] - first_split[i], a.heads); });
  const SplitRecord record(a.heads, head_dim);
  wait_for_previous();

  for (int merge = blockIdx.x; merge < first_merge[a.sequences]; merge += gridDim.x) {
    const int sequence = find_sequence(first_merge, a.sequences, merge);
    const int place = merge - first_merge[sequence];
    const int splits = first_split[sequence + 1] - first_split[sequence];
    const bool together = splits > kFewSplits;
    const int head = together ? place : place * kMergeWarps + warp;
    if (head >= a.heads) continue;  // only where each warp is for itself
    const float* const first = a.workspace + first_split[sequence] * record.words;

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
      continue;
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) vectors[warp][i][lane] = total.vector[i];
    if (lane == 0) stats[warp] = float2{total.max, total.sum};
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int w = 1; w < kMergeWarps; ++w) {
        float4 vector[kParts];
#pragma unroll
        for (int i = 0; i < kParts; ++i) vector[i] = vectors[w][i][lane];
        total.add(vector, stats[w].x, stats[w].y);
      }
      store_head(a, sequence, head, total);
    }
    __syncthreads();
  }
}

template <int kParts>
cudaError_t launch_merge(const DecodeArguments& arguments, int processors, cudaStream_t stream) {
  constexpr int kBlocksOfProcessor = 2;
  const int most = std::min(arguments.sequences * arguments.heads, processors * kBlocksOfProcessor);
  return launch(merge_splits<kParts>, dim3(most), dim3(kMergeThreads), 2 * (arguments.sequences + 1) * sizeof(int),
                stream, arguments);
}

}  // namespace glyd::cuda
