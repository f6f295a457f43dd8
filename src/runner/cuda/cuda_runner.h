#pragma once
// The CUDA backend: a model, or a rank's part of it, on one GPU. Only this folder sees CUDA's headers.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/parallel/communicator.h"
#include "runner/runner.h"

namespace glyd::runner {

// One line a GPU that the driver shows: "cuda:0 NVIDIA H200, sm_90, 139.8 GiB"; empty where there is no driver or GPU.
std::vector<std::string> list_cuda_devices();

// A runner on options.device ("cuda", "cuda:1"). Allocates nothing yet. Throws Error(Usage) naming what is missing: the
// driver, the GPU; Error(Runtime) when the build has no kernels for it.
std::unique_ptr<Runner> make_cuda_runner(const Options& options);

// Makes the runner of each rank of a model over several GPUs, which are those that options.device lists
// ("cuda:0,cuda:2"), or as many as there are ranks from the one it names on. A runner keeps what the ranks share; its
// communicator stays the caller's. Throws as make_cuda_runner().
std::function<std::unique_ptr<Runner>(Communicator&)> cuda_ranks(const Options& options);

}  // namespace glyd::runner
