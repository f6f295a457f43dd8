#pragma once
// Launchers of the device code, one a kernel. Pointers are device pointers; errors come back as cudaError_t.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace glyd::cuda {

// out[i] = bf16 bits in[i] widened to fp32, i in [0, count). No alignment is asked of either pointer beyond its type's.
cudaError_t widen_bf16(const std::uint16_t* in, float* out, std::size_t count, cudaStream_t stream);

}  // namespace glyd::cuda
