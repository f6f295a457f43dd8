#pragma once
// CUDA errors as Glyd errors.

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace glyd::runner {

// Throws Error when `error` is one: Memory for a lack of it, else Runtime; `what` says what was tried ("the packed
// product").
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or a later launch would find it and take it for its own
  if (error == cudaErrorMemoryAllocation)
    fail(Code::Memory, "CUDA: {}: not enough GPU memory; close other programs on the GPU or lower --gpu-memory", what);
  if (error == cudaErrorNoKernelImageForDevice)
    fail(Code::Runtime, "CUDA: {}: this build has no kernels for the GPU; build with -DGLYD_CUDA_ARCHITECTURES for it",
         what);
  fail(Code::Runtime, "CUDA: {} failed: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace glyd::runner
