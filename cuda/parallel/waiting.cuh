#pragma once
// Words that GPUs leave in each other's memory.

#include <cstdint>

namespace glyd::cuda {

__device__ __forceinline__ void store_release(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// Until the word has come to `number` (numbers wrap around), or somebody has failed.
__device__ __forceinline__ void wait_for_word(const std::uint32_t* word, std::uint32_t number, const int* stop) {
  constexpr int kPatience = 4096;  // looks between two at host memory, which are slow
  for (int looks = 1; static_cast<std::int32_t>(load_acquire(word) - number) < 0; ++looks) {
    if (looks % kPatience == 0 && *static_cast<const volatile int*>(stop) != 0) return;
  }
}

// Called by all threads of every block when its writes are issued. True in the threads of the block that comes last;
// whatever it then releases is seen after the writes of all. `count` is zero before and afterwards.
__device__ __forceinline__ bool last_block(std::uint32_t* count) {
  __shared__ bool last;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(count, 1) == gridDim.x - 1;
    if (last) *count = 0;
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

}  // namespace glyd::cuda
