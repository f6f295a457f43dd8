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
// Splits lie at multiples of 128 tokens whatever the batch. Their results (maximum, sum, vector) are merged by a tree
// of fixed fan-in: who finishes a node's last child, by an integer counter, merges the children, always in order. So
// the result depends on the sequence alone, and nobody waits. A sequence of one split writes its output at once.
//
// The grid is as many blocks as are resident; each derives the work list from the lengths on the device and takes every
// gridDim-th item.

#include <algorithm>
#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/attention/device.cuh"
#include "cuda/common/launch.h"

namespace glyd::cuda {
namespace {

constexpr int kWarps = kAttentionSplit / kCacheBlock;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 8;    // query heads of an item
constexpr int kFanIn = 16;  // splits that are merged at once
static_assert(kThreads >= kRows * 256 / 8, "a thread owns 8 dimensions of a row when the warps' vectors are added");

// Per split and query head: the unfinished vector, then its maximum (as a power of two) and sum, then the counter.
struct Record {
  __host__ __device__ Record(int heads, int head_dim)
      : stats(static_cast<std::int64_t>(heads) * head_dim), counters(stats + 2 * heads) {
    words = (counters + heads + 3) / 4 * 4;
  }
  std::int64_t stats;
  std::int64_t counters;
  std::int64_t words;  // of 4 bytes, from split to split
};

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

struct Item {
  int sequence;
  int context;
  int split;
  int splits;      // of the sequence
  int first_slot;  // the workspace's record of the sequence's split 0
  int kv_head;
  int part;  // which kv head and 8 query heads of it
  int first_head;
  int rows;
};

template <int kGroups>
struct Shared {
  // 4 words of padding spread the rows over the banks.
  float vectors[kWarps][kRows][64 * kGroups + 4];
  float maxima[kRows][kWarps];
  float sums[kRows][kWarps];
  float row_max[kRows];
  int last;
};

// First split of every sequence in the list of all, from the lengths.
__device__ void list_splits(const Arguments& a, int* first_split) {
  for (int i = threadIdx.x; i < a.sequences; i += kThreads) {
    const int context = a.batch.context_lengths[i];
    first_split[i + 1] = max(1, (context + kAttentionSplit - 1) / kAttentionSplit);
  }
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

__device__ Item find_item(const Arguments& a, const int* first_split, int index, int parts_of_kv_head) {
  const int parts = a.cache.kv_heads * parts_of_kv_head;
  const int slot = index / parts;
  Item item;
  int low = 0;
  for (int high = a.sequences; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (first_split[middle] <= slot) {
      low = middle;
    } else {
      high = middle;
    }
  }
  item.sequence = low;
  item.context = a.batch.context_lengths[low];
  item.first_slot = first_split[low];
  item.split = slot - item.first_slot;
  item.splits = first_split[low + 1] - item.first_slot;
  item.part = index % parts;
  item.kv_head = item.part / parts_of_kv_head;
  const int ratio = a.heads / a.cache.kv_heads;
  const int skipped = item.part % parts_of_kv_head * kRows;
  item.first_head = item.kv_head * ratio + skipped;
  item.rows = min(kRows, ratio - skipped);
  return item;
}

// The calling warp's KV block of an item; 0 when it has none.
__device__ __forceinline__ int find_block(const Arguments& a, const Item& item) {
  const int block = item.split * kWarps + static_cast<int>(threadIdx.x / 32);
  if (block * kCacheBlock >= item.context) return 0;
  return a.batch.block_tables[item.sequence * a.batch.table_stride + block];
}

__device__ __forceinline__ uint4 load_or_zero(const std::uint16_t* from, bool real) {
  return real ? __ldcg(reinterpret_cast<const uint4*>(from)) : uint4{0, 0, 0, 0};
}

__device__ __forceinline__ std::uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// One 8-dimension piece of a row, as a thread owns it while it is merged.
struct Piece {
  float values[8];
  float max;
  float sum;
};

// The children's sum, in order, into `piece`.
__device__ void merge(Piece& piece, const float* records, std::int64_t step, int children, std::int64_t stats,
                      std::int64_t vector) {
  piece.max = -INFINITY;
#pragma unroll 4
  for (int i = 0; i < children; ++i) piece.max = fmaxf(piece.max, __ldcg(records + i * step + stats));
  piece.sum = 0;
  for (float& value : piece.values) value = 0;
#pragma unroll 4
  for (int i = 0; i < children; ++i) {
    const float* record = records + i * step;
    const float2 child = __ldcg(reinterpret_cast<const float2*>(record + stats));
    const float4 low = __ldcg(reinterpret_cast<const float4*>(record + vector));
    const float4 high = __ldcg(reinterpret_cast<const float4*>(record + vector + 4));
    const float factor = power_of_two(child.x - piece.max);
    piece.sum += factor * child.y;
    piece.values[0] += factor * low.x;
    piece.values[1] += factor * low.y;
    piece.values[2] += factor * low.z;
    piece.values[3] += factor * low.w;
    piece.values[4] += factor * high.x;
    piece.values[5] += factor * high.y;
    piece.values[6] += factor * high.z;
    piece.values[7] += factor * high.w;
  }
}

// Takes a split's result up the tree. True, with the whole sequence's result in `piece`, for the block that reaches the
// root. A node's record is its first split's, whose own result was read before. A parent's counter is one of its first
// 16 splits': the first but `level`, so that the levels do not meet; it is back at 0 when all children have come.
__device__ bool climb(const Arguments& a, const Item& item, Piece& piece, bool owner, int head, int dimension,
                      int& last) {
  const Record record(a.heads, a.cache.head_dim);
  const std::int64_t stats = record.stats + 2 * head;
  const std::int64_t vector = static_cast<std::int64_t>(head) * a.cache.head_dim + dimension;
  float* const root = a.workspace + item.first_slot * record.words;
  int node = item.split;
  int splits_of_node = 1;
  int level = 0;
  for (int nodes = item.splits; nodes > 1; nodes = (nodes + kFanIn - 1) / kFanIn) {
    const int first = node / kFanIn * kFanIn;
    const int children = min(kFanIn, nodes - first);
    if (children > 1) {
      if (owner) {
        float* to = root + static_cast<std::int64_t>(node) * splits_of_node * record.words;
        if (dimension == 0) *reinterpret_cast<float2*>(to + stats) = float2{piece.max, piece.sum};
        const float* v = piece.values;
        *reinterpret_cast<float4*>(to + vector) = float4{v[0], v[1], v[2], v[3]};
        *reinterpret_cast<float4*>(to + vector + 4) = float4{v[4], v[5], v[6], v[7]};
      }
      const float* children_records = root + static_cast<std::int64_t>(first) * splits_of_node * record.words;
      __syncthreads();
      if (threadIdx.x == 0) {
        float* counter = root + (static_cast<std::int64_t>(first) * splits_of_node + level) * record.words +
                         record.counters + item.part;
        const auto limit = static_cast<unsigned>(children - 1);
        __threadfence();
        last = atomicInc(reinterpret_cast<unsigned*>(counter), limit) == limit;
        __threadfence();
      }
      __syncthreads();
      if (!last) return false;
      if (owner) merge(piece, children_records, splits_of_node * record.words, children, stats, vector);
      __syncthreads();  // all have read before the next level's record takes the place of the first child's
    }
    node /= kFanIn;
    splits_of_node *= kFanIn;
    ++level;
  }
  return true;
}

__device__ __forceinline__ void store_output(const Arguments& a, int sequence, int k, const Piece& piece) {
  const float factor = piece.sum == 0 ? 0.0f : 1.0f / piece.sum;  // 0: a sequence without tokens
  const float* v = piece.values;
  store8(a.out, sequence, k,
         uint4{pack_bf16(v[0] * factor, v[1] * factor), pack_bf16(v[2] * factor, v[3] * factor),
               pack_bf16(v[4] * factor, v[5] * factor), pack_bf16(v[6] * factor, v[7] * factor)});
  if (a.out.layout != Layout::Rows && k + 8 == a.heads * a.cache.head_dim) {
    for (int behind = k + 8; behind % 32 != 0; behind += 8) store8(a.out, sequence, behind, uint4{0, 0, 0, 0});
  }
}

// kGroups: of 64 dimensions.
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
  // Before the wait: the batch's arrays are not written by kernels.
  list_splits(a, first_split);
  const int items = first_split[a.sequences] * a.cache.kv_heads * parts_of_kv_head;
  if (static_cast<int>(blockIdx.x) >= items) return;
  Item item = find_item(a, first_split, blockIdx.x, parts_of_kv_head);
  int block = find_block(a, item);
  wait_for_previous();

  for (int index = blockIdx.x; index < items;) {
    const int tokens = min(kAttentionSplit, item.context - item.split * kAttentionSplit);
    const int mine = tokens - warp * kCacheBlock;  // tokens of the warp's KV block, perhaps none

    uint4 values[kGroups][4];  // tokens 2 c, 2 c + 1, 2 c + 8, 2 c + 9
    float scores[2][4] = {};   // [tokens 0-7, 8-15]; the second half of each is the padding's
    if (mine > 0) {
      const std::int64_t at =
          (static_cast<std::int64_t>(block) * a.cache.kv_heads + item.kv_head) * kCacheBlock * head_dim;
      const std::uint16_t* q = a.q + item.sequence * a.q_stride + (item.first_head + g) * head_dim;
      uint4 keys[2][2 * kGroups];
      uint4 query[2 * kGroups];
#pragma unroll
      for (int k = 0; k < 2 * kGroups; ++k) {
        const int dimension = 32 * k + 8 * c;
        query[k] = load_or_zero(q + dimension, g < item.rows && dimension < head_dim);
        for (int half = 0; half < 2; ++half) {
          const int token = 8 * half + g;
          keys[half][k] =
              load_or_zero(a.cache.keys + at + token * head_dim + dimension, token < mine && dimension < head_dim);
        }
      }
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        const int dimension = 64 * k + 8 * g;
        for (int i = 0; i < 4; ++i) {
          const int token = 2 * c + i % 2 + i / 2 * 8;
          values[k][i] =
              load_or_zero(a.cache.values + at + token * head_dim + dimension, token < mine && dimension < head_dim);
        }
      }
#pragma unroll
      for (int k = 0; k < 2 * kGroups; ++k) {
        const std::uint32_t q0[4] = {query[k].x, 0, query[k].y, 0};
        const std::uint32_t q1[4] = {query[k].z, 0, query[k].w, 0};
        for (int half = 0; half < 2; ++half) {
          multiply_add(scores[half], q0, keys[half][k].x, keys[half][k].y);
          multiply_add(scores[half], q1, keys[half][k].z, keys[half][k].w);
        }
      }
    }
    // The next item's place in the cache, while this one's bytes are on their way.
    index += static_cast<int>(gridDim.x);
    const Item next = index < items ? find_item(a, first_split, index, parts_of_kv_head) : item;
    const int next_block = index < items ? find_block(a, next) : 0;

    float row_max = -INFINITY;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 2; ++i) {
        if (8 * half + 2 * c + i >= mine) scores[half][i] = -INFINITY;
        row_max = fmaxf(row_max, scores[half][i]);
      }
    }
    row_max = quad_max(row_max);
    if (c == 0) shared.maxima[g][warp] = row_max;
    __syncthreads();
    row_max = -INFINITY;
    for (int w = 0; w < kWarps; ++w) row_max = fmaxf(row_max, shared.maxima[g][w]);
    row_max *= a.scale;
    if (warp == 0 && c == 0) shared.row_max[g] = row_max;

