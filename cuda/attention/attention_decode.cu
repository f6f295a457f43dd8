// Attention of one new token a sequence over its cached keys and values.
//
// What binds it is memory: each key and value is read once for all query heads of its kv head and used for a few
// multiplications. So the kernel is laid out by how the bytes are asked for. A work item is (sequence, kv head with up
// to 8 of its query heads, split of 128 tokens); a block of 8 warps takes it, warp w the split's w-th KV block of 16
// tokens. A warp asks for all of its keys and values at once, 16 bytes a lane, straight into the registers from which
// the tensor cores take them: they do not go through shared memory.
// - Scores: m16n8k16 with the query heads as rows (the lower 8 of 16 are zero) and tokens as columns. The dimensions
//   are permuted within groups of 32, in queries and keys alike, so that a lane's 16 bytes are two steps' fragments.
// - Values: the product is turned around, dimensions as rows and heads as columns, for then the scores' registers are
//   the second operand's as they stand. A lane holds 8 dimensions of four tokens and pairs the tokens by byte
//   permutation. The probabilities are split in two bf16 terms, high and low, so they lose nothing that fp32 has seen.
// The warps share the split's maximum through shared memory before they exponentiate, so their sums add up as they are.
//
// The grid is as many blocks as are resident; each derives the work list from the lengths on the device and takes every
// gridDim-th item. Loads return in the order in which they were asked for, so a block table entry must not queue behind
// keys and values: a block looks up its next 32 items at once. As soon as registers are free, the next item's bytes are
// asked for into them: its keys when the scores are known, its values when this one's are used up. And the first
// item's, unless the step's own token is among them, before the kernel waits for its predecessor.
//
// Splits lie at multiples of 128 tokens whatever the batch. Their results (maximum, sum, vector) go to the workspace,
// and a second, small kernel (merge_splits.cuh) merges those of each query head, in an order that depends on the
// sequence alone. (Merging by whoever finishes last needs a fence and an atomic for each item: some microseconds, in
// which nothing is loaded.)

#include <algorithm>
#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/attention/device.cuh"
#include "cuda/attention/merge_splits.cuh"
#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"

namespace glyd::cuda {
namespace {

constexpr int kWarps = kAttentionSplit / kCacheBlock;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 8;  // query heads of an item

constexpr int kLookedUp = 32;  // items at once, a thread an item's KV block
static_assert(kLookedUp * kWarps == kThreads);

struct alignas(16) Item {
  int sequence;
  int slot;  // the split in the list of all
  int tokens;
  int kv_head;
  int first_head;
  int heads;
  int blocks[kWarps];
};

// Items `first`, `first` + gridDim and so on, into `items`; behind the last they are without tokens.
__device__ void look_up_items(const DecodeArguments& a, const int* first_split, int first, Item* items) {
  const int warp = threadIdx.x % kWarps;  // that the KV block is for
  Item& item = items[threadIdx.x / kWarps];
  const int ratio = a.heads / a.cache.kv_heads;
  const int parts_of_kv_head = (ratio + kRows - 1) / kRows;
  const int index = first + static_cast<int>(threadIdx.x / kWarps * gridDim.x);
  const int slot = index / (a.cache.kv_heads * parts_of_kv_head);
  const int part = index % (a.cache.kv_heads * parts_of_kv_head);
  const int sequence = find_sequence(first_split, a.sequences, slot);
  const bool exists = slot < first_split[a.sequences];
  const int split = slot - first_split[sequence];
  const int tokens = exists ? __ldcg(a.batch.context_lengths + sequence) - split * kAttentionSplit : 0;
  if (warp == 0) {
    item.sequence = sequence;
    item.slot = slot;
    item.tokens = tokens;
    item.kv_head = part / parts_of_kv_head;
    item.first_head = item.kv_head * ratio + part % parts_of_kv_head * kRows;
    item.heads = min(kRows, ratio - part % parts_of_kv_head * kRows);
  }
  if (tokens > warp * kCacheBlock) {
    item.blocks[warp] = __ldcg(a.batch.block_tables + sequence * a.batch.table_stride + split * kWarps + warp);
  }
}

__device__ __forceinline__ uint4 load_or_zero(const std::uint16_t* from, bool real) {
  return real ? load_streaming_coherent_16(from) : uint4{0, 0, 0, 0};
}

__device__ __forceinline__ std::uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Of the item, that the calling warp's KV block and those behind it have; none or less when the warp has nothing to do.
__device__ __forceinline__ int tokens_of_warp(const Item& item) {
  return item.tokens - static_cast<int>(threadIdx.x / 32) * kCacheBlock;
}

// kGroups: of 64 dimensions. kWhole: there are so many, so that places are known when this is compiled.
template <int kGroups, bool kWhole>
__device__ __forceinline__ int head_dim_of(const DecodeArguments& a) {
  return kWhole ? 64 * kGroups : a.cache.head_dim;
}

// A warp's operands as they come from memory. With lane = 4 g + c:
template <int kGroups, bool kWhole>
struct Operands {
  uint4 keys[2][2 * kGroups];  // tokens g and 8 + g, dimensions 8 c .. 8 c + 7 of each 32
  uint4 values[kGroups][4];    // tokens 2 c, 2 c + 1, 2 c + 8, 2 c + 9, dimensions 8 g .. 8 g + 7 of each 64

