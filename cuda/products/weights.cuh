#pragma once
// What the product kernels share: how a warp walks along its weights, how a tile becomes fragments, where sums go.

#include <cstdint>

#include "cuda/products/fragments.cuh"
#include "cuda/products/products.h"

namespace glyd::cuda {

// The row group that has `place` in the next step row; any one where there is none.
__device__ __forceinline__ int row_group_behind(const Partition& p, int step_row, int place) {
  const int next = step_row + 1;
  return next < p.steps_down ? p.row_group(next, place < p.groups_of(next) ? place : 0) : 0;
}

// A walk along the weights of a warp's 16 rows, at the block of 256 columns that is asked for. Where a block's pages
// are follows from its address (PagePlaces).
class PackedWalk {
 public:
  using Raw = uint4;

  __device__ PackedWalk(const ResidentMatrix& m, const Partition& p, int step_row, int place, int block, int warp,
                        int lane)
      : m_(m),
        p_(p),
        blocks_(p.col_blocks()),
        block_(block),
        step_row_(step_row),
        place_(place < p.groups_of(step_row) ? place : 0),
        lane_offset_((warp & 3) * codec::kGroupBytes + lane * 16) {
    find(p.row_group(step_row, place_), block);
  }
  __device__ __forceinline__ const void* address(int g) const {
    return reinterpret_cast<const void*>(slab_of_block(std::uint64_t{high_} << 32 | page_, g));
  }
  __device__ __forceinline__ Raw load(int g) const { return load_streaming_16(address(g)); }
  __device__ __forceinline__ void step() {
    if (++block_ < blocks_) {
      const std::uint32_t before = low_;
      low_ += kBlockBytes;
      high_ += low_ < before ? 1 : 0;
      find_page();
    } else {
      find(row_group_behind(p_, step_row_, place_), 0);
      block_ = 0;
      ++step_row_;
    }
  }

  __device__ __forceinline__ int block() const { return block_; }
  __device__ __forceinline__ int step_row() const { return step_row_; }

 private:
  static constexpr std::uint32_t kBlockBytes = 2 * kQuadBytes;  // and those of its partner

  __device__ __forceinline__ void find(int row_group, int block) {
    const std::uint32_t group = m_.first_group + row_group;
    const std::uint64_t at = reinterpret_cast<std::uint64_t>(m_.sign_mantissa) + lane_offset_ +
                             group / 2 * static_cast<std::uint64_t>(m_.row_pages() * kPairBytes) + block * kBlockBytes;
    low_ = static_cast<std::uint32_t>(at);
    high_ = static_cast<std::uint32_t>(at >> 32);
    odd_ = m_.places.odd_from(at) ^ (group % 2 != 0 ? ~0u : 0);
    find_page();
  }
  __device__ __forceinline__ void find_page() {
    const std::uint32_t odd = __funnelshift_r(odd_, odd_, low_ >> 21);
    page_ = ((__popc(low_ & m_.places.mask) + odd) * kPageBytes & kPageBytes) | low_;
  }

  const ResidentMatrix& m_;
  const Partition& p_;
  int blocks_, block_, step_row_, place_;
  std::uint32_t lane_offset_;
  std::uint32_t odd_;         // of the row, whose place decides which bit is which 2 MB
  std::uint32_t low_, high_;  // address of the block's first pair
  std::uint32_t page_;        // of that pair the own one: the lower half of the address
};

class PlainWalk {
 public:
  struct Raw {
    uint4 upper, lower;  // rows g and g + 8
  };

  __device__ PlainWalk(const PlainMatrix& m, const Partition& p, int step_row, int place, int block, int warp, int lane)
      : m_(m),
        p_(p),
        blocks_(p.col_blocks()),
        block_(block),
        step_row_(step_row),
        place_(place < p.groups_of(step_row) ? place : 0),
        row_((warp & 3) * 16 + (lane >> 2)),
        column_((lane & 3) * 8) {
    at_ = find(p.row_group(step_row, place_), block);
  }
  __device__ __forceinline__ Raw load(int g) const {
    return {load_streaming_16(at_.upper + g * static_cast<int>(codec::kGroupCols)),
            load_streaming_16(at_.lower + g * static_cast<int>(codec::kGroupCols))};
  }
  __device__ __forceinline__ Raw load_if(bool wanted, int g) const {
    return {load_streaming_16_if(wanted, at_.upper + g * static_cast<int>(codec::kGroupCols)),
            load_streaming_16_if(wanted, at_.lower + g * static_cast<int>(codec::kGroupCols))};
  }
  __device__ __forceinline__ void step() {
    if (++block_ < blocks_) {
      at_ = {at_.upper + codec::kBlockCols, at_.lower + codec::kBlockCols};
    } else {
      at_ = find(row_group_behind(p_, step_row_, place_), 0);
      block_ = 0;
      ++step_row_;
    }
  }

  __device__ __forceinline__ int block() const { return block_; }
  __device__ __forceinline__ int step_row() const { return step_row_; }

