#pragma once
// A model's weights in GPU memory: matrices packed or plain, each with the way its product is cut.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "cuda/products/products.h"
#include "model/sharding.h"
#include "runner/cuda/arena.h"
#include "runner/cuda/weight_source.h"
#include "runner/runner.h"

namespace glyd::runner {

// Device pointers; the arena that it was loaded into owns the memory.
struct DeviceMatrix {
  std::int64_t rows = 0, cols = 0;
  std::optional<cuda::ResidentMatrix> packed;
  cuda::PlainMatrix plain;  // when not packed
  cuda::Partition partition;
  const std::uint8_t* splits = nullptr;  // [row groups] Product::splits
  std::uint64_t bytes = 0;
};

// Vectors are bf16, padded to a multiple of 8; null where the model has none.
struct DeviceLayer {
  const std::uint16_t *input_norm = nullptr, *qkv_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  const std::uint16_t *o_bias = nullptr, *post_norm = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  DeviceMatrix qkv, o, gate_up, down;
};

// Of a rank: its part of each matrix. What its stage does not have is empty.
struct DeviceWeights {
  std::optional<DeviceMatrix> embed;
  std::vector<DeviceLayer> layers;
  const std::uint16_t* final_norm = nullptr;
  std::optional<DeviceMatrix> lm_head;  // none when the embedding, all of it, is the head too
  std::uint64_t bytes = 0;              // all of it

  bool has_head() const { return final_norm != nullptr; }
  const DeviceMatrix& head() const { return lm_head ? *lm_head : *embed; }
};

// What the matrices take at most (packed ones of unknown weights: about), and the memory that loading needs beside the
// weights.
struct WeightSizes {
  std::uint64_t weights = 0;
  std::uint64_t load_scratch = 0;
  bool any_packed = false;
};
// `from` is only asked for sizes. `estimated`: weights that are packed at load may take a little more.
WeightSizes weight_sizes(const model::ModelSpec& spec, const model::Shard& shard, const WeightSource& from,
                         WeightFormat format, bool estimated);

struct LoadSettings {
  WeightFormat format = WeightFormat::AsStored;
  int multiprocessors = 1;
  cuda::KernelSet kernels = cuda::KernelSet::Generic;
  std::uint32_t largest_block = 0;  // bytes that the product kernels have room for
  cudaStream_t stream = nullptr;
};

// Fills `arena` matrix by matrix; packing, and checking what comes packed, is done on the GPU. `pack_seconds` receives
// the time of it. Throws Error(Model), Error(Memory).
DeviceWeights load_weights(const model::ModelSpec& spec, const model::Shard& shard, WeightSource& from,
                           const LoadSettings& settings, const WeightSizes& sizes, Arena& arena, Progress& progress,
                           double& pack_seconds);

// Bytes of bf16 that load_weights() reports progress over.
std::uint64_t file_bytes(const model::ModelSpec& spec, const model::Shard& shard);

}  // namespace glyd::runner
