#pragma once
// The weights of a model in memory, one copy, in the layout that the kernels read: all of them, or a rank's part.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "model/checkpoint.h"
#include "model/sharding.h"
#include "model/weights.h"
#include "runner/cpu/weight_rows.h"
#include "runner/runner.h"

namespace glyd::runner::cpu {

struct LayerWeights {
  std::vector<float> input_norm, qkv_bias, q_norm, k_norm, o_bias, post_norm, gate_up_bias, down_bias;  // empty: none
  std::unique_ptr<WeightRows> qkv, o, gate_up, down;
};

struct Weights {
  std::unique_ptr<WeightRows> embed;  // the first stage's
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // this and the head: the last stage's
  // Null when the head is `embed`; a rank's rows of that are seen through this.
  std::unique_ptr<WeightRows> lm_head;
  bool head_in_embed = false;  // the head has no memory of its own

  std::uint64_t bytes() const;  // in memory

  const WeightRows& head() const { return lm_head ? *lm_head : *embed; }

  // Bytes that loading allocates at most: of the weights as bf16, or in a format, where what has yet to be packed, as a
  // part has that cuts units, counts as bf16 (it may not get smaller). Saturates instead of overflowing.
  static std::uint64_t bytes(const model::ModelSpec& spec, const model::Shard& shard);
  static std::uint64_t bytes(const model::Checkpoint& checkpoint, const model::Shard& shard, WeightFormat format);

  // Reads the shard on all threads of `pool`; what is to be packed and is not yet is packed a matrix at a time. Parts
  // of packed matrices are taken as they are where no unit is cut, and packed again where one is. Throws Error(Model)
  // or Error(Memory).
  static Weights load(const model::Checkpoint& checkpoint, const model::Shard& shard, WeightFormat format,
                      ThreadPool& pool, Progress& progress);

  // Weights that look like a trained model's (normal, deviation 0.02; norms 1), for measurements of shapes without
  // files. The same seed gives the same weights in every format, and shards of the same model.
  static Weights random(const model::ModelSpec& spec, const model::Shard& shard, WeightFormat format,
                        std::uint64_t seed, ThreadPool& pool, Progress& progress);
};

}  // namespace glyd::runner::cpu
