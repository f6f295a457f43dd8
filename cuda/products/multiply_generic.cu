// The product kernel for every chip from sm_80 on: mma.sync and cp.async, no bulk copies, no wgmma.
//
// The work is cut as for Hopper (Partition), the k16 steps come in the same order, so on one chip both kernels give the
// same bits. What differs is how bytes travel. Each warp group of 4 warps copies its own blocks of exponent streams
// into two buffers of shared memory with cp.async, one block ahead, and meets only itself at a named barrier;
// activations are few and come from the cache as 16-byte loads. Consumer cards have 2 to 6 times more instructions for
// each byte of memory than the H200, so decoding is not what binds there; their 99 KB of shared memory are: 64 KB for
// the table, the rest for the blocks of two or three row groups.
//
// CPU reference: src/runner/cpu/matmul.h (in another order of additions).

#include "cuda/common/launch.h"
#include "cuda/products/weights.cuh"

namespace glyd::cuda {
namespace {

template <class Matrix>
struct GenericArguments {
  Matrix weights;
  Partition partition;
  const std::uint8_t* x;
  float* partials;
  int tokens;
  int slot_bytes;   // of a buffer for one block; 0: plain weights
  int pass_groups;  // row groups of a pass: the thread block has 4 warps for each
};

template <int kColumns>
inline constexpr int kMaxGenericGroups = kColumns <= 16   ? 7
                                         : kColumns <= 64 ? 4
                                                          : 2;

// acc += a * x, with activations from the cache.
template <int kColumns>
struct CachedProduct {
  static constexpr int kFragments = 2;
  struct X {};
  float (&acc)[kColumns / 8][4];
  const std::uint8_t* x;  // the lane's part of the block's activations

  __device__ __forceinline__ X load(int) const { return {}; }
  __device__ __forceinline__ void run(int g, const Fragments (&a)[kFragments], const X&) {
    run_slowly(g, a[g % kFragments]);
  }
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const uint4 b = *reinterpret_cast<const uint4*>(x + g * (kColumns * 64) + n * 512);
      mma_16816(acc[n], a[0], b.x, b.y);
      mma_16816(acc[n], a[1], b.z, b.w);
    }
  }
};

template <class Matrix, int kColumns>
__global__ void __launch_bounds__(kMaxGenericGroups<kColumns> * 128, 1)
    multiply_generic_kernel(const __grid_constant__ GenericArguments<Matrix> args) {
  using Walk = typename Source<Matrix>::Walk;
  constexpr bool kPacked = Source<Matrix>::kPacked;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Partition& p = args.partition;
  const int begin = p.first[blockIdx.x], end = p.end(blockIdx.x);
  if (begin == end) return;
  const int blocks = p.col_blocks();
  const int groups = static_cast<int>((p.cols + codec::kGroupCols - 1) / codec::kGroupCols);
  const int passes = (p.height + args.pass_groups - 1) / args.pass_groups;
  const std::uint32_t one = opaque_one();
  const std::uint32_t buffers =
      shared_address(shared_memory) + (kPacked ? kTableBytes : 0) + (warp >> 2) * 2 * args.slot_bytes;

  let_next_start();
  if constexpr (kPacked) {
    auto* table = reinterpret_cast<std::uint32_t*>(shared_memory);
    for (int i = warp; i < static_cast<int>(kTableEntries); i += args.pass_groups * 4)
      table[i * 32 + lane] = args.weights.table[i];
    __syncthreads();
  }
  wait_for_previous();

  for (int pass = 0; pass < passes; ++pass) {
    const int place = pass * args.pass_groups + (warp >> 2);
    if (place >= p.height) continue;
    const int from = p.begin_at(blockIdx.x, place), to = p.end_at(blockIdx.x, place);
    // The 4 warps fetch the block of step u into one of their two buffers.
    const auto fetch = [&](int u) {
      if constexpr (kPacked) {
        const int row = u / blocks;
        if (u >= from && u < to) {
          const std::int64_t group = p.row_group(row, place);
          const std::uint32_t* offset = args.weights.block_offsets + group * blocks + u % blocks;
          const std::uint8_t* source = args.weights.streams + static_cast<std::int64_t>(offset[0]) * 16;
          const std::uint32_t slot = buffers + ((u - begin) & 1) * args.slot_bytes;
          const int pieces = static_cast<int>(offset[1] - offset[0]);
          for (int i = threadIdx.x & 127; i < pieces; i += 128) copy_streaming_16(slot + i * 16, source + i * 16);
        }
        copies_commit();
      }
    };
    const auto meet = [&] {
      if constexpr (kPacked) asm volatile("bar.sync %0, 128;" ::"r"(1 + (warp >> 2)) : "memory");
    };
    fetch(begin);
    int step_row = from / blocks, block = from % blocks;
    Walk walk(args.weights, p, step_row, place, block, warp, lane);
    RegisterQueue<Walk, 2> queue;
    if (from < to) queue.fill(walk);
    float acc[kColumns / 8][4];
#pragma unroll
    for (auto& column : acc) column[0] = column[1] = column[2] = column[3] = 0;

    for (int u = begin; u < end; ++u) {
      const bool valid = u >= from && u < to;
      fetch(u + 1);
      if constexpr (kPacked) copies_wait<1>();
      meet();
      if (valid) {
        typename Source<Matrix>::Unit unit;
        unit.open(buffers + ((u - begin) & 1) * args.slot_bytes, warp, lane);
        const std::uint8_t* x =
            args.x + (static_cast<std::int64_t>(block) * codec::kBlockGroups * (kColumns / 8) * 32 + lane) * 16;
        const int first = block * static_cast<int>(codec::kBlockGroups);
        const int count = min(groups - first, static_cast<int>(codec::kBlockGroups));
        CachedProduct<kColumns> product{acc, x};
        if (count == static_cast<int>(codec::kBlockGroups)) {
          Fragments fragments[decltype(product)::kFragments];
          run_block(unit, walk, queue, u + 1 < to, lane, one, product, fragments);
        } else {
          run_short_block(unit, walk, queue, count, u + 1 < to, lane, one, product);
        }
      }
      meet();  // the buffer may be filled again
      if (valid && (++block == blocks || u + 1 == to)) {
        store_partials(p, blockIdx.x, args.partials, args.tokens, step_row, place, warp, lane, acc);
        block = 0;
        ++step_row;
      }
    }
    if constexpr (kPacked) copies_wait<0>();
  }
}

