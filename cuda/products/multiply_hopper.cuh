#pragma once
// The product kernel for sm_90a. One body for packed and plain weights, and for both tensor core instructions, since on
// this chip mma.sync and wgmma accumulate to the same bits as long as the k16 steps come in the same order. Packed
// weights times 65 to 112 tokens have a kernel of their own, multiply_wide.cu.
//
// What binds it, up to 16 columns, is nearly the memory: of a layer's largest matrix the chip reads 92 % of its read
// bandwidth, while its shared memory is busy 60 to 70 % of the clocks (table 8 wavefronts for 512 weights, windows 7,
// activations 4 for 8 columns, weights 4), the integer pipe 60 %, the issue slots 58 %. Under load without a pause
// there is a harder bound: at 700 W the clock falls from 1980 to 1450 MHz, and what counts is energy a weight, of which
// five sixths are spent on moving it. docs/kernels.md has the budget, and what was tried.
//
// - One thread block a multiprocessor, for the whole launch, with a run of blocks of 64 rows x 256 columns, in steps of
//   up to 5 of them side by side.
// - A producer warp fetches, for each step, the blocks of exponent streams and the step's activations by bulk copies
//   into a ring of stages (full and empty barriers). The weights' copies start before the previous kernel has ended.
// - Each warp group of 4 warps owns 64 rows, a warp 16. Sign+mantissa bytes (or plain weights) are under way for up to
//   8 groups of 32 columns, in registers or in shared memory (weights.cuh says why one or the other).
// - The table is copied 32 times, a copy a bank.
// - Up to 16 columns mma.sync is best; from 32 on wgmma, whose activations are read once for 64 rows.
// - With more than 64 columns the accumulators do not fit for all warps: then a block goes through its run in several
//   passes, each with some of the row groups. The order of a row's additions stays the same.
//
// CPU reference: src/runner/cpu/matmul.h (in another order of additions).

#include <cstdint>
#include <type_traits>

#include "cuda/common/launch.h"
#include "cuda/products/block_product.cuh"
#include "cuda/products/products.h"
#include "cuda/products/weight_stream.cuh"

namespace glyd::cuda {

// Row groups of a pass at most, each 4 warps: as many as the registers of the accumulators leave room for.
template <int kColumns>
inline constexpr int kMaxPassGroups = kColumns <= 64 ? 5 : 3;
static_assert(kMaxPassGroups<8> <= kMostPassGroups);

// What suits an instance, as measured (bench/results/products.md).
template <class Matrix, int kColumns>
struct Tuning {
  static constexpr bool kPacked = Source<Matrix>::kPacked;
  using Walk = typename Source<Matrix>::Walk;
  // Where wgmma takes the registers, packed weights wait in shared memory, which costs it time that mma.sync has not
  // left. At 128 columns there is no room beside two stages; registers of 8 groups then, for with so few warps what is
  // under way decides: two groups a warp are less than a microsecond's worth of memory.
  static constexpr bool kSharedQueue = kPacked && kColumns >= 32 && kColumns <= 64;
  static constexpr int kAhead = kPacked ? (kColumns <= 16 || kColumns == 128 ? 8 : 4) : kColumns <= 16 ? 4 : 2;
  using Queue = std::conditional_t<kSharedQueue, SharedQueue<Walk, kAhead>,
                                   RegisterQueue<Walk, kAhead, !kPacked && (kColumns > 16)>>;
  // Groups' fragments that a warp has beside each other at wgmma, which takes half of them at a time.
  static constexpr int kFragments = !kPacked || kColumns == 64 ? 2 : 4;
};

template <class Matrix>
struct MultiplyArguments : StreamArguments<Matrix> {
  float* partials;
  int tokens;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// The Sink of a product: sums of a warp's 16 rows, stored where a row of the run ends.
template <class Matrix, int kColumns, bool kWarpGroup>
class Sums : public BlockProduct<kColumns, kWarpGroup, Tuning<Matrix, kColumns>::kFragments> {
 public:
  using Product = BlockProduct<kColumns, kWarpGroup, Tuning<Matrix, kColumns>::kFragments>;

  __device__ __forceinline__ Sums(const MultiplyArguments<Matrix>& args, int run, int place, int warp, int lane)
      : Product(lane, lane < args.tokens * 4), args_(args), run_(run), place_(place), warp_(warp), lane_(lane) {}
  __device__ __forceinline__ void open(std::uint32_t x, int, int) { Product::open(x); }
  __device__ __forceinline__ void end_row(int step_row) {
    store_partials(args_.partition, run_, args_.partials, args_.tokens, step_row, place_, warp_, lane_, this->acc);
    this->restart();
  }

