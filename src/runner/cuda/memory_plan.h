#pragma once
// What a runner will take of the GPU's memory, worked out before any of it is.

#include <functional>

#include "model/config.h"
#include "runner/cuda/weights.h"
#include "runner/cuda/workspace.h"
#include "runner/runner.h"

namespace glyd::runner {

// What CUDA itself takes once a program uses a GPU (its context, the kernels, cuBLAS), measured on an H200 with
// CUDA 13. Counted as workspace, since a card of the size that --gpu-memory names would have to hold it too.
inline constexpr std::uint64_t kContextBytes = 640'000'000;
// Captured graphs of decode steps.
inline constexpr std::uint64_t kGraphBytes = 96'000'000;

struct DevicePlan {
  MemoryPlan total;
  WorkspaceShape shape;
  std::int64_t context = 0;
};

// What a plan is made for.
struct DeviceFacts {
  int multiprocessors = 1;
  std::uint64_t free = 0, all = 0;  // bytes of the GPU's memory as it is
  int ranks = 1;                    // of a stage: products are summed over them in fp32
  std::int64_t head_rows = 0;       // of the head, that this rank has
  bool logits = true;               // whether the logits come to this rank
  int sharing = 1;                  // ranks that share the GPU
  std::function<std::uint64_t(const WorkspaceShape&)> exchange = {};  // bytes that ranks exchange through
};

// The limit is options.memory_limit, or options.memory_share of all (0.92 when neither is given), and never more than
// is free; of each, a rank has its part of the GPU. Throws Error(Memory) with the numbers and the context that would
// fit.
DevicePlan plan_device(const model::Config& config, const WeightSizes& weights, const Options& options,
                       const DeviceFacts& device);

}  // namespace glyd::runner
