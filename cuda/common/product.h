#pragma once
// What a matrix product leaves for the operation behind it: sums that are finished only when they are read. A row's sum
// over K is cut into parts at places that the matrix alone decides; the reader adds the parts in their order, then the
// bias, then rounds once. So no kernel only adds up, there are no atomics, and the order never changes.

#include <cstdint>

namespace glyd::cuda {

// R results of each of some tokens.
struct Product {
  // fp32 partial sums [split][token][rows], or null
  const float* partials = nullptr;
  std::int64_t rows = 0;          // R as stored: a multiple of 8
  std::int64_t split_stride = 0;  // floats from split to split
  // Number of splits of each group of rows: splits[row / group_rows]; null: one everywhere.
  const std::uint8_t* splits = nullptr;
  int group_rows = 1;  // a multiple of 8

  const std::uint16_t* values = nullptr;  // or bf16 [token][rows] from cuBLAS, when partials is null
  const std::uint16_t* bias = nullptr;    // [R] bf16 or null, added before the rounding
};

#ifdef __CUDACC__
__device__ __forceinline__ float bf16_low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// fp32 to bf16 and back, nearest-even; NaN stays NaN.
__device__ __forceinline__ std::uint32_t bf16_bits(float x) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ float round_bf16(float x) { return __uint_as_float(bf16_bits(x) << 16); }

// Results row .. row + 7 of token n, bias added, not rounded; row is a multiple of 8.
__device__ __forceinline__ void load8(const Product& p, std::int64_t n, std::int64_t row, float (&out)[8]) {
  if (p.partials != nullptr) {
    const float* at = p.partials + n * p.rows + row;
    const int splits = p.splits == nullptr ? 1 : p.splits[row / p.group_rows];
    float4 a = *reinterpret_cast<const float4*>(at), b = *reinterpret_cast<const float4*>(at + 4);
    for (int s = 1; s < splits; ++s) {
      at += p.split_stride;
      const float4 c = *reinterpret_cast<const float4*>(at), d = *reinterpret_cast<const float4*>(at + 4);
      a.x += c.x, a.y += c.y, a.z += c.z, a.w += c.w;
      b.x += d.x, b.y += d.y, b.z += d.z, b.w += d.w;
    }
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  } else {
    const uint4 v = *reinterpret_cast<const uint4*>(p.values + n * p.rows + row);
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) out[2 * i] = bf16_low(words[i]), out[2 * i + 1] = bf16_high(words[i]);
  }
  if (p.bias != nullptr) {
    const uint4 v = *reinterpret_cast<const uint4*>(p.bias + row);
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) out[2 * i] += bf16_low(words[i]), out[2 * i + 1] += bf16_high(words[i]);
  }
}
#endif

}  // namespace glyd::cuda
