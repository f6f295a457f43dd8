#pragma once
// From weights in memory to the A fragments of two k16 steps: lane 4 g + q gets rows g and g + 8 of columns
// 8 q .. 8 q + 7 of a group of 32. a[s][t + 2 h] holds row g + 8 t, columns 8 q + 4 s + 2 h and the next.

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/packing/resident.h"
#include "cuda/products/products.h"

namespace glyd::cuda {

using Fragments = std::uint32_t[2][4];

// All of a kernel's shared memory; a kernel for packed weights has the replicated table at its start.
extern __shared__ __align__(1024) unsigned char shared_memory[];
inline constexpr std::uint32_t kTableBytes = kTableEntries * 32 * 4;

// 1 in a register, of which the compiler does not know it (blocks have one row of threads).
__device__ __forceinline__ std::uint32_t opaque_one() {
  std::uint32_t row;
  asm volatile("mov.u32 %0, %%tid.y;" : "=r"(row));
  return row + 1;
}

// Sign+mantissa bytes lie woven (weave() in resident.h): a word holds those of a column pair's four
// weights, row g's where a bf16 pair has them, row g + 8's where a rotation by 8 puts them there. One lop3 merges the
// exponents into the rest of the bits.
//
// The decoder of one lane: two bit streams, row g's upwards from the lane's start, row g + 8's downwards from the same
// place (its words are mirrored when they are fetched, then it is like the other). A window of 64 bits slides over
// each.
//
// The table has 32 copies, one a bank, so an entry's address is index * 128 + lane * 4. The window is held 7 bits below
// the index: one lop3 then makes the address of it. Funnel shifts take their count modulo 32, so an entry (length in
// its low 5 bits) is its own shift count, and `position`, the sum of all entries, is the place in the window; the bits
// from 7 up are junk, and bit 5 says that a word was crossed.
class StreamPair {
 public:
  // `block`: shared address of a block; `word`: of its tile (TileWord).
  __device__ __forceinline__ void open(std::uint32_t block, std::uint32_t word, std::uint32_t lane) {
    const std::uint32_t starts = block + (word & 0x1FFFC), words = word >> 17;
    std::uint32_t bits = starts + codec::kLanes, up;
    // Where the upward stream leaves, 7 bits before the first one to be read and counted from a word before the bits.
    // Words around the bits may be touched, never used.
    constexpr std::int32_t kBefore = 32 - 7;
    if ((word & 1) == 0) {
      const auto twice = static_cast<std::int32_t>(words * (2 * lane + 1)) + 2 * (kBefore - codec::kStartBias);
      up = load_shared_u8(starts + lane) + static_cast<std::uint32_t>(twice >> 1);
    } else {
      up = load_shared_u16(starts + 2 * lane) + kBefore;
      bits += codec::kLanes;
    }
    const std::uint32_t down = up - 19;
    at_[0] = bits + (up >> 5) * 4;
    at_[1] = bits + (down >> 5) * 4;
    position_[0] = up;  // of a position only the change of bit 5 counts, and the bits below it
    position_[1] = ~down;
    low_[0] = load_shared(at_[0] - 4);
    high_[0] = load_shared(at_[0]);
    next_[0] = load_shared(at_[0] + 4);
    low_[1] = __brev(load_shared(at_[1]));
    high_[1] = __brev(load_shared(at_[1] - 4));
    next_[1] = load_shared(at_[1] - 8);
    list_ = starts - 4;
    entry_ = (word & 2) == 0 ? kNoException : load_shared(list_);
  }

