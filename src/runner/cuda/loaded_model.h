#pragma once
// A model, or a rank's part of one, in a GPU's memory with all that its steps work in.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/checkpoint.h"
#include "model/sharding.h"
#include "runner/cuda/arena.h"
#include "runner/cuda/decode_graphs.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/forward.h"
#include "runner/cuda/memory_plan.h"
#include "runner/cuda/rank_exchange.h"
#include "runner/cuda/rank_group.h"
#include "runner/cuda/step_input.h"
#include "runner/cuda/weights.h"
#include "runner/runner.h"

namespace glyd::runner {

// Where a runner runs. `group`, `communicator` null: the only rank.
struct Place {
  int index = 0;  // of the GPU
  int multiprocessors = 1;
  cuda::KernelSet kernels = cuda::KernelSet::Hopper;
  RankGroup* group = nullptr;
  Communicator* communicator = nullptr;

  model::Shard shard_of(const model::Config& config) const;
};

// What is loaded: a checkpoint's weights, or made-up ones where it is null.
struct Origin {
  model::Config config;
  model::ModelSpec spec;
  const model::Checkpoint* checkpoint = nullptr;
  std::uint64_t seed = 0;
};
Origin origin_of(const model::Checkpoint& checkpoint);
Origin random_origin(const model::Config& config, std::uint64_t seed);

struct LoadedModel {
  model::Config config;  // as this rank computes it
  model::Shard shard;
  std::uint64_t taken = 0;  // bytes of the device that are no longer free since the load and the captures of graphs
  Stream stream;
  Arena arena;
  std::optional<RankExchange> exchange;  // with other ranks, where there are some
  DeviceWeights weights;
  WorkspaceShape shape;
  Workspace work{};
  std::uint16_t *keys = nullptr, *values = nullptr;
  std::int64_t kv_blocks = 0;
  std::optional<Forward> forward;
  std::optional<StepInput> input;
  std::optional<SamplingInput> sampling;
  PinnedMemory output;  // ids chosen, then ids drawn
  std::map<int, DecodeGraphs> graphs;

  // Waits for the stream. Throws Aborted when another rank has failed meanwhile.
  void synchronize();
};

// Throws Error(Usage), Error(Memory).
DevicePlan plan_model(const Origin& origin, const Options& options, const Place& place);

// On the current device, which is the place's; `stages` receives the times. All ranks do it together. Throws
// Error(Model), Error(Memory).
std::unique_ptr<LoadedModel> load_model(const Origin& origin, const Options& options, const Place& place,
                                        Progress& progress, std::vector<LoadStage>& stages);

}  // namespace glyd::runner
