#pragma once
// How every kernel is launched. A step is a chain of some hundred short kernels, so each is allowed to start while its
// predecessor drains (programmatic dependent launch, sm_90 and newer): it may prepare what nobody writes (weights,
// tables, barriers), then waits, and only then touches memory that earlier kernels wrote or read.

#include <cuda_runtime.h>

#include <cstddef>

namespace glyd::cuda {

// Whether the current device and the code for it know dependent launch; asked once a device.
bool has_dependent_launch();

// Launches `kernel`, which must call wait_for_previous() in every thread that touches memory other kernels write.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = has_dependent_launch() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

#ifdef __CUDACC__
// Blocks until all earlier kernels of the stream have finished and their writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream begin to start. It still waits for this one's end before it reads anything.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

}  // namespace glyd::cuda
