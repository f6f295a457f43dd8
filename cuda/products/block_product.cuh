#pragma once
// A block's weights, decoded or plain, times its activations in shared memory, for sm_90a: by mma.sync for few columns
// and by wgmma for more. Both add to the same bits.

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/products/weights.cuh"
#include "cuda/products/wgmma.cuh"

namespace glyd::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// acc += a * x, a group of two k16 steps at a time, from a block's activations in shared memory.
template <int kColumns, bool kWarpGroup, int kBuffers>
struct BlockProduct;

template <int kColumns, int kBuffers>
struct BlockProduct<kColumns, false, kBuffers> {
  static constexpr int kFragments = 2;
  struct X {
    uint4 columns[kColumns / 8];
  };
  float (&acc)[kColumns / 8][4];
  std::uint32_t x;  // shared address of the block's activations
  int lane;
  int& fresh;
  bool used;  // whether the lane's column in the only 8 is a token's
  uint4 only{};

  __device__ __forceinline__ X load(int g) {
    X out;
    const std::uint32_t at = x + g * (codec::kGroupCols * kColumns * 2) + lane * 16;
    if constexpr (kColumns == 8) {
      // A lane without a token leaves what it has: sums of its column are nobody's, and shared memory is short of time.
      load_shared_16_if(used, at, only);
      out.columns[0] = only;
    } else {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) out.columns[n] = load_shared_16(at + n * 512);
    }
    return out;
  }
  __device__ __forceinline__ void run(int, const Fragments& a, const X& b) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      mma_16816(acc[n], a[0], b.columns[n].x, b.columns[n].y);
      mma_16816(acc[n], a[1], b.columns[n].z, b.columns[n].w);
    }
  }
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) { run(g, a, load(g)); }
  __device__ __forceinline__ void finish() {}
};

template <int kColumns, int kBuffers>
struct BlockProduct<kColumns, true, kBuffers> {
  // Each lets a warp be one group further ahead of the slowest of its four.
  static constexpr int kFragments = kBuffers;
  struct X {};
  float (&acc)[kColumns / 8][4];
  std::uint32_t x;
  int lane;
  int& fresh;  // 0: the sums are to begin at zero
  bool used;

  __device__ __forceinline__ X load(int) { return {}; }
  __device__ __forceinline__ void run(int g, const Fragments& a, const X&) {
    const std::uint32_t b = wgmma_descriptor_low<kColumns>(x) + g * (codec::kGroupCols * kColumns * 2 / 16);
    wgmma_fence();
    Wgmma<kColumns>::step(acc, a[0], wgmma_descriptor(b), fresh);
    Wgmma<kColumns>::step(acc, a[1], wgmma_descriptor(b + 32 * kColumns / 16), 1);
    wgmma_commit();
    fresh = 1;
    wgmma_wait<kFragments - 1>();  // the next fragments are free
  }
  // By mma.sync, which adds to the same bits: a loop with wgmma in it makes ptxas serialize all of them.
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) {
    const std::uint32_t b = x + g * (codec::kGroupCols * kColumns * 2) + lane * 4;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const std::uint32_t matrix = b + (step * 2 * (kColumns / 8) + n) * 128;  // 8 columns x 8 weights
        mma_16816(acc[n], a[step], load_shared(matrix), load_shared(matrix + kColumns / 8 * 128));
      }
    }
    fresh = 1;
  }
  __device__ __forceinline__ void finish() { wgmma_wait<0>(); }
};

#endif

}  // namespace glyd::cuda
