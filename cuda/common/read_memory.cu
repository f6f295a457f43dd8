// A read of memory, as fast as the chip can.
//
// What binds it: device memory, nothing else. Each thread has four 16-byte loads under way, a block reads neighbouring
// lines, and the grid is a few blocks a multiprocessor: more loads in flight were slower on an H200, not faster.

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/read_memory.h"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 512, kLoads = 4;

__global__ void __launch_bounds__(kThreads)
    read_memory_kernel(const uint4* __restrict__ data, std::uint64_t count, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * (kThreads * kLoads) + threadIdx.x; i < count;
       i += static_cast<std::uint64_t>(gridDim.x) * (kThreads * kLoads)) {
    uint4 v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) v[j] = load_streaming_16(data + i + j * kThreads);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x9E3779B9u && count == 0) *sink = sum;  // keeps the loads; count is not 0
}

}  // namespace

cudaError_t read_memory(const void* data, std::uint64_t bytes, std::uint32_t* sink, cudaStream_t stream) {
  const std::uint64_t count = bytes / (sizeof(uint4) * kThreads * kLoads) * (kThreads * kLoads);
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  read_memory_kernel<<<multiprocessors * 4, kThreads, 0, stream>>>(static_cast<const uint4*>(data), count, sink);
  return cudaGetLastError();
}

cudaError_t kernels_usable() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, read_memory_kernel);
}

int compiled_architecture() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, read_memory_kernel) == cudaSuccess ? attributes.ptxVersion : 0;
}

}  // namespace glyd::cuda