    if (mine > 0) {
      std::uint32_t high[2];
      std::uint32_t low[2];
      float sum = 0;
      for (int half = 0; half < 2; ++half) {
        const float p0 = power_of_two(fmaf(scores[half][0], a.scale, -row_max));
        const float p1 = power_of_two(fmaf(scores[half][1], a.scale, -row_max));
        sum += p0 + p1;
        high[half] = pack_bf16(p0, p1);
        low[half] = pack_bf16(p0 - low_bf16(high[half]), p1 - high_bf16(high[half]));
      }
      sum = quad_sum(sum);
      if (c == 0) shared.sums[g][warp] = sum;
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        float vector[4][4] = {};  // dimensions 8 g + 2 t and the next, heads 2 c and the next
        for (int t = 0; t < 4; ++t) {
          std::uint32_t pairs[4];
          for (int i = 0; i < 2; ++i) {
            const std::uint32_t even = word(values[k][2 * i], t);
            const std::uint32_t odd = word(values[k][2 * i + 1], t);
            pairs[2 * i] = __byte_perm(even, odd, 0x5410);
            pairs[2 * i + 1] = __byte_perm(even, odd, 0x7632);
          }
          multiply_add(vector[t], pairs, low[0], low[1]);
          multiply_add(vector[t], pairs, high[0], high[1]);
        }
        for (int i = 0; i < 2; ++i) {
          float* to = &shared.vectors[warp][2 * c + i][64 * k + 8 * g];
          *reinterpret_cast<float4*>(to) = float4{vector[0][i], vector[0][2 + i], vector[1][i], vector[1][2 + i]};
          *reinterpret_cast<float4*>(to + 4) = float4{vector[2][i], vector[2][2 + i], vector[3][i], vector[3][2 + i]};
        }
      }
    }
    __syncthreads();

    // The warps' vectors in order; each thread 8 dimensions of one head.
    const int row = threadIdx.x / (8 * kGroups);
    const int dimension = threadIdx.x % (8 * kGroups) * 8;
    const bool owner = row < item.rows && dimension < head_dim;
    Piece piece{};
    if (owner) {
      piece.max = shared.row_max[row];
      const int warps = (tokens + kCacheBlock - 1) / kCacheBlock;
      for (int w = 0; w < warps; ++w) {
        const float4 first = *reinterpret_cast<const float4*>(&shared.vectors[w][row][dimension]);
        const float4 second = *reinterpret_cast<const float4*>(&shared.vectors[w][row][dimension + 4]);
        piece.sum += shared.sums[row][w];
        piece.values[0] += first.x;
        piece.values[1] += first.y;
        piece.values[2] += first.z;
        piece.values[3] += first.w;
        piece.values[4] += second.x;
        piece.values[5] += second.y;
        piece.values[6] += second.z;
        piece.values[7] += second.w;
      }
    }
    const int head = item.first_head + row;
    if (climb(a, item, piece, owner, head, dimension, shared.last) && owner) {
      store_output(a, item.sequence, head * head_dim + dimension, piece);
    }
    item = next;
    block = next_block;
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
  return launch(decode_kernel<kGroups>, dim3(processors * blocks_of_processor), dim3(kThreads), shared_bytes, stream,
                arguments);
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
  const std::int64_t splits_of_one = (context + kAttentionSplit - 1) / kAttentionSplit;
  const std::int64_t splits =
      std::min(tokens / kAttentionSplit + sequences, sequences * std::max<std::int64_t>(1, splits_of_one));
  return static_cast<std::size_t>(splits * Record(heads, head_dim).words) * sizeof(float);
}

}  // namespace glyd::cuda
