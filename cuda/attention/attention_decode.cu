// Attention of one new token a sequence over its cached keys and values.
//
// What binds it is memory: each key and value is read once for all query heads of its kv head and used for a few
// multiplications. So the kernel is laid out by how the bytes are asked for. A work item is (sequence, kv head with up
// to 8 of its query heads, split of 128 tokens); a block of 8 warps takes it, warp w the split's w-th KV block of 16
// tokens. A warp asks for all of its keys and values at once, 16 bytes a lane, straight into the registers from which
// the tensor cores take them: neither operand goes through shared memory.
// - Scores: m16n8k16 with the query heads as rows (the lower 8 of 16 are zero) and tokens as columns. The dimensions
//   are permuted within groups of 32, in queries and keys alike, so that a lane's 16 bytes are two steps' fragments.
// - Values: the product is turned around, dimensions as rows and heads as columns, for then the scores' registers are
//   the second operand's as they stand. A lane holds 8 dimensions of four tokens and pairs the tokens by byte
//   permutation. The probabilities are split in two bf16 terms, high and low, so they lose nothing that fp32 has seen.
// The warps share the split's maximum through shared memory before they exponentiate, so their sums add up as they are.
//
// The grid is as many blocks as are resident; each derives the work list from the lengths on the device and takes every
// gridDim-th item. As soon as registers are free, the next item's bytes are asked for into them: its keys when the
// scores are known, its values when this one's are used up.
//
// Splits lie at multiples of 128 tokens whatever the batch. Their results (maximum, sum, vector) go to the workspace,
// and a second, small kernel merges those of each query head, in an order that depends on the sequence alone. (Merging
// by whoever finishes last needs a fence and an atomic for each item: some microseconds, in which nothing is loaded.)

#include <algorithm>
#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/attention/device.cuh"
#include "cuda/common/launch.h"

namespace glyd::cuda {
namespace {

constexpr int kWarps = kAttentionSplit / kCacheBlock;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 8;  // query heads of an item
constexpr int kMergeWarps = 4;
constexpr int kMergeThreads = kMergeWarps * 32;

struct Arguments {
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
struct Record {
  __host__ __device__ Record(int heads, int head_dim)
      : stats(static_cast<std::int64_t>(heads) * head_dim), words((stats + 2 * heads + 3) / 4 * 4) {}
  std::int64_t stats;
  std::int64_t words;
};

__device__ __forceinline__ int splits_of(int context) { return (context + kAttentionSplit - 1) / kAttentionSplit; }

// First split of every sequence in the list of all.
__device__ void list_splits(const Arguments& a, int* first_split) {
  for (int i = threadIdx.x; i < a.sequences; i += kThreads) first_split[i + 1] = splits_of(a.batch.context_lengths[i]);
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int base = 0; base < a.sequences; base += 32) {
      const int i = base + static_cast<int>(threadIdx.x);
      int sum = i < a.sequences ? first_split[i + 1] : 0;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (i < a.sequences) first_split[i + 1] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (threadIdx.x == 0) first_split[0] = 0;
  }
  __syncthreads();
}

struct Item {
  int sequence = 0;
  int slot = 0;    // the split in the list of all
  int part = 0;    // which kv head, and which 8 of its query heads
  int tokens = 0;  // of the split, that the warp's KV block and those behind it have
  int block = 0;   // the warp's
};

struct Heads {
  __device__ Heads(const Arguments& a, int part, int parts_of_kv_head) : kv_head(part / parts_of_kv_head) {
    const int ratio = a.heads / a.cache.kv_heads;
    const int skipped = part % parts_of_kv_head * kRows;
    first = kv_head * ratio + skipped;
    count = min(kRows, ratio - skipped);
  }
  int kv_head;
  int first;
  int count;
};

// Without tokens when there is no such item, or none of its tokens are the warp's.
__device__ __forceinline__ Item find_item(const Arguments& a, const int* first_split, int index, int parts) {
  Item item;
  item.slot = index / parts;
  item.part = index % parts;
  if (item.slot >= first_split[a.sequences]) return item;
  for (int high = a.sequences; high - item.sequence > 1;) {
    const int middle = (item.sequence + high) / 2;
    if (first_split[middle] <= item.slot) {
      item.sequence = middle;
    } else {
      high = middle;
    }
  }
  const int block = (item.slot - first_split[item.sequence]) * kWarps + static_cast<int>(threadIdx.x / 32);
  item.tokens = a.batch.context_lengths[item.sequence] - block * kCacheBlock;
  if (item.tokens > 0) item.block = a.batch.block_tables[item.sequence * a.batch.table_stride + block];
  return item;
}

__device__ __forceinline__ uint4 load_or_zero(const std::uint16_t* from, bool real) {
  return real ? __ldcg(reinterpret_cast<const uint4*>(from)) : uint4{0, 0, 0, 0};
}

__device__ __forceinline__ std::uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A warp's operands as they come from memory. kGroups: of 64 dimensions. With lane = 4 g + c:
template <int kGroups>
struct Operands {
  uint4 query[2 * kGroups];    // head g, dimensions 8 c .. 8 c + 7 of each 32
  uint4 keys[2][2 * kGroups];  // tokens g and 8 + g, likewise
  uint4 values[kGroups][4];    // tokens 2 c, 2 c + 1, 2 c + 8, 2 c + 9, dimensions 8 g .. 8 g + 7 of each 64

