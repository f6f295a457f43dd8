#pragma once
// The CUDA backend: one model on one GPU. Only this folder sees CUDA's headers.

#include <memory>
#include <string>
#include <vector>

#include "runner/runner.h"

namespace glyd::runner {

// One line a GPU that the driver shows: "cuda:0 NVIDIA H200, sm_90, 139.8 GiB"; empty where there is no driver or GPU.
std::vector<std::string> list_cuda_devices();

// A runner on options.device ("cuda", "cuda:1"). Allocates nothing yet. Throws Error(Usage) naming what is missing: the
// driver, the GPU; Error(Runtime) when the build has no kernels for it.
std::unique_ptr<Runner> make_cuda_runner(const Options& options);

}  // namespace glyd::runner
