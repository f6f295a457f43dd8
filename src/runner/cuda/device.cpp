#include "runner/cuda/device.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "cuda/common/read_memory.h"
#include "runner/cuda/check.h"

namespace glyd::runner {

int device_count(std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  why = error == cudaErrorInsufficientDriver                 ? "the NVIDIA driver is missing or too old"
        : error == cudaSuccess || error == cudaErrorNoDevice ? "the driver shows no GPU"
                                                             : cudaGetErrorString(error);
  return 0;
}

int device_index(const std::string& device) {
  std::string why;
  const int count = device_count(why);
  if (count == 0) fail(Code::Usage, "--device {}: {}; use --device cpu", quote(device), why);
  const std::string digits = device == "cuda" ? "0" : device.substr(std::min(device.size(), device.find(':') + 1));
  const bool ok = device.starts_with("cuda") && !digits.empty() && digits.size() <= 4 &&
                  digits.find_first_not_of("0123456789") == std::string::npos;
  if (!ok || std::stoi(digits) >= count)
    fail(Code::Usage, "--device {}: expected cpu, cuda or cuda:0 to cuda:{}", quote(device), count - 1);
  return std::stoi(digits);
}

std::vector<int> rank_devices(const std::string& device, int ranks) {
  std::vector<int> devices;
  for (std::size_t begin = 0; begin <= device.size();) {
    const std::size_t end = std::min(device.size(), device.find(',', begin));
    devices.push_back(device_index(device.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (devices.size() == 1) {
    std::string why;
    const int count = device_count(why), first = devices.front();
    if (ranks > count - first)
      fail(Code::Usage, "-tp and -pp ask for {} GPUs, and there {} {} from cuda:{} on; lower them, or use --device cpu",
           ranks, count - first == 1 ? "is" : "are", count - first, first);
    for (int i = 1; i < ranks; ++i) devices.push_back(first + i);
  }
  if (devices.size() != static_cast<std::size_t>(ranks))
    fail(Code::Usage, "--device {}: that is {} GPUs, and -tp and -pp ask for {}", quote(device), devices.size(), ranks);
  return devices;
}

std::string describe_device(int index) {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess)
    return fmt::format("cannot be looked at: {}", cudaGetErrorString(error));
  return fmt::format("{}, sm_{}{}, {:.1f} GiB", properties.name, properties.major, properties.minor,
                     static_cast<double>(properties.totalGlobalMem) / (1 << 30));
}

cuda::KernelSet choose_kernels(int index) {
  int major = 0, minor = 0;
  check(cudaSetDevice(index), "choosing the GPU");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "the GPU's architecture");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "the GPU's architecture");
  if (const cudaError_t error = cuda::kernels_usable(); error != cudaSuccess) {
    cudaGetLastError();
    fail(
        Code::Runtime,
        "cuda:{} is {}: this build has no kernels for sm_{}{} ({}); build with -DGLYD_CUDA_ARCHITECTURES={}{}{} or use "
        "--device cpu",
        index, describe_device(index), major, minor, cudaGetErrorName(error), major, minor,
        major == 9 && minor == 0 ? "a" : "");
  }
  const char* wanted = std::getenv("GLYD_KERNELS");
  if (wanted == nullptr || std::string_view(wanted).empty() || std::string_view(wanted) == "auto")
    return major == 9 && minor == 0 && cuda::compiled_architecture() == 90 ? cuda::KernelSet::Hopper
                                                                           : cuda::KernelSet::Generic;
  if (std::string_view(wanted) != "generic")
    fail(Code::Usage, "GLYD_KERNELS={}: expected auto or generic", quote(std::string_view(wanted)));
  return cuda::KernelSet::Generic;
}

std::uint64_t free_memory(int index) {
  std::size_t free = 0, total = 0;
  check(cudaSetDevice(index), "choosing the GPU");
  check(cudaMemGetInfo(&free, &total), "the GPU's memory");
  return free;
}

std::uint64_t total_memory(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "the GPU's properties");
  return properties.totalGlobalMem;
}

std::vector<std::pair<std::string, std::string>> facts_of_device(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "the GPU's properties");
  int driver = 0, runtime = 0, core = 0, memory = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceGetAttribute(&core, cudaDevAttrClockRate, index);
  cudaDeviceGetAttribute(&memory, cudaDevAttrMemoryClockRate, index);
  std::string uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
    if (i == 3 || i == 5 || i == 7 || i == 9) uuid += '-';
  }
  return {{"gpu", properties.name},
          {"architecture", fmt::format("sm_{}{}", properties.major, properties.minor)},
          {"multiprocessors", fmt::format("{}", properties.multiProcessorCount)},
          {"clock_mhz", fmt::format("{}", core / 1000)},
          {"memory_clock_mhz", fmt::format("{}", memory / 1000)},
          {"cuda_driver", fmt::format("{}.{}", driver / 1000, driver % 1000 / 10)},
          {"cuda_runtime", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10)},
          {"uuid", uuid}};
}

double measure_read_bandwidth(const void* data, std::uint64_t bytes, cudaStream_t stream) {
  constexpr int kRuns = 10;
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  float least = 0;
  for (int i = 0; i < kRuns; ++i) {
    check(cudaEventRecord(begin, stream), "an event");
    check(cuda::read_memory(data, bytes, nullptr, stream), "reading memory");
    check(cudaEventRecord(end, stream), "an event");
    check(cudaEventSynchronize(end), "reading memory");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "an event");
    if (i == 0 || ms < least) least = ms;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return static_cast<double>(bytes) / (static_cast<double>(least) * 1e-3);
}

}  // namespace glyd::runner
