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
  // `unit`: shared address of a unit; `table`: of the replicated table.
  __device__ __forceinline__ void open(std::uint32_t unit, std::uint32_t lane) {
    const std::uint32_t header = load_shared(unit);
    const std::uint32_t words = header & 0x3FF, count = header >> 11 & 0x1FFF;
    const bool wide = (header >> 10 & 1) != 0;
    mask = header >> 24;
    exceptions = unit + 4 + (wide ? 2 * codec::kLanes : codec::kLanes);
    const std::uint32_t bits = exceptions + 4 * count;
    const std::uint32_t start = wide ? load_shared_u16(unit + 4 + 2 * lane)
                                     : words * lane + words / 2 + load_shared_u8(unit + 4 + lane) - codec::kStartBias;
    exceptions_end = bits;
    // 7 bits before the first one to be read. The word before the bits may be touched, never used.
    const std::uint32_t up = start + 25;  // + 32 - 7
    at_[0] = bits + (up >> 5) * 4 - 4;
    position_[0] = up & 31;
    const std::uint32_t down = start + 6;
    at_[1] = bits + (down >> 5) * 4;
    position_[1] = 31 - (down & 31);
    low_[0] = load_shared(at_[0]);
    high_[0] = load_shared(at_[0] + 4);
    low_[1] = __brev(load_shared(at_[1]));
    high_[1] = __brev(load_shared(at_[1] - 4));
    at_[0] += 8;
    at_[1] -= 8;
  }

  // One group of 32 columns; `bytes`: the lane's 16 sign+mantissa bytes, lane4: lane * 4.
  __device__ __forceinline__ void decode(uint4 bytes, std::uint32_t lane4, Fragments& a) {
    const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        std::uint32_t window = __funnelshift_r(low_[t], high_[t], position_[t]);
        const std::uint32_t first = table_entry(window, lane4);
        window = __funnelshift_r(window, 0, first);
        const std::uint32_t second = table_entry(window, lane4);
        position_[t] += first + second;
        advance(t);
        a[s][t] = select_bits(first, spread(words[2 * s], t), 0x7F807F80);
        a[s][t + 2] = select_bits(second, spread(words[2 * s + 1], t), 0x7F807F80);
      }
    }
  }

  // Puts the listed weights of group g in their places, where the streams have left +0. The list is in the order of
  // groups, lanes, bytes; the same for all lanes.
  __device__ __forceinline__ void patch(int g, std::uint32_t lane, Fragments& a) {
    if ((mask >> g & 1) == 0) return;
    do {
      const std::uint32_t entry = load_shared(exceptions);
      if (entry >> 25 != static_cast<std::uint32_t>(g)) break;
      exceptions += 4;
      const std::uint32_t weight = (entry >> 20 & 31) == lane ? (entry & 0xFFFF) << (entry >> 12 & 16) : 0;
      const std::uint32_t place = entry >> 17 & 7;  // column pair * 2 + row half
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        if (place == i) a[i >> 2][(i & 1) + (i & 2)] |= weight;
      }
    } while (exceptions != exceptions_end);
  }

 private:
  static __device__ __forceinline__ std::uint32_t table_entry(std::uint32_t window, std::uint32_t lane4) {
    return *reinterpret_cast<const std::uint32_t*>(shared_memory + select_bits(window, lane4, 0xFF80));
  }

  // Sign and mantissa of two weights, from bytes 2 t and 2 t + 1: a byte's sign becomes all of the upper half, of which
  // the exponents then take what is theirs.
  static __device__ __forceinline__ std::uint32_t spread(std::uint32_t bytes, int t) {
    std::uint32_t d;
    if (t == 0) {
      asm("prmt.b32 %0, %1, 0, 0x9180;" : "=r"(d) : "r"(bytes));
    } else {
      asm("prmt.b32 %0, %1, 0, 0xB3A2;" : "=r"(d) : "r"(bytes));
    }
    return d;
  }

  __device__ __forceinline__ void advance(int t) {
    if (t == 0) {
      asm volatile(
          "{ .reg .pred p; .reg .u32 q; and.b32 q, %0, 32; setp.ne.u32 p, q, 0; @p mov.u32 %1, %2; "
          "@p ld.shared.u32 %2, [%3]; @p add.u32 %3, %3, 4; @p xor.b32 %0, %0, 32; }"
          : "+r"(position_[t]), "+r"(low_[t]), "+r"(high_[t]), "+r"(at_[t]));
    } else {
      asm volatile(
          "{ .reg .pred p; .reg .u32 q; and.b32 q, %0, 32; setp.ne.u32 p, q, 0; @p mov.u32 %1, %2; "
          "@p ld.shared.u32 %2, [%3]; @p brev.b32 %2, %2; @p sub.u32 %3, %3, 4; @p xor.b32 %0, %0, 32; }"
          : "+r"(position_[t]), "+r"(low_[t]), "+r"(high_[t]), "+r"(at_[t]));
    }
  }

  std::uint32_t low_[2], high_[2], at_[2], position_[2];
  std::uint32_t exceptions, exceptions_end, mask;
};

}  // namespace glyd::cuda
