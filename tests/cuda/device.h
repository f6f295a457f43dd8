#pragma once
// What GPU tests share: they carry the tag [gpu] and skip, saying so, where there is no device.

#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <vector>

namespace glyd::test {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// First line of a GPU test.
#define GLYD_NEEDS_GPU()                       \
  do {                                         \
    if (!glyd::test::has_gpu()) {              \
      WARN("skipped: no GPU on this machine"); \
      return;                                  \
    }                                          \
  } while (false)

#define CUDA_REQUIRE(call)                                 \
  do {                                                     \
    const cudaError_t glyd_error = (call);                 \
    INFO(#call << ": " << cudaGetErrorString(glyd_error)); \
    REQUIRE(glyd_error == cudaSuccess);                    \
  } while (false)

// `count` elements of device memory, filled with 0xCD so that an element nobody wrote is seen.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    CUDA_REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
    CUDA_REQUIRE(cudaMemset(data_, 0xCD, count * sizeof(T)));
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) {
    CUDA_REQUIRE(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return data_; }
  std::vector<T> to_host() const {
    std::vector<T> host(count_);
    CUDA_REQUIRE(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

}  // namespace glyd::test
