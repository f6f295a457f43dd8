#include "runner/cuda/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include "base/error.h"

namespace glyd::runner {
namespace {

// As the library exports it (the header adds overloads).
using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                              const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                              cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(Code::Runtime, "cuBLAS: {} failed with status {}{}", what, static_cast<int>(status),
       status == CUBLAS_STATUS_ALLOC_FAILED ? ": not enough GPU memory; lower --gpu-memory" : "");
}

template <class Function>
Function* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr)
    fail(Code::Runtime, "cuBLAS: the library has no {}; install the CUDA toolkit's cuBLAS 12 or 13", name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

Cublas::Cublas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes) {
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.13",
                           "/usr/local/cuda/lib64/libcublas.so.12"}) {
    library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) break;
  }
  if (library_ == nullptr) {
    fail(Code::Runtime,
         "cuBLAS is missing (libcublas.so.13 or .12); install it with the CUDA toolkit or put its folder on "
         "LD_LIBRARY_PATH");
  }
  const auto create = symbol<decltype(cublasCreate_v2)>(library_, "cublasCreate_v2");
  const auto set_stream = symbol<decltype(cublasSetStream_v2)>(library_, "cublasSetStream_v2");
  const auto set_workspace = symbol<decltype(cublasSetWorkspace_v2)>(library_, "cublasSetWorkspace_v2");
  gemm_ = reinterpret_cast<void*>(symbol<GemmEx>(library_, "cublasGemmEx"));
  destroy_ = reinterpret_cast<void*>(symbol<decltype(cublasDestroy_v2)>(library_, "cublasDestroy_v2"));
  cublasHandle_t handle = nullptr;
  check(create(&handle), "cublasCreate");
  handle_ = handle;
  try {
    check(set_stream(handle, stream), "cublasSetStream");
    check(set_workspace(handle, workspace, workspace_bytes), "cublasSetWorkspace");
  } catch (...) {
    reinterpret_cast<decltype(cublasDestroy_v2)*>(destroy_)(handle);
    throw;
  }
}

// The library stays open: its own threads and device state do not survive a dlclose().
Cublas::~Cublas() {
  if (handle_ != nullptr) reinterpret_cast<decltype(cublasDestroy_v2)*>(destroy_)(static_cast<cublasHandle_t>(handle_));
}

void Cublas::multiply(const std::uint16_t* weights, std::int64_t rows, std::int64_t cols, std::int64_t weight_stride,
                      const std::uint16_t* x, std::int64_t x_stride, std::int64_t tokens, void* y,
                      std::int64_t y_stride, bool fp32) {
  const float one = 1, zero = 0;
  const auto gemm = reinterpret_cast<GemmEx*>(gemm_);
  check(gemm(static_cast<cublasHandle_t>(handle_), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(rows),
             static_cast<int>(tokens), static_cast<int>(cols), &one, weights, CUDA_R_16BF,
             static_cast<int>(weight_stride), x, CUDA_R_16BF, static_cast<int>(x_stride), &zero, y,
             fp32 ? CUDA_R_32F : CUDA_R_16BF, static_cast<int>(y_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace glyd::runner
