// bf16 weights to packed units, byte for byte what codec::pack() writes.
//
// A warp takes a unit, twice: measure_units finds the header words, from which all sizes and places follow, and
// encode_units writes the unit there. Lane (g, q) has 8 columns of rows g and g + 8 in each group of 32, as when
// decoding. In ascending bits its part is the stream of row g + 8 backwards, with its words mirrored, then that of row
// g. So lanes only need to know where they begin, the sum of the lengths before them, and write into shared memory at
// the same time. Code words come from a table of all 65536 pairs, of which a few lines in the L1 cache serve nearly all
// look-ups; they are what binds these kernels.

#include "codec/encoder_entry.h"
#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"
#include "cuda/packing/resident_block.cuh"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kWarps = 8;
constexpr std::uint32_t kThreads = kWarps * 32;
constexpr std::uint32_t kMaxUnitWords = codec::kUnitWeights / 2 * codec::kCodeBits / 32;

// Four pairs of weights, and how each is written.
struct Eight {
  std::uint32_t pairs[4], entries[4];
};

// One lane's view of a unit's weights, filled up where the matrix ends.
class LaneSource {
 public:
  __device__ __forceinline__ LaneSource(const PlainSource& source, const DeviceEncoder& encoder, std::uint64_t tile,
                                        std::uint64_t block, std::uint32_t lane)
      : encoder_(encoder),
        weights_(source.data),
        stride_(source.stride),
        rows_(source.rows),
        cols_(source.cols),
        row_(static_cast<std::int64_t>(tile * codec::kTileRows + lane / 4)),
        col_(static_cast<std::int64_t>(block * codec::kBlockCols + lane % 4 * 8)) {}

  __device__ __forceinline__ Eight upper(std::uint32_t group) const { return read(row_, group); }      // row g
  __device__ __forceinline__ Eight lower(std::uint32_t group) const { return read(row_ + 8, group); }  // row g + 8

 private:
  __device__ __forceinline__ Eight read(std::int64_t row, std::uint32_t group) const {
    const std::int64_t col = col_ + group * codec::kGroupCols;
    const std::uint32_t filler = (encoder_.filler_pair >> 8) << 7 | (encoder_.filler_pair & 255) << 23;
    Eight e{{filler, filler, filler, filler}, {}};
    if (row < rows_ && col < cols_) {
      const uint4 v = *reinterpret_cast<const uint4*>(weights_ + row * stride_ + col);
      const std::uint32_t real[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t left = cols_ - (col + 2 * i);
        if (left >= 2) e.pairs[i] = real[i];
        if (left == 1) e.pairs[i] = (real[i] & 0xFFFF) | std::uint32_t{encoder_.filler_after[real[i] >> 7 & 255]} << 23;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) e.entries[i] = encoder_.entries[(e.pairs[i] << 1 & 0xFF00) | (e.pairs[i] >> 23 & 0xFF)];
    return e;
  }

  DeviceEncoder encoder_;
  const std::uint16_t* weights_;
  std::int64_t stride_, rows_, cols_, row_, col_;
};

// The lane's exceptions in a group as bits, by the place of their byte; `half`: 0 for row g, 2 for row g + 8.
__device__ __forceinline__ std::uint32_t exception_bits(const Eight& e, int half) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t two =
        (e.entries[i] & codec::kFirstIsException ? 1u : 0) | (e.entries[i] & codec::kSecondIsException ? 2u : 0);
    bits |= two << (4 * i + half);
  }
  return bits;
}

__device__ __forceinline__ std::uint32_t sum_of_lengths(const Eight& e) {
  return codec::length_of(e.entries[0]) + codec::length_of(e.entries[1]) + codec::length_of(e.entries[2]) +
         codec::length_of(e.entries[3]);
}