 private:
  const MultiplyArguments<Matrix>& args_;
  int run_, place_, warp_, lane_;
};

#endif

// Which run a thread block takes: of those that are left the first, or on side 1 of the cache the last (the other way
// round in a part of a matrix whose first row group is an odd one). So each side reads the row groups that are near to
// it, but for a few runs where it has more multiprocessors than the other. No run is taken twice, whatever the sides
// are. The last one to take clears the count for the next launch, which begins once all thread blocks of this one have
// let it.
__device__ __forceinline__ std::uint32_t claim_run(const ResidentMatrix& m, std::uint32_t runs) {
  const std::uint32_t processor = processor_number();
  const std::uint32_t side = m.places.sides[processor / 32 % (kMaxProcessors / 32)] >> processor % 32;
  const bool last_first = ((side ^ m.first_group) & 1) != 0;
  const std::uint32_t taken = atomicAdd(m.claims, last_first ? 0x10000 : 1);
  const std::uint32_t first = taken & 0xFFFF, last = taken >> 16;
  if (first + last + 1 == runs) {
    atomicExch(m.claims, 0);
    __threadfence();
  }
  return last_first ? runs - 1 - last : first;
}

// The thread block's run. `claimed`: a word of shared memory for it.
__device__ __forceinline__ int take_run(const ResidentMatrix& m, std::uint32_t runs, std::uint32_t claimed) {
  int run = blockIdx.x;
  if (m.claims != nullptr) {
    if (threadIdx.x == 0) store_shared(claimed, claim_run(m, runs));
    __syncthreads();
    run = static_cast<int>(load_shared(claimed));
  }
  return __shfl_sync(0xFFFFFFFF, run, 0);  // tells the compiler that it is the same for all
}

// The producer's warp group has three warps that end at once. They are there because registers change hands between
// warp groups only: all start with an equal share, the producers give most of theirs away.
constexpr int starting_registers(int warp_groups) { return 65536 / (warp_groups * 128) / 8 * 8; }
template <int kColumns>
inline constexpr int kProducerRegisters = kColumns == 128 ? 32 : 40;
template <int kColumns>
inline constexpr int kConsumerRegisters =
    (starting_registers(kMaxPassGroups<kColumns> + 1) * (kMaxPassGroups<kColumns> + 1) - kProducerRegisters<kColumns>) /
    kMaxPassGroups<kColumns> / 8 * 8;
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <class Matrix, int kColumns, bool kWarpGroup>
__global__ void __launch_bounds__((kMaxPassGroups<kColumns> + 1) * 128, 1)
    multiply_kernel(const __grid_constant__ MultiplyArguments<Matrix> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const int consumers = args.pass_groups * 4;
  const std::uint32_t bars = shared_address(shared_memory) + (Source<Matrix>::kPacked ? kTableBytes : 0);
  const std::uint32_t full = bars, empty = full + 8 * kMaxStages;
  const std::uint32_t ring = bars + kBarrierBytes + consumers * Tuning<Matrix, kColumns>::Queue::kBytes;
  int run = blockIdx.x;
  if constexpr (Source<Matrix>::kPacked) run = take_run(args.weights, args.partition.ctas, bars + 16 * kMaxStages);
  const int begin = args.partition.first[run];
  const int end = args.partition.end(run);
  if (begin == end) return;
  if (warp >= consumers) {
    give_registers<kProducerRegisters<kColumns>>();
    if (warp > consumers) return;
    produce<Matrix, kColumns>(args, run, ring, full, empty, begin, end, lane);
  } else {
    take_registers<kConsumerRegisters<kColumns>>();
    consume<kColumns, typename Tuning<Matrix, kColumns>::Queue, Sums<Matrix, kColumns, kWarpGroup>>(
        args, run, bars + kBarrierBytes, ring, full, begin, end, warp, lane);
  }
#else
  __trap();  // choose_kernels() takes these kernels for sm_90a alone
#endif
}

// Sizes and launches one instance.
template <class Matrix, int kColumns, bool kWarpGroup>
cudaError_t launch_multiply(const Matrix& weights, const Partition& partition, const Activations& x, int tokens,
                            float* partials, std::uint32_t slot_bytes, cudaStream_t stream) {
  constexpr std::uint32_t kFixed = (Source<Matrix>::kPacked ? kTableBytes : 0) + kBarrierBytes;
  constexpr std::uint32_t kQueue = 4 * Tuning<Matrix, kColumns>::Queue::kBytes, kX = codec::kBlockCols * kColumns * 2;
  static_assert(plan_stages(1, 1, kFixed, kQueue, kLargestSlotBytes, kX).stages >= 2);
  const StagePlan plan = plan_stages(partition.height, kMaxPassGroups<kColumns>, kFixed, kQueue, slot_bytes, kX);
  if (plan.stages == 0) return cudaErrorInvalidConfiguration;
  const auto kernel = multiply_kernel<Matrix, kColumns, kWarpGroup>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
      error != cudaSuccess)
    return error;
  const MultiplyArguments<Matrix> args{
      {weights, partition, reinterpret_cast<const std::uint8_t*>(x.data), static_cast<int>(slot_bytes),
       plan.pass_groups * static_cast<int>(slot_bytes), plan.stages, plan.pass_groups},
      partials,
      tokens};
  return launch(kernel, dim3(partition.ctas), dim3((plan.pass_groups + 1) * 128), plan.bytes, stream, args);
}

// Numbers of columns that packed weights have multiply_wide.cu for.
constexpr bool is_wide(int columns) { return columns == 96 || columns == 112; }

template <class Matrix>
cudaError_t multiply_hopper(const Matrix& weights, const Partition& partition, const Activations& x, int tokens,
                            float* partials, std::uint32_t slot_bytes, cudaStream_t stream) {
  if ((x.layout == Layout::Wgmma) != (x.columns > 16)) return cudaErrorInvalidValue;
  const auto run = [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    if constexpr (Source<Matrix>::kPacked && is_wide(kColumns)) {
      return cudaErrorInvalidValue;
    } else {
      return launch_multiply<Matrix, kColumns, (kColumns > 16)>(weights, partition, x, tokens, partials, slot_bytes,
                                                                stream);
    }
  };
  switch (x.columns) {
    case 8:
      return run(std::integral_constant<int, 8>{});
    case 16:
      return run(std::integral_constant<int, 16>{});
    case 32:
      return run(std::integral_constant<int, 32>{});
    case 48:
      return run(std::integral_constant<int, 48>{});
    case 64:
      return run(std::integral_constant<int, 64>{});
    case 96:
      return run(std::integral_constant<int, 96>{});
    case 112:
      return run(std::integral_constant<int, 112>{});
    case 128:
      return run(std::integral_constant<int, 128>{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace glyd::cuda
