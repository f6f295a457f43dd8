#pragma once
// The product kernel for sm_90a. One body for packed and plain weights, and for both tensor core instructions, since on
// this chip mma.sync and wgmma accumulate to the same bits as long as the k16 steps come in the same order.
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
// - With 128 columns the accumulators do not fit for all warps: then a block goes through its run in several passes,
//   each with some of the row groups. The order of a row's additions stays the same.
//
// CPU reference: src/runner/cpu/matmul.h (in another order of additions).

#include <cstdint>
#include <type_traits>

#include "cuda/common/launch.h"
#include "cuda/products/block_product.cuh"
#include "cuda/products/products.h"
#include "cuda/products/weights.cuh"

namespace glyd::cuda {

template <class Matrix>
struct MultiplyArguments {
  Matrix weights;
  Partition partition;
  const std::uint8_t* x;
  float* partials;
  int tokens;
  int slot_bytes;  // of a block of streams in a stage; 0: plain weights
  int x_at;        // where a stage has its activations: behind its blocks
  int stages;
  int pass_groups;  // row groups of a pass
};

// Row groups of a pass at most, each 4 warps: as many as the registers of the accumulators leave room for.
template <int kColumns>
inline constexpr int kMaxPassGroups = kColumns <= 64 ? 5 : 3;

inline constexpr int kMaxStages = 4;
inline constexpr std::uint32_t kShared = 227 * 1024;

// What suits an instance, as measured (bench/results/products.md).
template <class Matrix, int kColumns>
struct Tuning {
  static constexpr bool kPacked = Source<Matrix>::kPacked;
  using Walk = typename Source<Matrix>::Walk;
  // Where wgmma takes the registers, packed weights wait in shared memory, which costs it time that mma.sync has not
  // left. At 128 columns there is no room beside two stages; registers of 8 groups then, for with so few warps what is
  // under way decides: two groups a warp are less than a microsecond's worth of memory.
  static constexpr bool kSharedQueue = kPacked && (kColumns == 32 || kColumns == 64);
  static constexpr int kAhead = kPacked ? (kColumns <= 16 || kColumns == 128 ? 8 : 4) : kColumns <= 16 ? 4 : 2;
  using Queue = std::conditional_t<kSharedQueue, SharedQueue<Walk, kAhead>, RegisterQueue<Walk, kAhead, !kPacked && (kColumns > 16)>>;
  // Groups' fragments that a warp has beside each other at wgmma: each lets it be a group further ahead of its slowest
  // neighbour.
  static constexpr int kFragments = !kPacked || kColumns == 64 ? 2 : 4;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// A step of a thread block's run, and where it is. The first one is looked up, the others follow from it.
struct Step {
  int index, row, block;