// Sums over lanes 0 to this one.
__device__ __forceinline__ std::uint32_t sum_to_lane(std::uint32_t value, std::uint32_t lane) {
#pragma unroll
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

struct UnitPlan {
  codec::UnitHeader header;
  std::uint32_t begin, start;  // bits of the unit: where this lane's part begins, and where its two streams leave from
  std::uint32_t leaps;         // the lane's (find_leaps())
  bool not_coded;              // some pair of the unit has no word
};

__device__ __forceinline__ UnitPlan plan_unit(const LaneSource& source, std::uint32_t groups, std::uint32_t lane) {
  std::uint32_t up = 0, down = 0, exceptions = 0, mask = 0, all = 0;
  std::uint64_t ups = 0, downs = 0;  // the groups' bits, the last one's lowest
  for (std::uint32_t group = 0; group < groups; ++group) {
    const Eight a = source.upper(group), b = source.lower(group);
    const std::uint32_t a_bits = sum_of_lengths(a), b_bits = sum_of_lengths(b);
    up += a_bits;
    down += b_bits;
    ups = ups << 8 | a_bits;
    downs = downs << 8 | b_bits;
    const std::uint32_t bits = exception_bits(a, 0) | exception_bits(b, 2);
    exceptions += __popc(bits);
    mask |= (bits != 0 ? 1u : 0) << group;
#pragma unroll
    for (int i = 0; i < 4; ++i) all |= a.entries[i] | b.entries[i];
  }
  const std::uint32_t end = sum_to_lane(up + down, lane);
  UnitPlan plan;
  plan.begin = end - up - down;
  plan.start = end - up;
  LeapFinder upper(plan.start, false), lower(plan.start, true);
  for (std::uint32_t group = groups; group-- > 0;) {
    upper.add(static_cast<std::uint32_t>(ups >> 8 * group) & 255);
    lower.add(static_cast<std::uint32_t>(downs >> 8 * group) & 255);
  }
  plan.leaps = upper.leaps() | lower.leaps() << codec::kBlockGroups;
  plan.header.words = (__shfl_sync(~0u, end, 31) + 31) / 32;
  const std::uint32_t expected = plan.header.words * lane + plan.header.words / 2;
  plan.header.wide = __any_sync(~0u, plan.start + codec::kStartBias - expected > 255) != 0;
  plan.header.exceptions = __reduce_add_sync(~0u, exceptions);
  plan.header.group_mask = __reduce_or_sync(~0u, mask);
  plan.not_coded = __any_sync(~0u, (all & codec::kNotCoded) != 0) != 0;
  return plan;
}

// Bits one after another into zeroed words that other lanes write parts of too.
class BitWriter {
 public:
  __device__ __forceinline__ BitWriter(std::uint32_t* words, std::uint32_t begin)
      : to_(words + begin / 32), pending_(begin % 32) {}
  __device__ __forceinline__ void put(std::uint32_t word, std::uint32_t length) {
    buffer_ |= static_cast<std::uint64_t>(word) << pending_;
    pending_ += length;
    if (pending_ < 32) return;
    atomicOr(to_++, static_cast<std::uint32_t>(buffer_));
    buffer_ >>= 32;
    pending_ -= 32;
  }
  __device__ __forceinline__ void finish() {
    if (static_cast<std::uint32_t>(buffer_) != 0) atomicOr(to_, static_cast<std::uint32_t>(buffer_));
  }

 private:
  std::uint32_t* to_;
  std::uint64_t buffer_ = 0;
  std::uint32_t pending_;
};

__device__ __forceinline__ void write_streams(const LaneSource& source, std::uint32_t groups, std::uint32_t* words,
                                              std::uint32_t begin) {
  BitWriter bits(words, begin);
  for (std::uint32_t group = groups; group-- > 0;) {
    const Eight e = source.lower(group);
#pragma unroll
    for (int i = 3; i >= 0; --i) bits.put(codec::mirrored_word_of(e.entries[i]), codec::length_of(e.entries[i]));
  }
  for (std::uint32_t group = 0; group < groups; ++group) {
    const Eight e = source.upper(group);
#pragma unroll
    for (int i = 0; i < 4; ++i) bits.put(codec::word_of(e.entries[i]), codec::length_of(e.entries[i]));
  }
  bits.finish();
}

// Signs and mantissas of a pair, without the weights that are exceptions (two bits).
__device__ __forceinline__ std::uint32_t sign_mantissa(std::uint32_t pair, std::uint32_t exceptions) {
  return pair & ((exceptions & 1 ? 0 : 0x807Fu) | (exceptions & 2 ? 0 : 0x807F0000u));
}

// Signs and mantissas of all weights, woven, and the list of `count_all` exceptions, ordered by position, and leaps,
// which ends at `list`.
__device__ __forceinline__ void write_weights(const LaneSource& source, std::uint32_t groups, std::uint32_t lane,
                                              const ResidentTarget& to, std::uint64_t tile, std::uint64_t block,
                                              std::uint32_t* list, std::uint32_t leaps, std::uint32_t count_all) {
  std::uint32_t written = 0;
  for (std::uint32_t group = 0; group < groups; ++group) {
    const Eight a = source.upper(group), b = source.lower(group);
    const std::uint32_t exceptions = exception_bits(a, 0) | exception_bits(b, 2);
    std::uint32_t woven[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t lower = sign_mantissa(b.pairs[i], exceptions >> (4 * i + 2));
      woven[i] = sign_mantissa(a.pairs[i], exceptions >> (4 * i)) | __funnelshift_l(lower, lower, 8);  // weave()
    }
    *reinterpret_cast<uint4*>(place_sign_mantissa(to, tile, block, group) + lane * 16) = {woven[0], woven[1], woven[2],
                                                                                          woven[3]};
    const bool has_leaps = __any_sync(~0u, has_leap(leaps, group));
    if (!has_leaps && !__any_sync(~0u, exceptions != 0)) continue;
    const std::uint32_t count = __popc(exceptions), end = sum_to_lane(count, lane);
    const std::uint32_t group_end = written + __shfl_sync(~0u, end, 31);
    std::uint32_t number = written + end - count;
#pragma unroll
    for (int byte = 0; byte < 16; ++byte) {
      if ((exceptions >> byte & 1) == 0) continue;
      const std::uint32_t pair = byte & 2 ? b.pairs[byte / 4] : a.pairs[byte / 4];
      ++number;
      *(list - number) =
          resident_exception(group * codec::kGroupBytes + lane * 16 + byte, pair >> (byte % 2 * 16) & 0xFFFF,
                             number == count_all, number < group_end || has_leaps);
    }
    written = group_end + write_leaps(list, leaps, group, group_end, count_all, lane);
  }
}

__global__ void __launch_bounds__(kThreads)
    measure_units_kernel(PlainSource source, codec::UnitGrid grid, DeviceEncoder encoder, std::uint32_t* headers,
                         PackSummary* summary) {
  let_next_start();
  wait_for_previous();
  const std::uint64_t unit = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (unit >= grid.units()) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t tile = unit / grid.col_blocks(), block = unit % grid.col_blocks();
  const UnitPlan plan = plan_unit(LaneSource(source, encoder, tile, block, lane), grid.block_groups(block), lane);
  add_leaps(headers, unit, plan.header, __reduce_add_sync(~0u, __popc(plan.leaps)), summary, lane);
  if (plan.not_coded && lane == 0) atomicOr(&summary->not_coded, 1u);
}

__global__ void __launch_bounds__(kThreads)
    encode_units_kernel(PlainSource source, codec::UnitGrid grid, DeviceEncoder encoder, const std::uint32_t* headers,
                        ResidentTarget to) {
  __shared__ std::uint32_t slots[kWarps][kMaxUnitWords];
  let_next_start();
  wait_for_previous();
  const std::uint64_t unit = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (unit >= grid.units()) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t tile = unit / grid.col_blocks(), block = unit % grid.col_blocks();
  const std::uint32_t groups = grid.block_groups(block);
  const LaneSource lane_source(source, encoder, tile, block, lane);
  const UnitPlan plan = plan_unit(lane_source, groups, lane);

  std::uint32_t* const words = slots[threadIdx.x / 32];
  for (std::uint32_t i = lane; i < plan.header.words; i += 32) words[i] = 0;
  __syncwarp();
  write_streams(lane_source, groups, words, plan.begin);
  __syncwarp();

  std::uint32_t* const out = place_unit(grid, headers, to, tile, block, lane);
  if (plan.header.wide) {
    reinterpret_cast<std::uint16_t*>(out)[lane] = static_cast<std::uint16_t>(plan.start);
  } else {
    const std::uint32_t expected = plan.header.words * lane + plan.header.words / 2;
    reinterpret_cast<std::uint8_t*>(out)[lane] = static_cast<std::uint8_t>(plan.start + codec::kStartBias - expected);
  }
  write_weights(lane_source, groups, lane, to, tile, block, out, plan.leaps,
                plan.header.exceptions + __reduce_add_sync(~0u, __popc(plan.leaps)));
  std::uint32_t* const bits = out + codec::start_bytes(plan.header) / 4;
  for (std::uint32_t i = lane; i < plan.header.words; i += 32) bits[i] = words[i];
}

// One warp a unit, and whether the arguments can be worked on.
bool plan_launch(const PlainSource& source, codec::UnitGrid& grid, dim3& blocks) {
  grid = {static_cast<std::uint64_t>(source.rows), static_cast<std::uint64_t>(source.cols)};
  const std::uint64_t count = (grid.units() + kWarps - 1) / kWarps;
  blocks = dim3(static_cast<unsigned>(count));
  return count > 0 && count < std::uint64_t{1} << 31 && source.stride % 8 == 0 && source.stride >= source.cols;
}

}  // namespace

cudaError_t measure_units(const PlainSource& source, const DeviceEncoder& encoder, std::uint32_t* headers,
                          PackSummary* summary, cudaStream_t stream) {
  codec::UnitGrid grid;
  dim3 blocks;
  if (!plan_launch(source, grid, blocks)) return cudaErrorInvalidValue;
  return launch(measure_units_kernel, blocks, dim3(kThreads), 0, stream, source, grid, encoder, headers, summary);
}

cudaError_t encode_units(const PlainSource& source, const DeviceEncoder& encoder, const std::uint32_t* headers,
                         const ResidentTarget& to, cudaStream_t stream) {
  codec::UnitGrid grid;
  dim3 blocks;
  if (!plan_launch(source, grid, blocks)) return cudaErrorInvalidValue;
  return launch(encode_units_kernel, blocks, dim3(kThreads), 0, stream, source, grid, encoder, headers, to);
}

}  // namespace glyd::cuda
