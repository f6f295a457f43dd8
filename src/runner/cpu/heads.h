#pragma once
// From the projection to attention: q and k are normalised (Qwen3), rotated, and k and v go into the cache.

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/config.h"
#include "runner/cpu/context.h"
#include "runner/cpu/kv_cache.h"
#include "runner/cpu/rope.h"

namespace glyd::runner::cpu {

// Rows of `qkv` hold nq query heads, nkv key heads, nkv value heads of head_dim values. Rows of `q` take the query
// heads, each padded to whole lanes. `q_norm` and `k_norm` [head_dim] are null when the family has none. Token t goes
// to slots[t].
void split_heads(Context& context, const model::Config& config, FloatRows qkv, const float* q_norm, const float* k_norm,
                 const RopeTable& rope, std::span<const std::int32_t> slots, int layer, KvCache& cache, FloatRows q);

}  // namespace glyd::runner::cpu
