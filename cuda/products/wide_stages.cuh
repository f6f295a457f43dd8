#pragma once
// How the warps of multiply_wide.cu, which has no others, fetch what they read: a block's activations in pieces that
// all warp groups share, and the blocks of streams of a warp group's own rows.
//
// Each copy is asked for by one warp, on its way along the weights. It first waits until all that read what lay there
// before have given it back, which they did a while ago unless they lag behind.

#include <cstdint>

#include "cuda/products/weight_stream.cuh"

namespace glyd::cuda {

inline constexpr int kPieceGroups = 2, kPieces = codec::kBlockGroups / kPieceGroups;
inline constexpr std::uint32_t kPieceBarriers = 2 * kPieces * 8;      // bytes: full and empty ones
inline constexpr std::uint32_t kStreamBarriers = 2 * kMaxStages * 8;  // of a warp group
static_assert(kPieces == 4);
// Bytes of activations: of a group of 32 columns of weights, of a piece.
constexpr std::uint32_t group_bytes(int columns) { return codec::kGroupCols * static_cast<std::uint32_t>(columns) * 2; }
constexpr std::uint32_t piece_bytes(int columns) { return kPieceGroups * group_bytes(columns); }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// Where a warp is among the steps of its thread block's run. All of a thread block's warps go through all of them, pass
// by pass, also where a warp group has no weights to multiply.
struct RunPlace {
  int begin, end, passes, first_block;  // of the run; its first step's block
  int pass, step, block;                // `block` is the step's

  __device__ __forceinline__ void move(int to_pass, int to_step, int to_block) {
    pass = to_pass;
    step = to_step;
    block = to_block;
  }
  __device__ __forceinline__ bool is_first() const { return step == begin && pass == 0; }
  __device__ __forceinline__ bool is_last() const { return step + 1 == end && pass + 1 == passes; }
  __device__ __forceinline__ int next_block(int blocks) const {
    if (step + 1 == end) return first_block;
    return block + 1 == blocks ? 0 : block + 1;
  }
};

// The activations of a block, kColumns of them. A step's pieces are waited for, in order, and given back by all lanes
// of every warp, with refill() between the two.
template <int kColumns>
struct Pieces {
  const StreamArguments<ResidentMatrix>& args;
  std::uint32_t at, barriers;  // shared addresses: kPieces * piece_bytes(kColumns), kPieceBarriers
  std::uint32_t fetches;       // bit i: this warp fetches piece i
  int lane;
  RunPlace now;
  std::uint32_t parity = 0;  // of the step's barriers

  __device__ __forceinline__ std::uint32_t full(int piece) const { return barriers + 8 * piece; }
  __device__ __forceinline__ std::uint32_t empty(int piece) const { return barriers + 8 * (kPieces + piece); }
  // By one thread, which then calls barrier_init_done().
  __device__ void init(int threads) const {
    for (int piece = 0; piece < kPieces; ++piece) {
      barrier_init(full(piece), 1);
      barrier_init(empty(piece), threads);
    }
  }

  __device__ __forceinline__ bool ready(int piece) const { return barrier_test(full(piece), parity); }
  __device__ __forceinline__ void wait(int piece) const { barrier_wait(full(piece), parity); }
  __device__ __forceinline__ void give_back(int piece) const { barrier_arrive(empty(piece)); }
  __device__ __forceinline__ void end_step() { parity ^= 1; }

  // The run's first block.
  __device__ void fill() const {
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece)
      if ((fetches >> piece & 1) != 0) fetch(piece, now.first_block);
  }
  // While a piece is multiplied: fetches the next step's of the piece before, which this warp has given back.
  __device__ __forceinline__ void refill(int piece) const {
    const int before = (piece + kPieces - 1) % kPieces;
    if ((fetches >> before & 1) == 0) return;
    if (piece == 0) {  // the last one of the step before, for this step
      if (now.is_first()) return;
      barrier_wait(empty(before), parity ^ 1);
      fetch(before, now.block);
    } else {
      if (now.is_last()) return;
      barrier_wait(empty(before), parity);
      fetch(before, now.next_block(args.partition.col_blocks()));
    }
  }
  // Goes past steps in which this warp group has nothing to multiply.
  __device__ void pass_by(int pass, int from, int to) {
#pragma unroll 1
    for (; from < to; ++from) {
      now.move(pass, from, from % args.partition.col_blocks());
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) {
        wait(piece);
        refill(piece);
        give_back(piece);
      }
      end_step();
    }
  }

 private:
  // A short block has pieces of fewer groups, and of none.
  __device__ __forceinline__ void fetch(int piece, int block) const {
    const int groups = static_cast<int>((args.partition.cols + codec::kGroupCols - 1) / codec::kGroupCols);
    const int first = block * static_cast<int>(codec::kBlockGroups) + piece * kPieceGroups;
    const std::uint32_t bytes = max(0, min(kPieceGroups, groups - first)) * group_bytes(kColumns);
    if (lane == 0) {
      barrier_expect(full(piece), bytes);
      if (bytes != 0)
        bulk_copy(at + piece * piece_bytes(kColumns), args.x + static_cast<std::size_t>(first) * group_bytes(kColumns),
                  bytes, full(piece), used_again());
    }
    __syncwarp();
  }
};

