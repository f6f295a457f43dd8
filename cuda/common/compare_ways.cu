// Times the way to the L2 cache by atomic additions of nothing, which are done where an address belongs: loads would be
// answered from the near half, which keeps copies. A chain of them, each one's address from the one before, on some
// lines of a page; the shortest of several, since other traffic only adds. Near and far are 200 clocks apart on an
// H200, and lines of one half within 20.

#include "cuda/common/compare_ways.h"

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/packing/page_places.h"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kLines = 4, kLineBytes = 128, kChains = 3, kChain = 4;
constexpr int kSharedBytes = 120 * 1024;  // more than half of what there is: one thread block a multiprocessor

__device__ __forceinline__ std::int32_t clocks_to(std::uint64_t page, std::uint32_t first_line, std::uint32_t zero) {
  std::uint32_t sum = 0;
  for (std::uint32_t line = 0; line < kLines; ++line) {
    auto* at = reinterpret_cast<std::uint32_t*>(page + (first_line + line * (kPageBytes / kLineBytes / kLines)) *
                                                           kLineBytes % kPageBytes);
    at += atomicAdd(at, 0u) & zero;  // brings the line
    std::uint32_t least = ~0u;
    for (std::uint32_t chain = 0; chain < kChains; ++chain) {
      std::uint32_t begin, end;
      asm volatile("mov.u32 %0, %%clock;" : "=r"(begin)::"memory");
#pragma unroll
      for (std::uint32_t i = 0; i < kChain; ++i) at += atomicAdd(at, 0u) & zero;
      // The end waits for the chain: the branch does, and is never taken.
      if (reinterpret_cast<std::uint64_t>(at) == 0) asm volatile("trap;");
      asm volatile("mov.u32 %0, %%clock;" : "=r"(end)::"memory");
      least = min(least, end - begin);
    }
    sum += least / kChain;
  }
  return static_cast<std::int32_t>(sum / kLines);
}
__device__ __forceinline__ std::int32_t difference_at(std::uint64_t page, std::uint32_t first_line,
                                                      std::uint32_t zero) {
  return clocks_to(page, first_line, zero) - clocks_to(page + kPageBytes, first_line, zero);
}

__global__ void compare_ways_kernel(std::uint64_t reference, const std::uint64_t* pages, int count,
                                    std::int32_t* nearer, std::int32_t* differences, std::uint32_t zero) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x != 0) return;
  const std::int32_t own = difference_at(reference, blockIdx.x, zero);
  differences[processor_number() % kMaxProcessors] = own;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const std::int32_t difference = difference_at(pages[i], 0, zero);
    nearer[i] = own < 0 ? difference : -difference;
  }
}

}  // namespace

cudaError_t compare_ways(std::uint64_t reference, const std::uint64_t* pages, int count, std::int32_t* nearer,
                         std::int32_t* differences, int multiprocessors, cudaStream_t stream) {
  cudaError_t error = cudaMemsetAsync(differences, 0, kMaxProcessors * sizeof(std::int32_t), stream);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(compare_ways_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return launch(compare_ways_kernel, dim3(static_cast<unsigned>(multiprocessors)), dim3(32), kSharedBytes, stream,
                reference, pages, count, nearer, differences, 0u);
}

}  // namespace glyd::cuda
