// Packed weights times 65 to 112 activations, sm_90a.
//
// What binds it is registers. Five row groups' sums in 96 columns are 30,720 of the 65,536, and decoding takes 40 of a
// thread beside its sums: all fits if there are no other warps than the twenty that decode, with 96 registers each. So
// these fetch what they read themselves (wide_stages.cuh), and a warp has the fragments of one group only: it waits for
// its wgmma while the other four of its quarter of the multiprocessor decode. The waiting costs: with 64 columns, where
// a producer warp and a second fragment find room, the kernel of multiply_hopper.cuh is 5 % faster than this one; with
// 96, where that one has room for 3 row groups, this one takes three quarters of its time, and in 112 four fifths. With
// 128 columns some registers are missing. docs/kernels.md has the numbers.
//
// The order of a row's additions is that of multiply_hopper.cuh: the same partition, k16 steps from left to right.

#include <cstdint>

#include "cuda/common/launch.h"
#include "cuda/products/multiply_hopper.cuh"
#include "cuda/products/wide_stages.cuh"

namespace glyd::cuda {

namespace {

constexpr int kWideGroups = 5;  // warp groups of a thread block at most
using WideQueue = SharedQueue<PackedWalk, 4>;
constexpr std::uint32_t kWideQueue = 4 * WideQueue::kBytes;  // of a warp group

// Shared memory: the table, barriers, a block's activations, queues, stages.
constexpr std::uint32_t kClaimedAt = kPieceBarriers + kWideGroups * kStreamBarriers;
constexpr std::uint32_t kWideBarriers = (kClaimedAt + 4 + 127) / 128 * 128;
constexpr std::uint32_t fixed_bytes(int columns) {
  return kTableBytes + kWideBarriers + kPieces * piece_bytes(columns);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// Sums of a warp's 16 rows.
template <int kColumns>
class WideProduct {
 public:
  float acc[kColumns / 8][4] = {};

  __device__ __forceinline__ WideProduct(Pieces<kColumns>& x, OwnStreams& streams, int lane)
      : x_(x), streams_(streams), lane_(lane) {}

  // Before group g is decoded.
  __device__ __forceinline__ void prepare(int g) {
    if (g % kPieceGroups == 0) ready_ = x_.ready(g / kPieceGroups);
  }
  // The group's fragments are free when it comes back. On the way, while they are multiplied, copies are asked for.
  __device__ __forceinline__ void run(int g, const Fragments& a, bool refills) {
    const int piece = g / kPieceGroups;
    if (g % kPieceGroups == 0 && !ready_) x_.wait(piece);
    const std::uint32_t b = wgmma_descriptor_low<kColumns>(x_.at) + g * (group_bytes(kColumns) / 16);
    wgmma_fence();
    Wgmma<kColumns>::step(acc, a[0], wgmma_descriptor(b), g == 0 ? fresh_ : 1);
    Wgmma<kColumns>::step(acc, a[1], wgmma_descriptor(b + 32 * kColumns / 16), 1);
    wgmma_commit();
    fresh_ = 1;
    const bool ends = g % kPieceGroups == kPieceGroups - 1;
    if (ends) x_.refill(piece);
    if (ends && piece == 1 && refills) streams_.refill();
    wgmma_wait<0>();
    if (ends) x_.give_back(piece);
  }
  // A short block's groups by mma.sync, which adds to the same bits; then end_short().
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) {
    if (g % kPieceGroups == 0) x_.wait(g / kPieceGroups);
    multiply_group<kColumns>(acc, a, x_.at + g * group_bytes(kColumns), lane_);
    fresh_ = 1;
    if (g % kPieceGroups == kPieceGroups - 1) end_piece(g / kPieceGroups);
  }
  __device__ __forceinline__ void end_short(int groups) {
#pragma unroll 1
    for (int piece = groups / kPieceGroups; piece < kPieces; ++piece) {
      if (piece * kPieceGroups >= groups) x_.wait(piece);
      end_piece(piece);
    }
  }
  // The sums begin at zero again.
  __device__ __forceinline__ void restart() { fresh_ = 0; }

 private:
  __device__ __forceinline__ void end_piece(int piece) {
    x_.refill(piece);
    reads_before_copies();
    x_.give_back(piece);
  }

  Pieces<kColumns>& x_;
  OwnStreams& streams_;
  int lane_;
  int fresh_ = 0;
  bool ready_ = false;
};

#endif

template <int kColumns>
__global__ void __launch_bounds__(kWideGroups * 128, 1)
    multiply_wide_kernel(const __grid_constant__ MultiplyArguments<ResidentMatrix> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kGroups = codec::kBlockGroups;
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, warp_group = warp >> 2;
  const Partition& p = args.partition;
  const std::uint32_t barriers = shared_address(shared_memory) + kTableBytes, x_at = barriers + kWideBarriers;
  const int run = take_run(args.weights, p.ctas, barriers + kClaimedAt);
  const Step first = first_step(p, run);
  const int begin = first.index, end = p.end(run);
  if (begin == end) return;
  const int blocks = p.col_blocks();
  const int groups = static_cast<int>((p.cols + codec::kGroupCols - 1) / codec::kGroupCols);
  const int passes = (p.height + args.pass_groups - 1) / args.pass_groups;

  const std::uint32_t queues = x_at + kPieces * piece_bytes(kColumns), rings = queues + args.pass_groups * kWideQueue;
  std::uint32_t fetches = 0;
  for (int piece = 0; piece < kPieces; ++piece)
    if (warp == piece % args.pass_groups * 4 + 2) fetches |= 1u << piece;
  Pieces<kColumns> x{args, x_at, barriers, fetches, lane, {begin, end, passes, first.block, 0, begin, first.block}};
  OwnStreams streams(args, rings + warp_group * args.stages * args.slot_bytes,
                     barriers + kPieceBarriers + warp_group * kStreamBarriers, (warp & 3) == 1, lane);
  const auto walk_from = [&](int place) {
    Step step = first;
    step.move(p.begin_at(run, place) - begin, blocks);
    return PackedWalk(args.weights, p, step.row, place, step.block, warp, lane);
  };

  WideQueue queue;
  queue.at = queues + warp * WideQueue::kBytes + lane * 16;
  const std::uint32_t entry = first_table_entry(args.weights.table, warp, lane);
  if (p.begin_at(run, warp_group) < p.end_at(run, warp_group)) queue.fill(walk_from(warp_group));
  if (threadIdx.x == 0) x.init(args.pass_groups * 128);
  if (threadIdx.x % 128 == 0) {
    streams.init();
    barrier_init_done();
  }
  fill_table(args.weights.table, entry, warp, args.pass_groups * 4, lane);
  __syncthreads();

  for (int pass = 0; pass < passes; ++pass) {
    const int place = pass * args.pass_groups + warp_group;
    // In the first step, in the last one, and from some row on there may be no row group for these warps.
    const int from = p.begin_at(run, place), to = p.end_at(run, place);
    const bool works = from < to;
    PackedWalk walk = walk_from(works ? place : 0);
    if (works) streams.begin_pass(place, walk.step_row(), walk.block(), to - from);
    if (pass == 0) {
      let_next_start();
      wait_for_previous();
      x.fill();
    }
    if (!works) {
      x.pass_by(pass, begin, end);
      continue;
    }
    if (pass > 0) queue.fill(walk);
    WideProduct<kColumns> product(x, streams, lane);
    Fragments fragments;
    PackedUnit unit;

    x.pass_by(pass, begin, from);
    int u = from;
#pragma unroll 1
    while (u < to) {
      // The whole blocks of a row, and the short one at its end. Nothing else in the loop of the whole ones: ptxas
      // would serialize all products.
      const int step_row = walk.step_row();
      const RestOfRow rest(u, to, walk.block(), blocks, groups);
      const auto open = [&] {
        streams.wait();
        unit.open(streams.at, warp, lane);
        x.now.move(pass, u, walk.block());
      };
#pragma unroll 1
      for (; u < rest.whole_end; ++u) {
        open();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          product.prepare(g);
          // With a 1 that the compiler knows moves go to the integer pipe, which has room here, and need no register.
          unit.fragments(queue.take(g), StreamPair::limit(g), lane, lane * 4, 1, fragments);
          if (g == WideQueue::kStepsAt) walk.step();
          queue.ask(g, walk, u + 1 < to);
          product.run(g, fragments, u > from);
        }
        reads_before_copies();
        streams.next();
        x.end_step();
      }
      if (rest.short_end) {
        open();
        run_short_block(unit, walk, queue, groups % kGroups, u + 1 < to, lane, 1, product);
        product.end_short(groups % kGroups);
        if (u > from) streams.refill();
        reads_before_copies();
        streams.next();
        x.end_step();
        ++u;
      }
      store_partials(p, run, args.partials, args.tokens, step_row, place, warp, lane, product.acc);
      product.restart();
    }
    x.pass_by(pass, to, end);
  }
#else
  __trap();  // choose_kernels() takes these kernels for sm_90a alone
#endif
}

// Sizes and launches one instance.
template <int kColumns>
cudaError_t launch_wide(const ResidentMatrix& weights, const Partition& partition, const Activations& x, int tokens,
                        float* partials, cudaStream_t stream) {
  const std::uint32_t slot = weights.slot_bytes();
  constexpr std::uint32_t kFixed = fixed_bytes(kColumns);
  static_assert(plan_stages(1, 1, kFixed, kWideQueue, kLargestSlotBytes, 0).stages >= 2);
  const StagePlan plan = plan_stages(partition.height, kWideGroups, kFixed, kWideQueue, slot, 0);
  if (plan.stages == 0) return cudaErrorInvalidConfiguration;
  const auto kernel = multiply_wide_kernel<kColumns>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
      error != cudaSuccess)
    return error;
  const MultiplyArguments<ResidentMatrix> args{{weights, partition, reinterpret_cast<const std::uint8_t*>(x.data),
                                                static_cast<int>(slot), 0, plan.stages, plan.pass_groups},
                                               partials,
                                               tokens};
  return launch(kernel, dim3(partition.ctas), dim3(plan.pass_groups * 128), plan.bytes, stream, args);
}

}  // namespace

cudaError_t multiply_packed_wide(const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                                 int tokens, float* partials, cudaStream_t stream) {
  if (x.layout != Layout::Wgmma) return cudaErrorInvalidValue;
  if (x.columns == 96) return launch_wide<96>(weights, partition, x, tokens, partials, stream);
  if (x.columns == 112) return launch_wide<112>(weights, partition, x, tokens, partials, stream);
  return cudaErrorInvalidValue;
}

}  // namespace glyd::cuda
