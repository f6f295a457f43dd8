#pragma once
// GPUs as the driver shows them: which there are, which one is meant, what a record should say of it.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/products/products.h"

namespace glyd::runner {

// Number of GPUs; `why` says what is missing when there are none.
int device_count(std::string& why);

// The index that "cuda" or "cuda:N" names. Throws Error(Usage).
int device_index(const std::string& device);

// The GPU of each of `ranks` ranks: "cuda:0,cuda:2" lists them, a name alone is the first of as many. Throws
// Error(Usage).
std::vector<int> rank_devices(const std::string& device, int ranks);

// "NVIDIA H200, sm_90, 139.8 GiB"
std::string describe_device(int index);

// The kernels for the GPU: those of its architecture, or the generic ones that GLYD_KERNELS=generic asks for. Throws
// Error(Usage) for another value of it, Error(Runtime) when this build has no kernels for the GPU.
cuda::KernelSet choose_kernels(int index);

std::vector<std::pair<std::string, std::string>> facts_of_device(int index);

// Bytes that the device has free now. Makes the device's context.
std::uint64_t free_memory(int index);
std::uint64_t total_memory(int index);

// Bytes a second that the device reads from its memory, measured over `bytes` at `data`.
double measure_read_bandwidth(const void* data, std::uint64_t bytes, cudaStream_t stream);

}  // namespace glyd::runner
