#pragma once
// How a thread block reads its run of weights on sm_90a, whatever is done with them: a producer warp and a ring of
// stages for what comes by bulk copies, the walk of the other warps along their rows, a group's fragments after the
// other.

#include <cstdint>

#include "cuda/common/launch.h"
#include "cuda/products/products.h"
#include "cuda/products/weights.cuh"

namespace glyd::cuda {

template <class Matrix>
struct StreamArguments {
  using Weights = Matrix;

  Matrix weights;
  Partition partition;
  const std::uint8_t* x;  // activations, an image of some columns; null: none
  int slot_bytes;         // of a block of streams in a stage; 0: plain weights
  int x_at;               // where a stage has its activations: behind its blocks
  int stages;
  int pass_groups;  // row groups of a pass
};

inline constexpr int kMaxStages = 4;
inline constexpr int kMostPassGroups = 8;
inline constexpr std::uint32_t kShared = 227 * 1024;
inline constexpr std::uint32_t kBarrierBytes = 128;  // full and empty ones, and the run that was taken

// How shared memory is shared out: the row groups of a pass and the stages, two at least. stages 0: a block is larger
// than largest_block_bytes() allows.
struct StagePlan {
  int pass_groups = 0, stages = 0;
  std::uint32_t bytes = 0;  // of shared memory
};
// `fixed`: bytes besides the stages, `queue`: of a row group's queues, `slot`: of a block of streams, `x`: of a block's
// activations.
constexpr StagePlan plan_stages(int height, int most_groups, std::uint32_t fixed, std::uint32_t queue,
                                std::uint32_t slot, std::uint32_t x) {
  StagePlan plan;
  for (int passes = (height + most_groups - 1) / most_groups;; ++passes) {
    plan.pass_groups = (height + passes - 1) / passes;
    const std::uint32_t groups = static_cast<std::uint32_t>(plan.pass_groups);
    const std::uint32_t before = fixed + groups * queue, stage = groups * slot + x;
    plan.stages = before < kShared ? static_cast<int>((kShared - before) / stage) : 0;
    if (plan.stages > kMaxStages) plan.stages = kMaxStages;
    if (plan.stages < 2 && plan.pass_groups > 1) continue;
    if (plan.stages < 2) plan.stages = 0;
    plan.bytes = before + static_cast<std::uint32_t>(plan.stages) * stage;
    return plan;
  }
}

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
__device__ __forceinline__ StreamRange find_streams(const StreamArguments<Matrix>& args, int run, int pass,
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

// What is left of a row from step u on, where a row group's part of the run ends at `to`: whole blocks up to whole_end,
// and behind them perhaps a short one, of fewer groups.
struct RestOfRow {
  int whole_end;
  bool short_end;

  __device__ __forceinline__ RestOfRow(int u, int to, int block, int blocks, int groups) {
    const int row_end = min(to, u + blocks - block);
    short_end = row_end == u + blocks - block && groups % static_cast<int>(codec::kBlockGroups) != 0;
    whole_end = row_end - (short_end ? 1 : 0);
  }
};

// The producer warp: fetches a run's blocks of streams, and activations of kColumns (0: there are none).
template <class Matrix, int kColumns>
__device__ void produce(const StreamArguments<Matrix>& args, int run, std::uint32_t ring, std::uint32_t full,
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
    if constexpr (kColumns != 0)
      bulk_copy(ring + stage * stage_bytes + args.x_at,
                args.x + static_cast<std::size_t>(block) * (codec::kBlockGroups * kGroupX), x_bytes(block),
                full + 8 * stage, used_again());
  };

  // The first stages' weights, looked up all at once by a quarter of the warp a stage, are on their way before the
  // previous kernel has ended; then come the activations.
  static_assert(kMaxStages * kMostPassGroups <= 32);
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

// The other warps: walk along their rows and hand the fragments of a group after the other to a Sink, made anew for
// each pass. It is told of the row and the block that follow (open), may go on reading a block's stage until it arrives
// on the barrier that close() names, and gets end_row() where a row of the run ends.
template <int kColumns, class Queue, class Sink, class Arguments>
__device__ void consume(const Arguments& args, int run, std::uint32_t queues, std::uint32_t ring, std::uint32_t full,
                        int begin, int end, int warp, int lane) {
  using Matrix = typename Arguments::Weights;
  using Walk = typename Source<Matrix>::Walk;
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
    Sink sink(args, run, place, warp, lane);
    Fragments fragments[Sink::kFragments];
    typename Source<Matrix>::Unit unit;

    pass_by(from - begin);
    int u = from;
#pragma unroll 1
    while (u < to) {
      // The whole blocks of a row, whose products overlap, and the short one at its end. Nothing else in the loop of
      // the whole ones: ptxas would serialize all products.
      const int step_row = walk.step_row();
      const RestOfRow rest(u, to, walk.block(), blocks, groups);
#pragma unroll 1
      for (; u < rest.whole_end; ++u) {
        barrier_wait(filled, parity);
        unit.open(at + (warp >> 2) * args.slot_bytes, warp, lane);
        sink.open(at + args.x_at, step_row, walk.block());
        run_block(unit, walk, queue, u + 1 < to, lane, one, sink, fragments);
        reads_before_copies();
        sink.close(filled + 8 * kMaxStages);
        next_stage();
      }
      sink.finish();
      if (rest.short_end) {
        barrier_wait(filled, parity);
        unit.open(at + (warp >> 2) * args.slot_bytes, warp, lane);
        sink.open(at + args.x_at, step_row, walk.block());
        run_short_block(unit, walk, queue, groups % kGroups, u + 1 < to, lane, one, sink);
        reads_before_copies();
        sink.close(filled + 8 * kMaxStages);
        sink.finish();
        next_stage();
        ++u;
      }
      sink.end_row(step_row);
    }
    pass_by(end - to);
  }
}

#endif

}  // namespace glyd::cuda