  __device__ __forceinline__ void load_keys(const DecodeArguments& a, const Item& item) {
    const int g = threadIdx.x % 32 / 4;
    const int c = threadIdx.x % 4;
    const int tokens = tokens_of_warp(item);
    const int head_dim = head_dim_of<kGroups, kWhole>(a);
    const std::uint16_t* from = a.cache.keys + place(a, item) + g * head_dim;
#pragma unroll
    for (int k = 0; k < 2 * kGroups; ++k) {
      const int dimension = 32 * k + 8 * c;
      keys[0][k] = load_or_zero(from + dimension, g < tokens && dimension < head_dim);
      keys[1][k] = load_or_zero(from + 8 * head_dim + dimension, 8 + g < tokens && dimension < head_dim);
    }
  }

  __device__ __forceinline__ void load_values(const DecodeArguments& a, const Item& item) {
    const int g = threadIdx.x % 32 / 4;
    const int c = threadIdx.x % 4;
    const int tokens = tokens_of_warp(item);
    const int head_dim = head_dim_of<kGroups, kWhole>(a);
    const std::uint16_t* from = a.cache.values + place(a, item) + 8 * g;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 2 * c + i % 2 + i / 2 * 8;
        values[k][i] = load_or_zero(from + token * head_dim + 64 * k, token < tokens && 64 * k + 8 * g < head_dim);
      }
    }
  }

 private:
  static __device__ __forceinline__ std::int64_t place(const DecodeArguments& a, const Item& item) {
    const int block = item.blocks[threadIdx.x / 32];
    return (static_cast<std::int64_t>(block) * a.cache.kv_heads + item.kv_head) *
           (kCacheBlock * head_dim_of<kGroups, kWhole>(a));
  }
};

template <int kGroups>
struct Shared {
  // Padding spreads the rows over the banks.
  alignas(16) std::uint16_t query[2][kRows][64 * kGroups + 32];
  float vectors[kWarps][kRows][64 * kGroups + 4];
  float maxima[kRows][kWarps];
  float sums[kRows][kWarps];
  float row_max[kRows];
  Item items[2 * kLookedUp];
};

// Query heads of an item to shared memory, zeros for those that it lacks; complete after wait_for_copies.
template <int kGroups, bool kWhole>
__device__ __forceinline__ void copy_query(const DecodeArguments& a, const Item& item,
                                           std::uint16_t (&to)[kRows][64 * kGroups + 32]) {
  const int head_dim = head_dim_of<kGroups, kWhole>(a);
  const int row = threadIdx.x / (8 * kGroups);
  const int dimension = threadIdx.x % (8 * kGroups) * 8;
  if (row < kRows) {
    const bool real = row < item.heads && dimension < head_dim;
    const std::uint16_t* from = a.q;
    if (real) from += item.sequence * a.q_stride + (item.first_head + row) * head_dim + dimension;
    copy_async(static_cast<std::uint32_t>(__cvta_generic_to_shared(&to[row][dimension])), from, real);
  }
  commit_copies();
}

