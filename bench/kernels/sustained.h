#pragma once
// Work without a pause, which is when a chip's power limits its clock: time, clock, power.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <functional>
#include <optional>
#include <string>

#include "base/text.h"
#include "base/timing.h"
#include "runner/cuda/check.h"
#include "runner/cuda/decode_graphs.h"

namespace glyd::bench {

// The current device's counters by NVML, which comes with the driver; no header of it is needed. Nothing where it is
// not there or does not say.
class Counters {
 public:
  Counters() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    int device = 0;
    std::array<char, 32> bus{};
    runner::check(cudaGetDevice(&device), "the GPU");
    runner::check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "the GPU");
    const auto init = find<int (*)()>("nvmlInit_v2");
    const auto handle = find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    if (init == nullptr || handle == nullptr) return;
    initialized_ = init() == 0;
    if (!initialized_ || handle(bus.data(), &device_) != 0) device_ = nullptr;
  }
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;
  ~Counters() {
    const auto shutdown = find<int (*)()>("nvmlShutdown");
    if (initialized_ && shutdown != nullptr) shutdown();
    if (library_ != nullptr) dlclose(library_);
  }

  // Joules since the driver was loaded.
  std::optional<double> energy() const {
    const auto read = find<int (*)(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
    unsigned long long millijoules = 0;
    if (device_ == nullptr || read == nullptr || read(device_, &millijoules) != 0) return {};
    return static_cast<double>(millijoules) / 1000;
  }
  // MHz of the multiprocessors.
  std::optional<unsigned> clock() const {
    constexpr int kMultiprocessors = 1;
    const auto read = find<int (*)(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    unsigned megahertz = 0;
    if (device_ == nullptr || read == nullptr || read(device_, kMultiprocessors, &megahertz) != 0) return {};
    return megahertz;
  }

 private:
  template <class Function>
  Function find(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* library_ = nullptr;
  bool initialized_ = false;
  void* device_ = nullptr;
};

struct Sustained {
  double microseconds = 0;        // a replay of the second half
  std::optional<double> watts;    // on average over the second half
  std::optional<unsigned> clock;  // MHz, at the end
  std::string text() const {
    std::string out;
    if (clock) out += fmt::format(", {} MHz", *clock);
    if (watts) out += fmt::format(", {:.0f} W, {:.1f} mJ", *watts, *watts * microseconds / 1000);
    return out;
  }
};

// A graph of what `capture` launches, replayed for `seconds`, the first half of them until the clock has settled.
inline Sustained run_without_pause(cudaStream_t stream, double seconds, const std::function<void()>& capture) {
  const Counters counters;
  const runner::Graph graph(stream, capture);
  Sustained result;
  for (int half = 0; half < 2; ++half) {
    const auto start = Clock::now();
    const std::optional<double> before = counters.energy();
    int replays = 0;
    double elapsed = 0;
    while (elapsed < seconds / 2) {
      for (int i = 0; i < 32; ++i) graph.launch(stream);
      result.clock = counters.clock();  // while they run
      runner::check(cudaStreamSynchronize(stream), "a graph");
      replays += 32;
      elapsed = seconds_since(start);
    }
    result.microseconds = elapsed * 1e6 / replays;
    const std::optional<double> after = counters.energy();
    if (before && after) result.watts = (*after - *before) / elapsed;
  }
  return result;
}

}  // namespace glyd::bench
