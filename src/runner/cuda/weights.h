#pragma once
// A model's weights in GPU memory: matrices packed or plain, each with the way its product is cut.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "cuda/products/products.h"
#include "model/checkpoint.h"
#include "runner/cuda/arena.h"
#include "runner/runner.h"

namespace glyd::runner {

// Device pointers; the arena that it was loaded into owns the memory.
struct DeviceMatrix {
  std::int64_t rows = 0, cols = 0;
  std::optional<cuda::ResidentMatrix> packed;
  cuda::PlainMatrix plain;  // when not packed
  cuda::Partition partition;
  const std::uint8_t* splits = nullptr;  // [row groups] Product::splits
  int max_splits = 1;
  std::uint64_t bytes = 0;
};

// Vectors are bf16, padded to a multiple of 8; null where the model has none.
struct DeviceLayer {
  const std::uint16_t *input_norm = nullptr, *qkv_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  const std::uint16_t *o_bias = nullptr, *post_norm = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  DeviceMatrix qkv, o, gate_up, down;
};

struct DeviceWeights {
  DeviceMatrix embed;
  std::vector<DeviceLayer> layers;
  const std::uint16_t* final_norm = nullptr;
  std::optional<DeviceMatrix> lm_head;  // none when the embedding is the head too
  std::uint64_t bytes = 0;              // all of it

  const DeviceMatrix& head() const { return lm_head ? *lm_head : embed; }
};

// What a matrix takes at most (packed ones of unknown weights: about), and the memory that loading needs beside the
// weights.
struct WeightSizes {
  std::uint64_t weights = 0;
  std::uint64_t load_scratch = 0;
  bool any_packed = false;
};
// `checkpoint` null: random weights.
WeightSizes weight_sizes(const model::ModelSpec& spec, const model::Checkpoint* checkpoint, WeightFormat format);

struct LoadSettings {
  WeightFormat format = WeightFormat::AsStored;
  int multiprocessors = 1;
  std::uint32_t largest_block = 0;  // bytes that the product kernels have room for
  cudaStream_t stream = nullptr;
};

// Fills `arena` matrix by matrix: files are read by all threads into pinned buffers while the buffer before is copied;
// packing, and checking what comes packed, is done on the GPU. `stages` receives the time of each. Throws Error(Model),
// Error(Memory).
DeviceWeights load_weights(const model::Checkpoint& checkpoint, const LoadSettings& settings, Arena& arena,
                           ThreadPool& pool, Progress& progress, std::vector<LoadStage>& stages);
DeviceWeights random_weights(const model::ModelSpec& spec, std::uint64_t seed, const LoadSettings& settings,
                             Arena& arena, Progress& progress, std::vector<LoadStage>& stages);

}  // namespace glyd::runner