  // One group of 32 columns takes decode(), patch(), advance(). Windows are moved last: behind the branch of the patch,
  // which may have changed them, the compiler needs no copies of them.
  // `bytes`: the lane's 16 sign+mantissa bytes, lane4: lane * 4.
  __device__ __forceinline__ void decode(uint4 bytes, std::uint32_t lane4, Fragments& a) {
    const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      coming_[t] = t == 0 ? next_[0] : __brev(next_[1]);
      // 64 bits from the position on. Of the low word 25 count, so a third entry has to be looked up where the second
      // word has been shifted in, and the last one from there by the sum of three lengths.
      const std::uint32_t low = __funnelshift_r(low_[t], high_[t], position_[t]);
      const std::uint32_t high = __funnelshift_r(high_[t], coming_[t], position_[t]);
      std::uint32_t entries[4];
      entries[0] = table_entry(low, lane4);
      std::uint32_t window = __funnelshift_r(low, high, entries[0]);
      entries[1] = table_entry(window, lane4);
      window = __funnelshift_r(window, 0, entries[1]);
      entries[2] = table_entry(window, lane4);
      const std::uint32_t three = entries[0] + entries[1] + entries[2];
      window = __funnelshift_r(low, high, three);
      entries[3] = table_entry(window, lane4);
      before_[t] = position_[t];
      position_[t] += three + entries[3];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i / 2][t + i % 2 * 2] = select_bits(entries[i], t == 0 ? words[i] : rotated(words[i]), 0x7F807F80);
    }
  }

  // Puts the listed weights of a group in their places, where the streams have left +0. The list is in the order of
  // groups, lanes, bytes; it is the same for all lanes. `limit`: that of the group.
  __device__ __forceinline__ void patch(std::uint32_t limit, std::uint32_t lane, Fragments& a) {
    if (entry_ >= limit) return;
#pragma unroll 1
    for (;;) {
      const std::uint32_t entry = entry_;
      std::uint32_t mine;
      asm("{ .reg .pred p; .reg .u32 q; lop3.b32 q, %1, %2, 0x1F000000, 0x28; setp.eq.u32 p, q, 0; "
          "selp.b32 %0, %1, 0, p; }"
          : "=r"(mine)
          : "r"(entry), "r"(lane << 24));
      const std::uint32_t weight = (entry & 0x100000) != 0 ? mine << 16 : mine & 0xFFFF;
      // All lanes take the same way: column pair 2 s + h, row half t.
      asm volatile(
          "{ .reg .pred p, q, r; .reg .u32 b; and.b32 b, %8, 0x800000; setp.ne.u32 p, b, 0; and.b32 b, %8, 0x400000; "
          "setp.ne.u32 q, b, 0; and.b32 b, %8, 0x200000; setp.ne.u32 r, b, 0; "
          "@p bra.uni second; @q bra.uni one; @r bra.uni z1; add.u32 %0, %0, %9; bra.uni done; "
          "z1: add.u32 %1, %1, %9; bra.uni done; one: @r bra.uni o1; add.u32 %2, %2, %9; bra.uni done; "
          "o1: add.u32 %3, %3, %9; bra.uni done; second: @q bra.uni three; @r bra.uni t1; add.u32 %4, %4, %9; "
          "bra.uni done; t1: add.u32 %5, %5, %9; bra.uni done; three: @r bra.uni h1; add.u32 %6, %6, %9; bra.uni done; "
          "h1: add.u32 %7, %7, %9; done: }"
          : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]), "+r"(a[1][0]), "+r"(a[1][1]), "+r"(a[1][2]),
            "+r"(a[1][3])
          : "r"(entry), "r"(weight));
      list_ -= 4;
      entry_ = (entry & kResidentLast) != 0 ? kNoException : load_shared(list_);
      if ((entry & kResidentGoesOn) == 0) return;
      std::uint32_t again;  // rather than a register for what hardly ever happens
      asm volatile("ld.shared.u32 %0, [%1 + 4];" : "=r"(again) : "r"(list_));
      if ((again & kResidentLeap) != 0) {
        leap(again, lane);
        if (entry_ >= limit) return;
      }
    }
  }
  __device__ __forceinline__ void advance(std::uint32_t one) {
    advance(0, one);
    advance(1, one);
  }

  static constexpr std::uint32_t kNoException = 0xFFFFFFFF;
  // No entry of a group or of one before is as large, every later one and kNoException are.
  static __device__ __forceinline__ std::uint32_t limit(std::uint32_t group) { return ((group + 1) << 29) - 1; }

 private:
  static __device__ __forceinline__ std::uint32_t table_entry(std::uint32_t window, std::uint32_t lane4) {
    return *reinterpret_cast<const std::uint32_t*>(shared_memory + select_bits(window, lane4, 0xFF80));
  }

  static __device__ __forceinline__ std::uint32_t rotated(std::uint32_t word) { return __funnelshift_r(word, word, 8); }

  // Moves the window on by a word where bit 5 of the position has changed. The word that is fetched is the one behind
  // the window, so nothing waits for it. The products by one are moves and an addition that go to the multiplier's
  // pipe: the integer pipe is what this kernel is short of.
  __device__ __forceinline__ void advance(int t, std::uint32_t one) {
    if (t == 0) {
      asm volatile(
          "{ .reg .pred p; .reg .u32 q; lop3.b32 q, %4, %5, 32, 0x28; setp.ne.u32 p, q, 0; @p mad.lo.u32 %0, %1, %6, "
          "0; "
          "@p mad.lo.u32 %1, %2, %6, 0; @p ld.shared.u32 %2, [%3 + 8]; @p mad.lo.u32 %3, %6, 4, %3; }"
          : "+r"(low_[t]), "+r"(high_[t]), "+r"(next_[t]), "+r"(at_[t])
          : "r"(position_[t]), "r"(before_[t]), "r"(one));
    } else {
      asm volatile(
          "{ .reg .pred p; .reg .u32 q; lop3.b32 q, %4, %5, 32, 0x28; setp.ne.u32 p, q, 0; @p mad.lo.u32 %0, %1, %6, "
          "0; "
          "@p mad.lo.u32 %1, %7, %6, 0; @p ld.shared.u32 %2, [%3 + -12]; @p mad.lo.u32 %3, %6, -4, %3; }"
          : "+r"(low_[t]), "+r"(high_[t]), "+r"(next_[t]), "+r"(at_[t])
          : "r"(position_[t]), "r"(before_[t]), "r"(one), "r"(coming_[t]));
    }
  }

  // Moves the window of one lane on by two words: in this group its stream has gone over the whole second one, and
  // advance() will see no change.
  __device__ __forceinline__ void leap(std::uint32_t entry, std::uint32_t lane) {
    const bool mine = ((entry ^ lane << 24) & 0x1F000000) == 0, lower = (entry & 0x200000) != 0;
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %4, 0; @p mov.b32 %0, %2; @p ld.shared.u32 %1, [%3 + 8]; "
        "@p ld.shared.u32 %2, [%3 + 12]; @p add.u32 %3, %3, 8; }"
        : "+r"(low_[0]), "+r"(high_[0]), "+r"(next_[0]), "+r"(at_[0])
        : "r"(static_cast<std::uint32_t>(mine && !lower)));
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %4, 0; @p brev.b32 %0, %2; @p ld.shared.u32 %1, [%3 + -12]; "
        "@p brev.b32 %1, %1; @p ld.shared.u32 %2, [%3 + -16]; @p add.u32 %3, %3, -8; }"
        : "+r"(low_[1]), "+r"(high_[1]), "+r"(next_[1]), "+r"(at_[1])
        : "r"(static_cast<std::uint32_t>(mine && lower)));
  }

  std::uint32_t low_[2], high_[2];  // the window
  std::uint32_t next_[2], at_[2];   // the word behind it, as it lies in memory, and an address near the one after that
  std::uint32_t position_[2];
  std::uint32_t before_[2], coming_[2];  // until advance(): the position at the group's start, and the word behind
  std::uint32_t list_, entry_;           // exceptions: the entry to come and its address
};

}  // namespace glyd::cuda
