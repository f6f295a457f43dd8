#pragma once
// A block's weights, decoded or plain, times its activations in shared memory, for sm_90a: by mma.sync for few columns
// and by wgmma for more. Both add to the same bits.

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/products/weights.cuh"
#include "cuda/products/wgmma.cuh"

namespace glyd::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// acc += a * x by mma.sync for one group, whose activations lie at `x` in wgmma's layout. It adds to the same bits.
template <int kColumns>
__device__ __forceinline__ void multiply_group(float (&acc)[kColumns / 8][4], const Fragments& a, std::uint32_t x,
                                               int lane) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const std::uint32_t matrix = x + lane * 4 + (step * 2 * (kColumns / 8) + n) * 128;  // 8 columns x 8 weights
      mma_16816(acc[n], a[step], load_shared(matrix), load_shared(matrix + kColumns / 8 * 128));
    }
  }
}

// acc += a * x, a group of two k16 steps at a time, from a block's activations in shared memory. A block after the
// other: open(), run() for each group, close(); for a short block run_slowly() instead, with finish() before and behind
// it. wgmma goes on behind close(), which says what to arrive on when it no longer reads the activations: nobody else
// uses acc, and nothing but further blocks follows, until finish().
template <int kColumns, bool kWarpGroup, int kBuffers>
class BlockProduct;

template <int kColumns, int kBuffers>
class BlockProduct<kColumns, false, kBuffers> {
 public:
  static constexpr int kFragments = 2;
  struct X {
    uint4 columns[kColumns / 8];
  };

  float acc[kColumns / 8][4] = {};

  // `used`: whether the lane's column in the only 8 is a token's.
  __device__ __forceinline__ BlockProduct(int lane, bool used) : lane_(lane), used_(used) {}
  __device__ __forceinline__ void open(std::uint32_t x) { x_ = x; }
  __device__ __forceinline__ X load(int g) {
    X out;
    const std::uint32_t at = x_ + g * (codec::kGroupCols * kColumns * 2) + lane_ * 16;
    if constexpr (kColumns == 8) {
      // A lane without a token leaves what it has: sums of its column are nobody's, and shared memory is short of time.
      load_shared_16_if(used_, at, only_);
      out.columns[0] = only_;
    } else {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) out.columns[n] = load_shared_16(at + n * 512);
    }
    return out;
  }
  __device__ __forceinline__ void run(int g, const Fragments (&a)[kFragments], const X& b) {
    add(a[g % kFragments], b);
  }
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) { add(a, load(g)); }
  // All lanes arrive, each for what it has read: one for all of them is no faster, and racecheck does not follow it.
  __device__ __forceinline__ void close(std::uint32_t barrier) { barrier_arrive(barrier); }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ void restart() {}

 private:
  __device__ __forceinline__ void add(const Fragments& a, const X& b) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      mma_16816(acc[n], a[0], b.columns[n].x, b.columns[n].y);
      mma_16816(acc[n], a[1], b.columns[n].z, b.columns[n].w);
    }
  }

  int lane_;
  bool used_;
  std::uint32_t x_ = 0;
  uint4 only_{};
};

template <int kColumns, int kBuffers>
class BlockProduct<kColumns, true, kBuffers> {
 public:
  // Half of them are multiplied while the other half is decoded. The four warps meet at each wgmma: the more groups it
  // takes, the less they wait for each other.
  static constexpr int kFragments = kBuffers, kTogether = kBuffers / 2;
  static_assert(codec::kBlockGroups % kTogether == 0 && kBuffers % 2 == 0);
  struct X {};

  float acc[kColumns / 8][4] = {};

  __device__ __forceinline__ BlockProduct(int lane, bool) : lane_(lane) {}
  __device__ __forceinline__ void open(std::uint32_t x) { x_ = x; }
  __device__ __forceinline__ X load(int) { return {}; }
  __device__ __forceinline__ void run(int g, const Fragments (&a)[kFragments], const X&) {
    if ((g + 1) % kTogether != 0) return;
    wgmma_fence();
#pragma unroll
    for (int i = g + 1 - kTogether; i <= g; ++i) {
      const std::uint32_t b = wgmma_descriptor_low<kColumns>(x_) + i * (codec::kGroupCols * kColumns * 2 / 16);
      Wgmma<kColumns>::step(acc, a[i % kFragments][0], wgmma_descriptor(b), i == 0 ? fresh_ : 1);
      Wgmma<kColumns>::step(acc, a[i % kFragments][1], wgmma_descriptor(b + 32 * kColumns / 16), 1);
    }
    wgmma_commit();
    fresh_ = 1;
    wgmma_wait<1>();              // the other fragments are free
    if (g < kTogether) arrive();  // the block before is done
  }
  // Not by wgmma: a loop with it makes ptxas serialize all of them.
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) {
    multiply_group<kColumns>(acc, a, x_ + g * (codec::kGroupCols * kColumns * 2), lane_);
    fresh_ = 1;
  }
  __device__ __forceinline__ void close(std::uint32_t barrier) { closed_ = barrier; }
  __device__ __forceinline__ void finish() {
    wgmma_wait<0>();
    arrive();
  }
  // The sums begin at zero again.
  __device__ __forceinline__ void restart() { fresh_ = 0; }

 private:
  __device__ __forceinline__ void arrive() {
    if (closed_ != 0) barrier_arrive(closed_);
    closed_ = 0;
  }

  int lane_;
  int fresh_ = 0;
  std::uint32_t x_ = 0;
  std::uint32_t closed_ = 0;  // the barrier of the block before; 0: there is none
};

#endif

}  // namespace glyd::cuda
