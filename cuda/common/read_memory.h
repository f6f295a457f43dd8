#pragma once
// Reads memory and does nothing else, to measure how fast that goes.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace glyd::cuda {

// Reads `bytes` (a multiple of 64 KiB) at `data` once; `sink` (one word) is never written in fact. Also the kernel that
// is asked whether this build has code for the device (kernels_usable()).
cudaError_t read_memory(const void* data, std::uint64_t bytes, std::uint32_t* sink, cudaStream_t stream);

// cudaErrorNoKernelImageForDevice or the like where this build has no code for the current device.
cudaError_t kernels_usable();

// The architecture that the device's code was compiled for: 90 for sm_90a, and 80 on any newer chip whose code the
// driver made from that one's PTX. 0 where there is none.
int compiled_architecture();

}  // namespace glyd::cuda