  __device__ __forceinline__ void load_keys(const Arguments& a, const Item& item, const Heads& heads) {
    const int g = threadIdx.x % 32 / 4;
    const int c = threadIdx.x % 4;
    const int head_dim = a.cache.head_dim;
    const std::uint16_t* q = a.q + item.sequence * a.q_stride + (heads.first + g) * head_dim;
    const std::uint16_t* from = a.cache.keys + place(a, item, heads) + g * head_dim;
#pragma unroll
    for (int k = 0; k < 2 * kGroups; ++k) {
      const int dimension = 32 * k + 8 * c;
      keys[0][k] = load_or_zero(from + dimension, g < item.tokens && dimension < head_dim);
      keys[1][k] = load_or_zero(from + 8 * head_dim + dimension, 8 + g < item.tokens && dimension < head_dim);
      query[k] = load_or_zero(q + dimension, g < heads.count && dimension < head_dim);
    }
  }

  __device__ __forceinline__ void load_values(const Arguments& a, const Item& item, const Heads& heads) {
    const int g = threadIdx.x % 32 / 4;
    const int c = threadIdx.x % 4;
    const int head_dim = a.cache.head_dim;
    const std::uint16_t* from = a.cache.values + place(a, item, heads) + 8 * g;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 2 * c + i % 2 + i / 2 * 8;
        values[k][i] = load_or_zero(from + token * head_dim + 64 * k, token < item.tokens && 64 * k + 8 * g < head_dim);
      }
    }
  }

 private:
  static __device__ __forceinline__ std::int64_t place(const Arguments& a, const Item& item, const Heads& heads) {
    return (static_cast<std::int64_t>(item.block) * a.cache.kv_heads + heads.kv_head) * kCacheBlock * a.cache.head_dim;
  }
};

template <int kGroups>
struct Shared {
  // 4 words of padding spread the rows over the banks.
  float vectors[kWarps][kRows][64 * kGroups + 4];
  float maxima[kRows][kWarps];
  float sums[kRows][kWarps];
  float row_max[kRows];
};

