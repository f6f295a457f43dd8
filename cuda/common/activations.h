#pragma once
// How the bf16 activations that a product multiplies lie in memory. Whoever makes them (RMSNorm, SwiGLU, attention)
// writes them where the product's tensor core instructions want them, so that no kernel only moves data.

#include <cstdint>

namespace glyd::cuda {

enum class Layout : int {
  Rows,   // [token][stride], K values each: what cuBLAS reads
  Mma,    // image for mma.sync: lane (n % 8) * 4 + k % 32 / 8 of a warp reads 16 bytes, two k16 steps of B fragments
  Wgmma,  // image for wgmma: 8 x 16 byte core matrices, no swizzle
};

// K activations of each of some tokens. In the images K is rounded up to whole groups of 32 and what is behind K is
// zero; there are `columns` columns, and those without a token hold anything (a column never touches another).
struct Activations {
  std::uint16_t* data = nullptr;  // bf16 bits, 16-byte aligned
  Layout layout = Layout::Rows;
  int columns = 0;          // images: 8, 16, 32, 48, 64, 96, 112 or 128
  std::int64_t stride = 0;  // Rows: elements from token to token, a multiple of 8
};

#ifdef __CUDACC__
// Writes activations k .. k + 7 of column n; k is a multiple of 8. In an image, whoever writes the last real ones
// writes zeros up to the next multiple of 32 too.
//
// Both images permute the columns of a group of 32 as the packed weights do: lane q = 0..3 of a quad holds 8 q .. 8 q +
// 7, of which step s (0, 1), register half h takes 8 q + 4 s + 2 h and the next.
__device__ __forceinline__ void store8(const Activations& a, int n, int k, uint4 values) {
  const std::int64_t group = k >> 5;
  const int q = k >> 3 & 3;
  if (a.layout == Layout::Rows) {
    *reinterpret_cast<uint4*>(a.data + n * a.stride + k) = values;
  } else if (a.layout == Layout::Mma) {
    const std::int64_t lane_slot = (group * (a.columns >> 3) + (n >> 3)) * 32 + (n & 7) * 4 + q;
    *reinterpret_cast<uint4*>(a.data + lane_slot * 8) = values;
  } else {
    // Core matrix (group, step, half, n / 8): 8 tokens x 8 slots, slots 2 q and 2 q + 1 from lane q.
    const std::uint32_t words[4] = {values.x, values.y, values.z, values.w};
    for (int i = 0; i < 4; ++i) {
      const std::int64_t matrix = (group * 4 + i) * (a.columns >> 3) + (n >> 3);
      *reinterpret_cast<std::uint32_t*>(a.data + matrix * 64 + (n & 7) * 8 + 2 * q) = words[i];
    }
  }
}
#endif

}  // namespace glyd::cuda