  __device__ __forceinline__ void move(int steps, int blocks) {
    index += steps;
    block += steps;
    for (; block >= blocks; block -= blocks) ++row;
  }
};
__device__ __forceinline__ Step first_step(const Partition& p, int run) {
  const int index = p.first[run], row = p.row[run];
  return {index, row, index - row * p.col_blocks()};
}

// Where a step's blocks of streams lie, in 16 bytes: of the step row's row group `place` in the pass.
struct StreamRange {
  std::uint32_t begin = 0, end = 0;
  __device__ __forceinline__ std::uint32_t bytes() const { return (end - begin) * 16; }
};
template <class Matrix>
__device__ __forceinline__ StreamRange find_streams(const MultiplyArguments<Matrix>& args, int run, int pass,
                                                    const Step& step, int place) {
  StreamRange range;
  if constexpr (Source<Matrix>::kPacked) {
    const Partition& p = args.partition;
    const int place_in_row = pass * args.pass_groups + place;
    if (place < args.pass_groups && step.index >= p.begin_at(run, place_in_row) &&
        step.index < p.end_at(run, place_in_row)) {
      const std::uint32_t* offset = args.weights.block_offsets +
                                    static_cast<std::int64_t>(p.row_group(step.row, place_in_row)) * p.col_blocks() +
                                    step.block;
      range.begin = offset[0];
      range.end = offset[1];
    }
  }
  return range;
}

template <class Matrix, int kColumns>
__device__ void produce(const MultiplyArguments<Matrix>& args, int run, std::uint32_t ring, std::uint32_t full,
                        std::uint32_t empty, int begin, int end, int lane) {
  const Partition& p = args.partition;
  const int blocks = p.col_blocks();
  const int groups = static_cast<int>((p.cols + codec::kGroupCols - 1) / codec::kGroupCols);
  constexpr std::uint32_t kGroupX = codec::kGroupCols * kColumns * 2;
  const std::uint32_t stage_bytes = args.x_at + codec::kBlockGroups * kGroupX;
  const int passes = (p.height + args.pass_groups - 1) / args.pass_groups;
  const auto x_bytes = [&](int block) {
    return min(groups - block * static_cast<int>(codec::kBlockGroups), static_cast<int>(codec::kBlockGroups)) * kGroupX;
  };
  const auto copy_streams = [&](int stage, int place, const StreamRange& range) {
    if constexpr (Source<Matrix>::kPacked) {
      if (range.begin != range.end)
        bulk_copy(ring + stage * stage_bytes + place * args.slot_bytes,
                  args.weights.streams + static_cast<std::int64_t>(range.begin) * 16, range.bytes(), full + 8 * stage,
                  read_once());
    }
  };
  const auto copy_x = [&](int stage, int block) {
    bulk_copy(ring + stage * stage_bytes + args.x_at,
              args.x + static_cast<std::size_t>(block) * (codec::kBlockGroups * kGroupX), x_bytes(block),
              full + 8 * stage, used_again());
  };

  // The first stages' weights, looked up all at once by a quarter of the warp a stage, are on their way before the
  // previous kernel has ended; then come the activations.
  static_assert(kMaxStages <= 4 && kMaxPassGroups<kColumns> <= 8);
  const int ahead = min(args.stages, end - begin);
  {
    const int stage = lane >> 3, place = lane & 7;
    Step step = first_step(p, run);
    step.move(stage, blocks);
    const int block = step.block;
    StreamRange range;
    if (stage < ahead) range = find_streams(args, run, 0, step, place);  // a trip to memory, so before all else
    if (lane < args.stages) {
      barrier_init(full + 8 * lane, 1);
      barrier_init(empty + 8 * lane, args.pass_groups * 128);
    }
    barrier_init_done();
    __syncwarp();
    asm volatile("bar.arrive 1, %0;" ::"r"(args.pass_groups * 128 + 32) : "memory");
    std::uint32_t bytes = range.bytes();
#pragma unroll
    for (int i = 1; i < 8; i *= 2) bytes += __shfl_xor_sync(0xFFFFFFFF, bytes, i);
    const bool leads = stage < ahead && place == 0;
    if (leads) barrier_expect(full + 8 * stage, bytes + x_bytes(block));
    __syncwarp();
    copy_streams(stage, place, range);
    let_next_start();
    wait_for_previous();
    if (leads) copy_x(stage, block);
    __syncwarp();
  }

  int stage = ahead < args.stages ? ahead : 0, turn = ahead < args.stages ? 0 : 1;
  for (int pass = 0; pass < passes; ++pass) {
    Step step = first_step(p, run);
    if (pass == 0) step.move(ahead, blocks);
    StreamRange range;
    if (step.index < end) range = find_streams(args, run, pass, step, lane);
    while (step.index < end) {
      const int block = step.block;
      step.move(1, blocks);
      StreamRange next;
      if (step.index < end) next = find_streams(args, run, pass, step, lane);
      const std::uint32_t bytes = __reduce_add_sync(0xFFFFFFFF, range.bytes());
      if (turn > 0) barrier_wait(empty + 8 * stage, (turn - 1) & 1);
      if (lane == 0) barrier_expect(full + 8 * stage, bytes + x_bytes(block));
      __syncwarp();
      copy_streams(stage, lane, range);
      if (lane == 0) copy_x(stage, block);
      range = next;
      if (++stage == args.stages) {
        stage = 0;
        ++turn;
      }
    }
  }
}

template <class Matrix, int kColumns, bool kWarpGroup>
__device__ void consume(const MultiplyArguments<Matrix>& args, int run, std::uint32_t queues, std::uint32_t ring,
                        std::uint32_t full, int begin, int end, int warp, int lane) {
  using Tuned = Tuning<Matrix, kColumns>;
  using Walk = typename Tuned::Walk;
  using Queue = typename Tuned::Queue;
  const Partition& p = args.partition;
  const int blocks = p.col_blocks();
  const int groups = static_cast<int>((p.cols + codec::kGroupCols - 1) / codec::kGroupCols);
  constexpr std::uint32_t kGroupX = codec::kGroupCols * kColumns * 2;
  constexpr int kGroups = codec::kBlockGroups;
  // Not as a sum with x_at, for which the compiler spills at 32 columns.
  const std::uint32_t stage_bytes = args.pass_groups * args.slot_bytes + codec::kBlockGroups * kGroupX;
  const int passes = (p.height + args.pass_groups - 1) / args.pass_groups;
  const std::uint32_t one = opaque_one();
  // The stage to come: where it lies, its full barrier, and the parity of its turn.
  std::uint32_t at = ring, filled = full, parity = 0;

  // The first weights are asked for before all else that a warp has to do; the table is there when they have come.
  Queue queue;
  if constexpr (Queue::kBytes != 0) queue.at = queues + warp * Queue::kBytes + lane * 16;
  std::uint32_t entry = 0;
  if constexpr (Source<Matrix>::kPacked) entry = first_table_entry(args.weights.table, warp, lane);
  const auto walk_from = [&](int place) {
    Step step = first_step(p, run);
    step.move(p.begin_at(run, place) - step.index, blocks);
    return Walk(args.weights, p, step.row, place, step.block, warp, lane);
  };
  if (p.begin_at(run, warp >> 2) < p.end_at(run, warp >> 2)) queue.fill(walk_from(warp >> 2));
  if constexpr (Source<Matrix>::kPacked) fill_table(args.weights.table, entry, warp, args.pass_groups * 4, lane);
  asm volatile("bar.sync 1, %0;" ::"r"(args.pass_groups * 128 + 32) : "memory");

  const auto next_stage = [&] {
    at += stage_bytes;
    filled += 8;
    if (filled == full + 8 * args.stages) {
      at = ring;
      filled = full;
      parity ^= 1;
    }
  };
  const auto pass_by = [&](int steps) {
#pragma unroll 1
    for (; steps > 0; --steps) {
      barrier_wait(filled, parity);
      barrier_arrive(filled + 8 * kMaxStages);
      next_stage();
    }
  };

  for (int pass = 0; pass < passes; ++pass) {
    const int place = pass * args.pass_groups + (warp >> 2);  // of the row group in the step
    // In the first step, in the last one, and from some row on there may be no row group for these warps.
    const int from = p.begin_at(run, place), to = p.end_at(run, place);
    if (from >= to) {
      pass_by(end - begin);
      continue;
    }
    Walk walk = walk_from(place);
    if (pass > 0) queue.fill(walk);
    float acc[kColumns / 8][4];
#pragma unroll
    for (auto& column : acc) column[0] = column[1] = column[2] = column[3] = 0;
    using Product = BlockProduct<kColumns, kWarpGroup, Tuned::kFragments>;
    Product product(acc, lane, lane < args.tokens * 4);
    Fragments fragments[Product::kFragments];
    typename Source<Matrix>::Unit unit;

    pass_by(from - begin);
    int u = from;
#pragma unroll 1
    while (u < to) {
      // The whole blocks of a row, whose products overlap, and the short one at its end. Nothing else in the loop of the
      // whole ones: ptxas would serialize all products.
      const int step_row = walk.step_row();
      const int row_end = min(to, u + blocks - walk.block());
      const bool short_end = row_end == u + blocks - walk.block() && groups % kGroups != 0;
      const int whole_end = row_end - (short_end ? 1 : 0);
#pragma unroll 1
      for (; u < whole_end; ++u) {
        barrier_wait(filled, parity);
        unit.open(at + (warp >> 2) * args.slot_bytes, warp, lane);
        product.open(at + args.x_at);
        run_block(unit, walk, queue, u + 1 < to, lane, one, product, fragments);
        reads_before_copies();
        product.close(filled + 8 * kMaxStages);
        next_stage();
      }
      product.finish();
      if (short_end) {
        barrier_wait(filled, parity);
        unit.open(at + (warp >> 2) * args.slot_bytes, warp, lane);
        product.open(at + args.x_at);
        run_short_block(unit, walk, queue, groups % kGroups, u + 1 < to, lane, one, product);
        reads_before_copies();
        product.close(filled + 8 * kMaxStages);
        product.finish();
        next_stage();
        ++u;
      }
      store_partials(p, run, args.partials, args.tokens, step_row, place, warp, lane, acc);
      product.restart();
    }
    pass_by(end - to);
  }
}

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
  const std::uint32_t ring = bars + 128 + consumers * Tuning<Matrix, kColumns>::Queue::kBytes;
  int run = blockIdx.x;
  if constexpr (Source<Matrix>::kPacked) {
    if (args.weights.claims != nullptr) {
      const std::uint32_t claimed = bars + 16 * kMaxStages;
      if (threadIdx.x == 0) store_shared(claimed, claim_run(args.weights, args.partition.ctas));
      __syncthreads();
      run = static_cast<int>(load_shared(claimed));
    }
    run = __shfl_sync(0xFFFFFFFF, run, 0);  // tells the compiler that it is the same for all
  }
  const int begin = args.partition.first[run];
  const int end = args.partition.end(run);
  if (begin == end) return;
  if (warp >= consumers) {
    give_registers<kProducerRegisters<kColumns>>();
    if (warp > consumers) return;
    produce<Matrix, kColumns>(args, run, ring, full, empty, begin, end, lane);
  } else {
    take_registers<kConsumerRegisters<kColumns>>();
    consume<Matrix, kColumns, kWarpGroup>(args, run, bars + 128, ring, full, begin, end, warp, lane);
  }
#else
  __trap();  // choose_kernels() takes these kernels for sm_90a alone
#endif
}

// Sizes and launches one instance.
template <class Matrix, int kColumns, bool kWarpGroup>
cudaError_t launch_multiply(const Matrix& weights, const Partition& partition, const Activations& x, int tokens,
                            float* partials, std::uint32_t slot_bytes, cudaStream_t stream) {
  constexpr std::uint32_t kX = codec::kBlockCols * kColumns * 2;
  std::uint32_t fixed = 0;
  const int most = kMaxPassGroups<kColumns>;
  int passes = (partition.height + most - 1) / most, groups = 0, stages = 0;
  for (;; ++passes) {
    groups = (partition.height + passes - 1) / passes;
    fixed = (Source<Matrix>::kPacked ? kTableBytes : 0) + 128 + groups * 4 * Tuning<Matrix, kColumns>::Queue::kBytes;
    stages = static_cast<int>((kShared - fixed) / (groups * slot_bytes + kX));
    if (stages >= 2 || groups == 1) break;
  }
  if (stages < 2) return cudaErrorInvalidConfiguration;  // a larger block than largest_block_bytes()
  if (stages > kMaxStages) stages = kMaxStages;
  const std::size_t shared = fixed + static_cast<std::size_t>(stages) * (groups * slot_bytes + kX);
  const auto kernel = multiply_kernel<Matrix, kColumns, kWarpGroup>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
      error != cudaSuccess)
    return error;
  const MultiplyArguments<Matrix> args{weights,
                                       partition,
                                       reinterpret_cast<const std::uint8_t*>(x.data),
                                       partials,
                                       tokens,
                                       static_cast<int>(slot_bytes),
                                       groups * static_cast<int>(slot_bytes),
                                       stages,
                                       groups};
  return launch(kernel, dim3(partition.ctas), dim3((groups + 1) * 128), shared, stream, args);
}

template <class Matrix>
cudaError_t multiply_hopper(const Matrix& weights, const Partition& partition, const Activations& x, int tokens,
                            float* partials, std::uint32_t slot_bytes, cudaStream_t stream) {
  if ((x.layout == Layout::Wgmma) != (x.columns > 16)) return cudaErrorInvalidValue;
  const auto run = [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    return launch_multiply<Matrix, kColumns, (kColumns > 16)>(weights, partition, x, tokens, partials, slot_bytes,
                                                              stream);
  };
  switch (x.columns) {
    case 8:
      return run(std::integral_constant<int, 8>{});
    case 16:
      return run(std::integral_constant<int, 16>{});
    case 32:
      return run(std::integral_constant<int, 32>{});
    case 64:
      return run(std::integral_constant<int, 64>{});
    case 128:
      return run(std::integral_constant<int, 128>{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace glyd::cuda