template <int kGroups>
__global__ void __launch_bounds__(kThreads, kGroups <= 2 ? 2 : 1) decode_kernel(const Arguments a) {
  extern __shared__ float4 memory[];
  Shared<kGroups>& shared = *reinterpret_cast<Shared<kGroups>*>(memory);
  int* const first_split = reinterpret_cast<int*>(&shared + 1);
  let_next_start();

  const int warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4;
  const int c = threadIdx.x % 4;
  const int head_dim = a.cache.head_dim;
  const int parts_of_kv_head = (a.heads / a.cache.kv_heads + kRows - 1) / kRows;
  const int parts = a.cache.kv_heads * parts_of_kv_head;
  const Record record(a.heads, head_dim);
  // Before the wait: the batch's arrays are not written by kernels.
  list_splits(a, first_split);
  const int items = first_split[a.sequences] * parts;
  if (static_cast<int>(blockIdx.x) >= items) {
    if (blockIdx.x == 0) wait_for_previous();  // nobody may think that all before is done when it is not
    return;
  }
  Item item = find_item(a, first_split, blockIdx.x, parts);
  Item next = find_item(a, first_split, blockIdx.x + gridDim.x, parts);
  wait_for_previous();

  Operands<kGroups> operands;
  {
    const Heads heads(a, item.part, parts_of_kv_head);
    if (item.tokens > 0) {
      operands.load_keys(a, item, heads);
      operands.load_values(a, item, heads);
    }
  }
  for (int index = blockIdx.x; index < items; index += static_cast<int>(gridDim.x)) {
    const Heads next_heads(a, next.part, parts_of_kv_head);
    float scores[2][4] = {};  // [tokens 0-7, 8-15]; the second half of each is the padding's
    if (item.tokens > 0) {
#pragma unroll
      for (int k = 0; k < 2 * kGroups; ++k) {
        const uint4& q = operands.query[k];
        const std::uint32_t q0[4] = {q.x, 0, q.y, 0};
        const std::uint32_t q1[4] = {q.z, 0, q.w, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add(scores[half], q0, operands.keys[half][k].x, operands.keys[half][k].y);
          multiply_add(scores[half], q1, operands.keys[half][k].z, operands.keys[half][k].w);
        }
      }
    }
    if (next.tokens > 0) operands.load_keys(a, next, next_heads);

    float row_max = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (8 * half + 2 * c + i >= item.tokens) scores[half][i] = -INFINITY;
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
    if (item.tokens > 0) {
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
    if (next.tokens > 0) operands.load_values(a, next, next_heads);
    sum = quad_sum(sum);
    if (c == 0) shared.sums[g][warp] = sum;
    __syncthreads();

    // The warps' vectors in order; each thread 4 dimensions of one head. A warp without tokens has written none.
    const Heads heads(a, item.part, parts_of_kv_head);
    const int tokens = item.tokens + warp * kCacheBlock;
    const int warps = min(kWarps, (tokens + kCacheBlock - 1) / kCacheBlock);
    float* const result = a.workspace + item.slot * record.words;
    for (int i = threadIdx.x; i < kRows * 16 * kGroups; i += kThreads) {
      const int row = i / (16 * kGroups);
      const int dimension = i % (16 * kGroups) * 4;
      if (row >= heads.count || dimension >= head_dim) continue;
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
      const int head = heads.first + row;
      *reinterpret_cast<float4*>(result + head * head_dim + dimension) = total;
      if (dimension == 0) {
        *reinterpret_cast<float2*>(result + record.stats + 2 * head) = float2{shared.row_max[row], total_sum};
      }
    }
    item = next;
    next = find_item(a, first_split, index + 2 * static_cast<int>(gridDim.x), parts);
  }
}

// A head's unfinished result; a lane has dimensions 4 lane .. 4 lane + 3 of each 128.
template <int kParts>
struct Partial {
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

// One query head of one sequence: warp w takes splits w, w + 4 and so on, then the warps' results are added in order.
// kParts: of 128 dimensions.
template <int kParts>
__global__ void __launch_bounds__(kMergeThreads, 8) merge_kernel(const Arguments a) {
  constexpr int kAtOnce = 8 / kParts;
  __shared__ float4 vectors[kMergeWarps][kParts][32];
  __shared__ float2 stats[kMergeWarps];
  __shared__ int splits_before[kMergeWarps];
  let_next_start();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.x;
  const int sequence = blockIdx.y;
  const int head_dim = a.cache.head_dim;
  int before = 0;
  for (int i = threadIdx.x; i < sequence; i += kMergeThreads) before += splits_of(a.batch.context_lengths[i]);
  before = __reduce_add_sync(~0u, before);
  if (lane == 0) splits_before[warp] = before;
  const int splits = splits_of(a.batch.context_lengths[sequence]);
  __syncthreads();
  before = 0;
  for (const int count : splits_before) before += count;
  const Record record(a.heads, head_dim);
  const float* const first = a.workspace + before * record.words;
  wait_for_previous();

  Partial<kParts> total;
  for (int base = warp; base < splits; base += kMergeWarps * kAtOnce) {
    float4 vector[kAtOnce][kParts];
    float2 max_and_sum[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int split = base + j * kMergeWarps;
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

template <int kGroups>
cudaError_t launch_decode(const Arguments& arguments, cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const std::size_t shared_bytes = sizeof(Shared<kGroups>) + (arguments.sequences + 1) * sizeof(int);
  if (error == cudaSuccess && shared_bytes > 48 * 1024) {
    error = cudaFuncSetAttribute(decode_kernel<kGroups>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  if (error != cudaSuccess) return error;
  const int blocks_of_processor = kGroups <= 2 ? 2 : 1;
  error = launch(decode_kernel<kGroups>, dim3(processors * blocks_of_processor), dim3(kThreads), shared_bytes, stream,
                 arguments);
  if (error != cudaSuccess) return error;
  return launch(merge_kernel<(kGroups + 1) / 2>, dim3(arguments.heads, arguments.sequences), dim3(kMergeThreads), 0,
                stream, arguments);
}

}  // namespace

cudaError_t attention_decode(const std::uint16_t* q, std::int64_t q_stride, const PagedCache& cache,
                             const AttentionBatch& batch, int sequences, int heads, float scale, const Activations& out,
                             void* workspace, cudaStream_t stream) {
  if (sequences == 0) return cudaSuccess;
  if (cache.head_dim % 8 != 0 || cache.head_dim < 8 || cache.head_dim > 256 || heads % cache.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  const Arguments arguments{
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
  return static_cast<std::size_t>(splits * Record(heads, head_dim).words) * sizeof(float);
}

}  // namespace glyd::cuda
