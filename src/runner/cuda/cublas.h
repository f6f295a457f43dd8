#pragma once
// cuBLAS, opened when it is needed: the program starts without it, and runs without it where nothing asks for it.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace glyd::runner {

class Cublas {
 public:
  // Opens the library and a handle whose work goes to `stream`; `workspace` stays the caller's. Throws Error(Runtime)
  // naming the library when it is missing.
  Cublas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // y [tokens][y_stride] = x [tokens][x_stride] * weights [rows][weight_stride]^T, bf16 in, fp32 accumulated; y is
  // bf16, or fp32 when `fp32`. Strides in elements.
  void multiply(const std::uint16_t* weights, std::int64_t rows, std::int64_t cols, std::int64_t weight_stride,
                const std::uint16_t* x, std::int64_t x_stride, std::int64_t tokens, void* y, std::int64_t y_stride,
                bool fp32);

 private:
  void* library_ = nullptr;
  void* handle_ = nullptr;
  void* gemm_ = nullptr;     // cublasGemmEx
  void* destroy_ = nullptr;  // cublasDestroy_v2
};

}  // namespace glyd::runner
