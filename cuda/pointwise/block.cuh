#pragma once
// What the threads of a block find out together, always in the same order.

#include "cuda/pointwise/order.cuh"

namespace glyd::cuda {

// Maximum over a block of `Warps` warps, in every thread. Once a kernel: nothing guards a second use.
template <int Warps>
__device__ Key block_max(Key key) {
  __shared__ Key of_warps[Warps];
  key = warp_max(key);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = key;
  __syncthreads();
  return warp_max(of_warps[threadIdx.x % Warps]);
}

// Sum of the values of all threads before this one; `total`: of all. For blocks of 32 warps. `scratch`: 33
// values in shared memory.
template <class T>
__device__ T exclusive_scan(T value, T* scratch, T& total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = value;  // of the warp's lanes up to this one
  for (int offset = 1; offset < 32; offset *= 2) {
    const T before = __shfl_up_sync(~0u, sum, offset);
    if (static_cast<int>(lane) >= offset) sum += before;
  }
  __syncthreads();  // scratch may still be read
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    T warps = scratch[lane];
    for (int offset = 1; offset < 32; offset *= 2) {
      const T before = __shfl_up_sync(~0u, warps, offset);
      if (static_cast<int>(lane) >= offset) warps += before;
    }
    const T before = __shfl_up_sync(~0u, warps, 1);
    scratch[lane] = lane == 0 ? T{} : before;
    if (lane == 31) scratch[32] = warps;
  }
  __syncthreads();
  const T before = __shfl_up_sync(~0u, sum, 1);
  total = scratch[32];
  return lane == 0 ? scratch[warp] : scratch[warp] + before;
}

}  // namespace glyd::cuda