template <int kGroups, bool kWhole>
__global__ void __launch_bounds__(kThreads, kGroups <= 2 ? 2 : 1) decode_kernel(const DecodeArguments a) {
  extern __shared__ float4 memory[];
  Shared<kGroups>& shared = *reinterpret_cast<Shared<kGroups>*>(memory);
  int* const first_split = reinterpret_cast<int*>(&shared + 1);
  let_next_start();

  const int warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4;
  const int c = threadIdx.x % 4;
  const int head_dim = head_dim_of<kGroups, kWhole>(a);
  const SplitRecord record(a.heads, head_dim);
  // Before the wait: the batch's arrays, and keys and values of earlier steps.
  add_up(a.sequences, kThreads, first_split, [&](int i) { return splits_of(__ldcg(a.batch.context_lengths + i)); });
  const int parts = a.cache.kv_heads * ((a.heads / a.cache.kv_heads + kRows - 1) / kRows);
  const int grid = static_cast<int>(gridDim.x);
  const int items = (first_split[a.sequences] * parts - static_cast<int>(blockIdx.x) + grid - 1) / grid;  // the block's
  if (items <= 0) {
    if (blockIdx.x == 0) wait_for_previous();  // nobody may think that all before is done when it is not
    return;
  }
  look_up_items(a, first_split, blockIdx.x, shared.items);
  __syncthreads();

  Operands<kGroups, kWhole> operands;
  const int first_tokens = tokens_of_warp(shared.items[0]);
  const bool old = first_tokens > kCacheBlock;  // the step's own token is in a later KV block
  if (old) {
    operands.load_keys(a, shared.items[0]);
    operands.load_values(a, shared.items[0]);
  }
  wait_for_previous();
  copy_query<kGroups, kWhole>(a, shared.items[0], shared.query[0]);
  if (first_tokens > 0 && !old) {
    operands.load_keys(a, shared.items[0]);
    operands.load_values(a, shared.items[0]);
  }
  wait_for_copies<0>();
  __syncthreads();
  for (int n = 0; n < items; ++n) {
    const Item& item = shared.items[n % (2 * kLookedUp)];
    const Item& next = shared.items[(n + 1) % (2 * kLookedUp)];
    const int tokens = tokens_of_warp(item);
    const bool more = n + 1 < items && tokens_of_warp(next) > 0;
    if (n + 1 < items) copy_query<kGroups, kWhole>(a, next, shared.query[(n + 1) % 2]);
    float scores[2][4] = {};  // [tokens 0-7, 8-15]; the second half of each is the padding's
    if (tokens > 0) {
#pragma unroll
      for (int k = 0; k < 2 * kGroups; ++k) {
        const uint4 q = *reinterpret_cast<const uint4*>(&shared.query[n % 2][g][32 * k + 8 * c]);
        const std::uint32_t q0[4] = {q.x, 0, q.y, 0};
        const std::uint32_t q1[4] = {q.z, 0, q.w, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add(scores[half], q0, operands.keys[half][k].x, operands.keys[half][k].y);
          multiply_add(scores[half], q1, operands.keys[half][k].z, operands.keys[half][k].w);
        }
      }
    }
    if (more) operands.load_keys(a, next);

    float row_max = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (8 * half + 2 * c + i >= tokens) scores[half][i] = -INFINITY;
        row_max = fmaxf(row_max, scores[half][i]);
      }
    }
    row_max = quad_max(row_max);
    if (c == 0) shared.maxima[g][warp] = row_max;
    __syncthreads();
    row_max = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) row_max = fmaxf(row_max, shared.maxima[g][w]);
    row_max *= a.scale;
    if (warp == 0 && c == 0) shared.row_max[g] = row_max;

    float sum = 0;
    if (tokens > 0) {
      std::uint32_t high[2];
      std::uint32_t low[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float p0 = power_of_two(fmaf(scores[half][0], a.scale, -row_max));
        const float p1 = power_of_two(fmaf(scores[half][1], a.scale, -row_max));
        sum += p0 + p1;
        high[half] = pack_bf16(p0, p1);
        low[half] = pack_bf16(p0 - low_bf16(high[half]), p1 - high_bf16(high[half]));
      }
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        float vector[4][4] = {};  // dimensions 8 g + 2 t and the next, heads 2 c and the next
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          std::uint32_t pairs[4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const std::uint32_t even = word(operands.values[k][2 * i], t);
            const std::uint32_t odd = word(operands.values[k][2 * i + 1], t);
            pairs[2 * i] = __byte_perm(even, odd, 0x5410);
            pairs[2 * i + 1] = __byte_perm(even, odd, 0x7632);
          }
          multiply_add(vector[t], pairs, low[0], low[1]);
          multiply_add(vector[t], pairs, high[0], high[1]);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* to = &shared.vectors[warp][2 * c + i][64 * k + 8 * g];
          *reinterpret_cast<float4*>(to) = float4{vector[0][i], vector[0][2 + i], vector[1][i], vector[1][2 + i]};
          *reinterpret_cast<float4*>(to + 4) = float4{vector[2][i], vector[2][2 + i], vector[3][i], vector[3][2 + i]};
        }
      }
    }
    if (more) operands.load_values(a, next);
    sum = quad_sum(sum);
    if (c == 0) shared.sums[g][warp] = sum;
    wait_for_copies<0>();
    if ((n + 2) % kLookedUp == 0) {
      look_up_items(a, first_split, static_cast<int>(blockIdx.x) + (n + 2) * grid,
                    shared.items + (n + 2) % (2 * kLookedUp));
    }
    __syncthreads();

    // The warps' vectors in order; each thread 4 dimensions of one head. A warp without tokens has written none.
    const int warps = min(kWarps, (item.tokens + kCacheBlock - 1) / kCacheBlock);
    float* const result = a.workspace + item.slot * record.words;
    for (int i = threadIdx.x; i < kRows * 16 * kGroups; i += kThreads) {
      const int row = i / (16 * kGroups);
      const int dimension = i % (16 * kGroups) * 4;
      if (row >= item.heads || dimension >= head_dim) continue;
      float4 total{0, 0, 0, 0};
      float total_sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w >= warps) break;
        const float4 v = *reinterpret_cast<const float4*>(&shared.vectors[w][row][dimension]);
        total.x += v.x;
        total.y += v.y;
        total.z += v.z;
        total.w += v.w;
        total_sum += shared.sums[row][w];
      }
      const int head = item.first_head + row;
      *reinterpret_cast<float4*>(result + head * head_dim + dimension) = total;
      if (dimension == 0) {
        *reinterpret_cast<float2*>(result + record.stats + 2 * head) = float2{shared.row_max[row], total_sum};
      }
    }
  }
}

