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

// Two values rounded to bf16, `low` in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}
__device__ __forceinline__ void unpack8(uint4 packed, float (&x)[8]) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  for (int i = 0; i < 4; ++i) x[2 * i] = bf16_low(words[i]), x[2 * i + 1] = bf16_high(words[i]);
}

// In how many parts the sums of row .. row + 7 lie. Fixed with the weights: a kernel may ask before
// wait_for_previous(), so that the loads behind it wait for nothing.
__device__ __forceinline__ int splits_of(const Product& p, std::int64_t row) {
  if (p.partials == nullptr || p.splits == nullptr) return 1;
  return p.splits[static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(p.group_rows)];
}

// Results row .. row + 7 of token n for Count rows at a time, bias added, not rounded; rows are multiples of 8, and
// splits[i] is splits_of(p, rows[i]). The parts lie far away, so all loads of some parts are under way before the
// first addition; the order of the additions is the order of the parts.
template <int Count>
__device__ __forceinline__ void load8(const Product& p, std::int64_t n, const std::int64_t (&rows)[Count],
                                      const int (&splits)[Count], float (&out)[Count][8]) {
  constexpr int kAtOnce = 4;
  uint4 bias[Count];
  if (p.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < Count; ++i) bias[i] = *reinterpret_cast<const uint4*>(p.bias + rows[i]);
  }
  if (p.partials == nullptr) {
    uint4 values[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] = *reinterpret_cast<const uint4*>(p.values + n * p.rows + rows[i]);
#pragma unroll
    for (int i = 0; i < Count; ++i) unpack8(values[i], out[i]);
  } else {
    int most = 1;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      most = max(most, splits[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) out[i][j] = -0.0f;  // adding anything to it gives exactly that, zeros too
    }
    const float* at = p.partials + n * p.rows;
#pragma unroll 1
    for (int first = 0; first < most; first += kAtOnce) {
      float4 part[kAtOnce][Count][2];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s, at += p.split_stride) {
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          if (first + s >= splits[i]) continue;
          part[s][i][0] = *reinterpret_cast<const float4*>(at + rows[i]);
          part[s][i][1] = *reinterpret_cast<const float4*>(at + rows[i] + 4);
        }
      }
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
#pragma unroll
        for (int i = 0; i < Count; ++i) {
          if (first + s >= splits[i]) continue;
          const float4 a = part[s][i][0], b = part[s][i][1];
          const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
          for (int j = 0; j < 8; ++j) out[i][j] += values[j];
        }
      }
    }
  }
  if (p.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      float b[8];
      unpack8(bias[i], b);
#pragma unroll
      for (int j = 0; j < 8; ++j) out[i][j] += b[j];
    }
  }
}

// The same for one row.
__device__ __forceinline__ void load8(const Product& p, std::int64_t n, std::int64_t row, int splits, float (&out)[8]) {
  float values[1][8];
  load8<1>(p, n, {row}, {splits}, values);
#pragma unroll
  for (int j = 0; j < 8; ++j) out[j] = values[0][j];
}
__device__ __forceinline__ void load8(const Product& p, std::int64_t n, std::int64_t row, float (&out)[8]) {
  load8(p, n, row, splits_of(p, row), out);
}
#endif

}  // namespace glyd::cuda
