#include "runner/runner.h"

#include "base/error.h"
#include "base/text.h"
#include "runner/cpu/available_memory.h"
#include "runner/cpu/cpu_runner.h"
#include "runner/parallel/parallel_runner.h"
#ifdef GLYD_WITH_CUDA
#include "runner/cuda/cuda_runner.h"
#endif

namespace glyd::runner {
namespace {

void check_ranks(const Options& options) {
  const int tp = options.tensor_parallel, pp = options.pipeline_parallel;
  if (tp < 1 || tp > kMaxRanks) fail(Code::Usage, "-tp {}: expected 1 to {}", tp, kMaxRanks);
  if (pp < 1 || pp > kMaxRanks) fail(Code::Usage, "-pp {}: expected 1 to {}", pp, kMaxRanks);
  if (tp * pp > kMaxRanks)
    fail(Code::Usage, "-tp {} -pp {}: that is {} ranks, at most {} are possible; lower one of the two", tp, pp, tp * pp,
         kMaxRanks);
}

}  // namespace

std::unique_ptr<Runner> make_runner(const Options& options) {
  check_ranks(options);
  const bool alone = options.tensor_parallel == 1 && options.pipeline_parallel == 1;
  if (options.device == "cpu") {
    if (!alone) return make_parallel_cpu_runner(options);
    return std::make_unique<cpu::CpuRunner>(options);
  }
  if (options.device == "cuda" || options.device.starts_with("cuda:")) {
#ifdef GLYD_WITH_CUDA
    if (!alone) {
      return std::make_unique<ParallelRunner>(options.tensor_parallel, cuda_ranks(options), options.pipeline_parallel);
    }
    return make_cuda_runner(options);
#else
    fail(Code::Usage, "--device {}: this build has no CUDA backend; use --device cpu, or build with -DGLYD_CUDA=ON",
         printable(options.device));
#endif
  }
  fail(Code::Usage, "--device {}: expected cpu, cuda or cuda:NUMBER", quote(options.device));
}

std::string default_device() {
#ifdef GLYD_WITH_CUDA
  if (!list_cuda_devices().empty()) return "cuda";
#endif
  return "cpu";
}

std::vector<std::string> list_devices() {
  std::vector<std::string> devices{fmt::format("cpu: {}, {:.1f} GB of memory available",
                                               cpu::CpuRunner({}).device_name(),
                                               static_cast<double>(cpu::available_memory()) * 1e-9)};
#ifdef GLYD_WITH_CUDA
  for (std::string& device : list_cuda_devices()) devices.push_back(std::move(device));
#else
  devices.push_back("cuda: this build has no CUDA backend");
#endif
  return devices;
}

}  // namespace glyd::runner
