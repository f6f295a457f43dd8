#pragma once
// Which of two places a page of packed weights has in memory: the one that is near to the multiprocessors that will
// read it.
//
// The L2 cache of an H200 is two halves, and each multiprocessor is next to one. An address belongs to one half; to the
// multiprocessors of the other half what lies there takes a longer way: 483 clocks instead of 286 for an atomic, and,
// with half of all reads on the longer way, 143 pJ a byte instead of 124 (bench/results/products.md). Which half a page
// of 4 KB belongs to is the parity of some bits of its physical address, bits 12 and 13 among them; bits below 21 are
// those of the virtual address, what the others add is the same for 2 MB. So of a pair of pages that lie beside each
// other each half has one. Two neighbouring row groups share their pairs of pages: the even one's go where side 0 has
// them, the odd one's where side 1 has them, and multiprocessors of side 0 take runs of even row groups first
// (claim_run(), Partition in cuda/products). So rows that follow each other lie in both halves alike, as prompts need,
// whose slices of rows are read by all multiprocessors.
//
// All of this is about time only: places are what the fields say, wherever that is. Without knowledge of the chip they
// are places as well.

#include <cstdint>

namespace glyd::cuda {

inline constexpr std::uint32_t kPageBytes = 4096, kPairBytes = 2 * kPageBytes;
// Two pairs: their addresses differ in bit 13, so the second pair is the other way round; the next two are as these.
inline constexpr std::uint32_t kQuadBytes = 2 * kPairBytes;
inline constexpr std::uint32_t kParityPage = 2 << 20;  // physical addresses: of what lies within the bits are known
inline constexpr std::uint32_t kMaxProcessors = 192;

// Where group g of 32 columns of a block lies, 64 rows x 32 columns each, from where its first page is: pairs beside
// each other have it in the other page.
constexpr std::uint64_t slab_of_block(std::uint64_t first_page, std::uint32_t g) {
  return (g % 4 >= 2 ? first_page ^ (kPairBytes | kPageBytes) : first_page) + g / 4 * kQuadBytes +
         g % 2 * kPageBytes / 2;
}

struct PagePlaces {
  static constexpr std::uint32_t kOddWords = 32;  // 64 MB of addresses each; a larger matrix has zeros

  std::uint32_t mask = 1 << 13;       // whose parity counts: of a pair's address bit 13, never 14, and any to 20
  std::uint32_t first = 0;            // the matrix's first address / 64 MB
  std::uint32_t odd[kOddWords] = {};  // a bit for 2 MB of addresses: 1 where the parity is the other way round
  std::uint32_t sides[kMaxProcessors / 32] = {};  // a bit for each multiprocessor: the half of the cache it is next to

  constexpr std::uint32_t odd_at(std::uint64_t address) const {
    return odd[(static_cast<std::uint32_t>(address >> 26) - first) % kOddWords] >> (address >> 21 & 31) & 1;
  }
  // The bits of 62 MB from an address on: of an address that is bit address >> 21 & 31.
  constexpr std::uint32_t odd_from(std::uint64_t address) const {
    const std::uint32_t word = static_cast<std::uint32_t>(address >> 26) - first;
    const std::uint32_t here = ~0u << (address >> 21 & 31);
    return (odd[word % kOddWords] & here) | (odd[(word + 1) % kOddWords] & ~here);
  }
  // Whether side 1 has the first page of the pair at an address.
  constexpr bool turned(std::uint64_t pair) const {
    auto bits = static_cast<std::uint32_t>(pair) & mask;
#if defined(__CUDA_ARCH__)
    bits = __popc(bits);
#else
    for (int shift = 16; shift > 0; shift /= 2) bits ^= bits >> shift;
#endif
    return ((bits ^ odd_at(pair)) & 1) != 0;
  }
};

}  // namespace glyd::cuda