template <int kGroups>
cudaError_t launch_decode(const DecodeArguments& arguments, cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto kernel =
      arguments.cache.head_dim == 64 * kGroups ? decode_kernel<kGroups, true> : decode_kernel<kGroups, false>;
  const std::size_t shared_bytes = sizeof(Shared<kGroups>) + (arguments.sequences + 1) * sizeof(int);
  if (error == cudaSuccess && shared_bytes > 48 * 1024) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  }
  if (error != cudaSuccess) return error;
  const int blocks_of_processor = kGroups <= 2 ? 2 : 1;
  error = launch(kernel, dim3(processors * blocks_of_processor), dim3(kThreads), shared_bytes, stream, arguments);
  if (error != cudaSuccess) return error;
  return launch_merge<(kGroups + 1) / 2>(arguments, processors, stream);
}

}  // namespace

cudaError_t attention_decode(const std::uint16_t* q, std::int64_t q_stride, const PagedCache& cache,
                             const AttentionBatch& batch, int sequences, int heads, float scale, const Activations& out,
                             void* workspace, cudaStream_t stream) {
  if (sequences == 0) return cudaSuccess;
  if (cache.head_dim % 8 != 0 || cache.head_dim < 8 || cache.head_dim > 256 || heads % cache.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  const DecodeArguments arguments{
      q, q_stride, cache, batch, sequences, heads, scale * 1.44269504f, out, static_cast<float*>(workspace)};
  switch ((cache.head_dim + 63) / 64) {
    case 1:
      return launch_decode<1>(arguments, stream);
    case 2:
      return launch_decode<2>(arguments, stream);
    case 3:
      return launch_decode<3>(arguments, stream);
    default:
      return launch_decode<4>(arguments, stream);
  }
}

std::size_t attention_decode_workspace(int sequences, std::int64_t tokens, std::int64_t context, int heads,
                                       int head_dim) {
  const std::int64_t of_one = (context + kAttentionSplit - 1) / kAttentionSplit;
  const std::int64_t splits = std::min(tokens / kAttentionSplit + sequences, sequences * of_one);
  return static_cast<std::size_t>(splits * SplitRecord(heads, head_dim).words) * sizeof(float);
}

}  // namespace glyd::cuda
