#pragma once
// bfloat16: the upper half of a float. Weights are held in it, and every bit pattern is kept.

#include <bit>
#include <cstdint>

namespace glyd {

struct Bf16 {
  std::uint16_t bits = 0;  // sign 1, exponent 8, mantissa 7
};
static_assert(sizeof(Bf16) == 2);

inline bool operator==(Bf16 a, Bf16 b) { return a.bits == b.bits; }  // bit equality, so NaN equals itself

inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

// Nearest-even; overflow becomes infinity; a NaN stays one (its payload's upper bits are kept, and it is made quiet).
inline Bf16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// x rounded to bf16 and widened again.
inline float round_to_bf16(float x) { return to_float(to_bf16(x)); }

// IEEE half precision to float: exact.
inline float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;  // zero or denormal
  return sign ? -value : value;
}

}  // namespace glyd
