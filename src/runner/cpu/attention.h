#pragma once
// Causal attention over the paged KV cache, query head i with kv head i / (nq / nkv).

#include <span>

#include "model/config.h"
#include "runner/batch.h"
#include "runner/cpu/context.h"
#include "runner/cpu/kv_cache.h"

namespace glyd::runner::cpu {

// For each token of the batch and each query head: s_j = (q . k_j) * d^-0.5 for all j <= position, softmax in fp32, out
// = bf(sum of softmax_j v_j). `q` has padded heads (heads.h), `out` takes nq * head_dim values a row. `sequence_of`
// [tokens] is each token's row of batch.block_tables.
//
// The softmax runs online over the blocks of 16 positions, counted from the sequence's start: the order of all sums
// depends on the token's position alone, not on chunks, neighbours or the blocks' numbers.
void attention(Context& context, const model::Config& config, const Batch& batch,
               std::span<const std::int32_t> sequence_of, int layer, const KvCache& cache, FloatRows q, FloatRows out);

}  // namespace glyd::runner::cpu
