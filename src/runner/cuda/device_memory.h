#pragma once
// Owners of what CUDA gives out: memory, pinned memory, events, streams.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "runner/cuda/check.h"

namespace glyd::runner {

// Device memory beside the runner's Arena: for a while, or where other GPUs reach it. 0 bytes is no memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::uint64_t bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes), "taking device memory");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Host memory that the GPU copies from and to by itself.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::uint64_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(&data_), bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail(Code::Memory, "CUDA: the system gave no {} bytes of pinned host memory; free memory of the machine", bytes);
    }
    check(error, "pinned host memory");
  }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::uint8_t* get() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Stream {
 public:
  // `urgent`: its kernels' blocks go before those of other streams that wait for a place.
  explicit Stream(bool urgent = false) {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least), "a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace glyd::runner