 private:
  struct Rows {
    const std::uint16_t *upper, *lower;
  };
  // Rows behind the last one are read as the last one; their results are never used.
  __device__ __forceinline__ Rows find(int row_group, int block) const {
    const std::int64_t first = static_cast<std::int64_t>(row_group) * kGroupRows + row_, last = m_.rows - 1;
    const std::int64_t offset = block * static_cast<int>(codec::kBlockCols) + column_;
    return {m_.data + (first < last ? first : last) * m_.stride + offset,
            m_.data + (first + 8 < last ? first + 8 : last) * m_.stride + offset};
  }

  const PlainMatrix& m_;
  const Partition& p_;
  int blocks_, block_, step_row_, place_, row_, column_;
  Rows at_;
};

// What stands between raw bytes and fragments.
struct PackedUnit {
  StreamPair streams;

  __device__ __forceinline__ void open(std::uint32_t block, int warp, int lane) {
    // For a tile that pads the last row group another is decoded, and never used.
    streams.open(block, load_shared(block + (warp & 3) * 4), lane);
  }
  __device__ __forceinline__ void fragments(const uint4& raw, std::uint32_t limit, int lane, std::uint32_t lane4,
                                            std::uint32_t one, Fragments& a) {
    streams.decode(raw, lane4, a);
    streams.patch(limit, lane, a);
    streams.advance(one);
  }
};
struct PlainUnit {
  __device__ __forceinline__ void open(std::uint32_t, int, int) {}
  __device__ __forceinline__ void fragments(const PlainWalk::Raw& raw, std::uint32_t, int, std::uint32_t, std::uint32_t,
                                            Fragments& a) {
    const std::uint32_t upper[4] = {raw.upper.x, raw.upper.y, raw.upper.z, raw.upper.w};
    const std::uint32_t lower[4] = {raw.lower.x, raw.lower.y, raw.lower.z, raw.lower.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i >> 1][(i & 1) * 2] = upper[i];
      a[i >> 1][(i & 1) * 2 + 1] = lower[i];
    }
  }
};

template <class Matrix>
struct Source;
template <>
struct Source<ResidentMatrix> {
  using Walk = PackedWalk;
  using Unit = PackedUnit;
  static constexpr bool kPacked = true;
};
template <>
struct Source<PlainMatrix> {
  using Walk = PlainWalk;
  using Unit = PlainUnit;
  static constexpr bool kPacked = false;
};

// The table in its 32 copies, by all `consumers` warps, 32 entries a warp and turn. Each lane spreads one entry by
// 16-byte stores, in an order in which eight lanes never meet in a bank.
inline constexpr int kTableTurns = kTableEntries / 32;
__device__ __forceinline__ std::uint32_t first_table_entry(const std::uint32_t* table, int warp, int lane) {
  return warp < kTableTurns ? table[warp * 32 + lane] : 0;
}
__device__ __forceinline__ void fill_table(const std::uint32_t* table, std::uint32_t entry, int warp, int consumers,
                                           int lane) {
  for (int turn = warp; turn < kTableTurns; turn += consumers) {
    if (turn != warp) entry = table[turn * 32 + lane];
    auto* const row = reinterpret_cast<uint4*>(shared_memory) + (turn * 32 + lane) * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) row[(i + lane) & 7] = uint4{entry, entry, entry, entry};
  }
}

// A warp's weights that are under way, in registers for kAhead groups. The compiler has one scoreboard for all such
// loads, so a warp that waits for one of them waits for all. So they are asked for in batches of half the registers,
// each right behind the first use of the batch before.
//
// kForWgmma: wgmma reads these very registers while the warp goes on. Then nothing is asked for in a branch, where the
// compiler lets a load write registers that a wgmma under way still reads (tools/check_wgmma.py looks for that).
template <class Walk, int kAhead, bool kForWgmma = false>
struct RegisterQueue {
  static constexpr std::uint32_t kBytes = 0;
  static constexpr int kBatch = kAhead / 2, kStepsAt = static_cast<int>(codec::kBlockGroups) - kBatch;
  typename Walk::Raw raw[kAhead];

  // Of a block that has fewer groups, what lies behind them is read too (pages are there by twos; kPlainReadAhead).
  __device__ __forceinline__ void fill(const Walk& walk) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) raw[i] = walk.load(i);
  }
  __device__ __forceinline__ typename Walk::Raw take(int g) const { return raw[g % kAhead]; }
  __device__ __forceinline__ void ask(int g, const Walk& walk, bool more) {
    constexpr int kGroups = static_cast<int>(codec::kBlockGroups);
    if (g % kBatch != 0) return;
#pragma unroll
    for (int i = g + kBatch; i < g + 2 * kBatch; ++i) {
      if constexpr (kForWgmma) {
        raw[i % kAhead] = i < kGroups ? walk.load(i) : walk.load_if(more, i % kGroups);
      } else {
        if (i < kGroups || more) raw[i % kAhead] = walk.load(i % kGroups);
      }
    }
  }
  // In a block of fewer groups: of what has been asked for, only the first is used.
  __device__ __forceinline__ typename Walk::Raw take_slowly(int g, int count, const Walk& walk) {
    const typename Walk::Raw out = raw[0];
    if (g + 1 < count) raw[0] = walk.load(g + 1);
    return out;
  }
};

