#include "runner/cuda/cuda_runner.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/text.h"

namespace glyd::runner {
namespace {

// Number of GPUs; `why` says what is missing when there are none.
int device_count(std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  why = error == cudaErrorInsufficientDriver                 ? "the NVIDIA driver is missing or too old"
        : error == cudaSuccess || error == cudaErrorNoDevice ? "the driver shows no GPU"
                                                             : cudaGetErrorString(error);
  return 0;
}

// "cuda" is device 0, "cuda:N" device N.
int device_index(const std::string& device, int count) {
  const std::string digits = device == "cuda" ? "0" : device.substr(device.find(':') + 1);
  const bool ok = device.starts_with("cuda") && !digits.empty() && digits.size() <= 4 &&
                  digits.find_first_not_of("0123456789") == std::string::npos;
  if (!ok || std::stoi(digits) >= count) {
    fail(Code::Usage, "--device {}: expected cpu, cuda or cuda:0 to cuda:{}", quote(device), count - 1);
  }
  return std::stoi(digits);
}

std::string describe(int index) {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return fmt::format("cuda:{} cannot be looked at: {}", index, cudaGetErrorString(error));
  }
  return fmt::format("cuda:{} {}, sm_{}{}, {:.1f} GiB", index, properties.name, properties.major, properties.minor,
                     static_cast<double>(properties.totalGlobalMem) / (1 << 30));
}

}  // namespace

std::vector<std::string> list_cuda_devices() {
  std::string why;
  std::vector<std::string> lines;
  const int count = device_count(why);
  for (int i = 0; i < count; ++i) lines.push_back(describe(i));
  return lines;
}

std::unique_ptr<Runner> make_cuda_runner(const Options& options) {
  std::string why;
  const int count = device_count(why);
  if (count == 0) fail(Code::Usage, "--device {}: {}; use --device cpu", quote(options.device), why);
  const int index = device_index(options.device, count);
  fail(Code::Usage, "--device {}: {}: this version does not run models on a GPU yet; use --device cpu",
       quote(options.device), describe(index));
}

}  // namespace glyd::runner