template <class Matrix, int kColumns>
cudaError_t launch_generic(const Matrix& weights, const Partition& partition, const Activations& x, int tokens,
                           float* partials, int slot_bytes, cudaStream_t stream) {
  int device = 0, limit = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  const int table = Source<Matrix>::kPacked ? static_cast<int>(kTableBytes) : 0;
  int groups = partition.height < kMaxGenericGroups<kColumns> ? partition.height : kMaxGenericGroups<kColumns>;
  while (groups > 1 && table + groups * 2 * slot_bytes > limit) --groups;
  const int shared = table + groups * 2 * slot_bytes;
  if (shared > limit) return cudaErrorInvalidConfiguration;
  const auto kernel = multiply_generic_kernel<Matrix, kColumns>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
  if (error != cudaSuccess) return error;
  const GenericArguments<Matrix> args{
      weights, partition, reinterpret_cast<const std::uint8_t*>(x.data), partials, tokens, slot_bytes, groups};
  return launch(kernel, dim3(partition.ctas), dim3(groups * 128), shared, stream, args);
}

template <class Matrix>
cudaError_t multiply_generic(const Matrix& weights, const Partition& partition, const Activations& x, int tokens,
                             float* partials, int slot_bytes, cudaStream_t stream) {
  if (x.layout != Layout::Mma) return cudaErrorInvalidValue;
  switch (x.columns) {
    case 8:
      return launch_generic<Matrix, 8>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 16:
      return launch_generic<Matrix, 16>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 32:
      return launch_generic<Matrix, 32>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 48:
      return launch_generic<Matrix, 48>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 64:
      return launch_generic<Matrix, 64>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 96:
      return launch_generic<Matrix, 96>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 112:
      return launch_generic<Matrix, 112>(weights, partition, x, tokens, partials, slot_bytes, stream);
    case 128:
      return launch_generic<Matrix, 128>(weights, partition, x, tokens, partials, slot_bytes, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t multiply_packed_generic(const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                                    int tokens, float* partials, cudaStream_t stream) {
  const int slot = static_cast<int>(weights.slot_bytes());
  return multiply_generic(weights, partition, x, tokens, partials, slot, stream);
}

cudaError_t multiply_plain_generic(const PlainMatrix& weights, const Partition& partition, const Activations& x,
                                   int tokens, float* partials, cudaStream_t stream) {
  return multiply_generic(weights, partition, x, tokens, partials, 0, stream);
}

}  // namespace glyd::cuda
