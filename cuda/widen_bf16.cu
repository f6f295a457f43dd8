// bf16 to fp32, element by element.
//
// What binds it: memory, 6 bytes an element and one shift. One element a thread keeps every access of a warp in one or
// two 128-byte lines; that is enough for a conversion that runs once a tensor. CPU reference: to_float
// (src/base/bf16.h).

#include "cuda/kernels.h"

namespace glyd::cuda {
namespace {

constexpr unsigned kThreads = 256;

__global__ void widen_bf16_kernel(const std::uint16_t* __restrict__ in, float* __restrict__ out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = __uint_as_float(static_cast<std::uint32_t>(in[i]) << 16);
}

}  // namespace

cudaError_t widen_bf16(const std::uint16_t* in, float* out, std::size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const std::size_t blocks = (count + kThreads - 1) / kThreads;
  if (blocks > 0x7FFFFFFFu) return cudaErrorInvalidValue;
  widen_bf16_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(in, out, count);
  return cudaGetLastError();
}

}  // namespace glyd::cuda