// A warp group's blocks of streams, args.stages of them side by side: wait(), reads of at, next(), which gives the
// stage back. What next() has given back refill() fills, in the step behind it.
struct OwnStreams {
  const StreamArguments<ResidentMatrix>& args;
  std::uint32_t ring, barriers;  // shared addresses: the stages, kStreamBarriers
  bool fetches;                  // whether this warp is the one that does
  int lane;
  std::uint32_t at, full, parity = 0;  // the step's stage, its barrier and that one's parity
  int place = 0, row = 0, block = 0;   // what is to be fetched next
  int left = 0;                        // blocks of the pass that are still to be fetched

  __device__ __forceinline__ OwnStreams(const StreamArguments<ResidentMatrix>& arguments, std::uint32_t stages_at,
                                        std::uint32_t barriers_at, bool this_warp_fetches, int own_lane)
      : args(arguments),
        ring(stages_at),
        barriers(barriers_at),
        fetches(this_warp_fetches),
        lane(own_lane),
        at(stages_at),
        full(barriers_at) {}
  // By one thread, which then calls barrier_init_done().
  __device__ void init() const {
    for (int i = 0; i < kMaxStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(empty_of(barriers + 8 * i), 128);
    }
  }

  // The first blocks of a pass: those of the row group at_place, `count` from a step row's block on.
  __device__ void begin_pass(int at_place, int step_row, int first_block, int count) {
    place = at_place;
    row = step_row;
    block = first_block;
    left = count;
    if (!fetches) return;
    std::uint32_t to = at, to_full = full;
#pragma unroll 1
    for (int i = 0; i < args.stages && left > 0; ++i) {
      barrier_wait(empty_of(to_full), to_full < full ? parity : parity ^ 1);
      fetch(to, to_full);
      to += args.slot_bytes;
      to_full += 8;
      if (to_full == barriers + 8 * args.stages) {
        to = ring;
        to_full = barriers;
      }
    }
  }
  __device__ __forceinline__ void wait() const { barrier_wait(full, parity); }
  __device__ __forceinline__ void next() {
    barrier_arrive(empty_of(full));
    at += args.slot_bytes;
    full += 8;
    if (full == barriers + 8 * args.stages) {
      at = ring;
      full = barriers;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void refill() {
    if (!fetches || left == 0) return;
    const bool wraps = full == barriers;  // the stage before is the last one, of the turn before
    const std::uint32_t last = args.stages - 1;
    const std::uint32_t before = wraps ? ring + last * args.slot_bytes : at - args.slot_bytes;
    const std::uint32_t before_full = wraps ? barriers + 8 * last : full - 8;
    barrier_wait(empty_of(before_full), wraps ? parity ^ 1 : parity);
    fetch(before, before_full);
  }

 private:
  static __device__ __forceinline__ std::uint32_t empty_of(std::uint32_t barrier) { return barrier + 8 * kMaxStages; }
  __device__ __forceinline__ void fetch(std::uint32_t to, std::uint32_t to_full) {
    const Partition& p = args.partition;
    if (lane == 0) {
      // Nearly always in the cache: a line has 32 of them.
      const std::uint32_t* const offset =
          args.weights.block_offsets + static_cast<std::int64_t>(p.row_group(row, place)) * p.col_blocks() + block;
      const std::uint32_t first = offset[0], bytes = (offset[1] - first) * 16;
      barrier_expect(to_full, bytes);
      bulk_copy(to, args.weights.streams + static_cast<std::int64_t>(first) * 16, bytes, to_full, read_once());
    }
    __syncwarp();
    --left;
    if (++block == p.col_blocks()) {
      block = 0;
      ++row;
    }
  }
};

#endif

}  // namespace glyd::cuda
