#pragma once
// Bytes that the CPU runner will allocate, worked out before any of it is.

#include <cstdint>

#include "model/config.h"
#include "runner/runner.h"

namespace glyd::runner::cpu {

// options.context, or what the model was configured for when that is 0. Throws Error(Usage) for a value out of range.
std::int64_t context_of(const model::Config& config, const Options& options);

// Throws Error(Memory) with the numbers, and the context that would fit, when `weight_bytes`, workspace and the KV
// cache (of options.kv_blocks, else of one sequence of the longest context) are more than `available`. With
// options.kv_blocks 0 the plan takes as many blocks as max_sequences * context needs, or as fit while a sixteenth of
// `available` stays free.
// `available`: this rank's share of what there is, one of `ranks` equal ones. `packs`: weights are packed while
// loading, and weight_bytes is what they are before; the error says so.
MemoryPlan plan_memory(const model::Config& config, std::uint64_t weight_bytes, const Options& options, int threads,
                       std::uint64_t available, int ranks = 1, bool packs = false);

}  // namespace glyd::runner::cpu