// The same in shared memory, where the copies end in their order: a warp waits for the oldest only, has its registers
// free, and pays with shared memory's time. Copies are asked for and waited for by twos, since each request takes
// three instructions that do nothing (the compiler's), and one for its group of copies.
template <class Walk, int kAhead>
struct SharedQueue {
  static constexpr int kStepsAt = static_cast<int>(codec::kBlockGroups) - kAhead;
  static constexpr std::uint32_t kBytes = kAhead * codec::kGroupBytes;  // of a warp
  static_assert(kAhead % 2 == 0);
  std::uint32_t at;  // the lane's place in the first slot

  __device__ __forceinline__ void fill(const Walk& walk) {
    copies_wait<0>();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      copy_streaming_16(at + i * codec::kGroupBytes, walk.address(i));
      if (i % 2 != 0) copies_commit();
    }
  }
  __device__ __forceinline__ uint4 take(int g) const {
    if (g % 2 == 0) copies_wait<kAhead / 2 - 1>();
    return load_shared_16(at + g % kAhead * codec::kGroupBytes);
  }
  __device__ __forceinline__ void ask(int g, const Walk& walk, bool more) {
    constexpr int kGroups = static_cast<int>(codec::kBlockGroups);
    if (g % 2 == 0) return;
    if (g + kAhead < kGroups || more) {
#pragma unroll
      for (int i = g - 1; i <= g; ++i)
        copy_streaming_16(at + i % kAhead * codec::kGroupBytes, walk.address((i + kAhead) % kGroups));
    }
    copies_commit();  // an empty group where nothing is wanted, so that their number says which is which
  }
  __device__ __forceinline__ uint4 take_slowly(int g, int, const Walk& walk) {
    copies_wait<0>();
    return g < kAhead ? load_shared_16(at + g * codec::kGroupBytes) : walk.load(g);
  }
};

// The 8 groups of a block: decodes (or unpacks) a group, asks for further ones, which may be in the next block (if
// there are `more`: loads behind the end would be the next kernel's loss) and to which the walk steps on the way,
// multiplies. `product` has load(g), which fetches a group's activations (before the decoding, which hides the way),
// and run(g, fragments, activations), where group g's are fragments[g % kFragments]; it may still read all of them when
// it comes back but those that come next, from one block to the next. The queues' kAhead divides 8, and so does
// kFragments.
template <class Unit, class Walk, class Queue, class Product>
__device__ __forceinline__ void run_block(Unit& unit, Walk& walk, Queue& queue, bool more, int lane, std::uint32_t one,
                                          Product& product, Fragments (&a)[Product::kFragments]) {
  constexpr int kGroups = static_cast<int>(codec::kBlockGroups);
  static_assert(kGroups % Product::kFragments == 0);
  const std::uint32_t lane4 = lane * 4;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const auto x = product.load(g);
    unit.fragments(queue.take(g), StreamPair::limit(g), lane, lane4, one, a[g % Product::kFragments]);
    if (g == Queue::kStepsAt) walk.step();
    queue.ask(g, walk, more);
    product.run(g, a, x);
  }
}

// The same for the last block of a row where it has fewer groups; `product` has run_slowly(g, fragments), after which
// the fragments are free.
template <class Unit, class Walk, class Queue, class Product>
__device__ __forceinline__ void run_short_block(Unit& unit, Walk& walk, Queue& queue, int count, bool more, int lane,
                                                std::uint32_t one, Product& product) {
  Fragments a;
#pragma unroll 1
  for (int g = 0; g < count; ++g) {
    unit.fragments(queue.take_slowly(g, count, walk), StreamPair::limit(g), lane, lane * 4, one, a);
    product.run_slowly(g, a);
  }
  walk.step();
  if (more) queue.fill(walk);
}

// Writes a warp's 16 rows of sums as the piece that a run makes of them, and clears them.
template <int kTiles>
__device__ __forceinline__ void store_partials(const Partition& p, int run, float* partials, int tokens, int step_row,
                                               int place, int warp, int lane, float (&acc)[kTiles][4]) {
  // A short way to the addresses, since all wait for the last sums.
  const auto stored = static_cast<std::uint32_t>(p.row_groups()) * kGroupRows;
  const auto first_token = static_cast<std::uint32_t>(p.piece(run, step_row, place) * tokens + (lane & 3) * 2);
  const std::int64_t token_stride = stored;
  float* const out = partials + (std::uint64_t{first_token} * stored + p.row_group(step_row, place) * kGroupRows +
                                 (warp & 3) * 16 + (lane >> 2));
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n * 8 + (lane & 3) * 2 + (i & 1) < tokens)
        store_used_again(&out[(n * 8 + (i & 1)) * token_stride + (i >> 1) * 8], acc[n][i]);
      acc[n][i] = 0;
    }
  }
}

}  // namespace glyd::cuda
