#pragma once
// Sizes: rows in whole vector lanes, and bytes that cannot wrap around.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace glyd::runner::cpu {

inline constexpr std::size_t kLanes = 16;  // sums that a dot product is split into (kernels.h)

inline constexpr std::size_t kRowTile = 16;  // weight rows fetched, and widened, at a time

// `n` rounded up to whole lanes: the stride of every row that a vector loop reads. What lies behind the end is zero.
constexpr std::size_t padded(std::size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// What does not fit 64 bits becomes the largest number, which no memory holds.
inline std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

inline std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

}  // namespace glyd::runner::cpu
