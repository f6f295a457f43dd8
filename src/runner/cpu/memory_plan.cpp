#include "runner/cpu/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/sizes.h"
#include "runner/cpu/context.h"
#include "runner/cpu/kv_cache.h"
#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max() - kBlockSize;  // slots are int32

void check_range(const char* option, std::int64_t value, std::int64_t lowest, std::int64_t highest) {
  if (value < lowest || value > highest) fail(Code::Usage, "{} {}: expected {} to {}", option, value, lowest, highest);
}

// The buffers of CpuRunner's Workspace, RoPE tables, logits of a step, scratch of the threads.
std::uint64_t workspace_bytes(const model::Config& c, const Options& options, int threads) {
  const std::uint64_t hidden = padded(unsigned_of(c.hidden_size)), inner = unsigned_of(c.intermediate_size);
  const std::uint64_t head = unsigned_of(c.head_dim), q = unsigned_of(c.heads) * head,
                      kv = unsigned_of(c.kv_heads) * head;
  const std::uint64_t per_token = 3 * hidden + padded(q + 2 * kv) + unsigned_of(c.heads) * padded(head) + padded(q) +
                                  padded(2 * inner) + padded(inner) + unsigned_of(c.rope.dim);
  const std::uint64_t longest_row = std::max({hidden, padded(q), padded(inner)});
  const std::uint64_t scratch = kRowTile * longest_row * (sizeof(Bf16) + sizeof(float)) * unsigned_of(threads);
  const std::uint64_t logits =
      multiply(multiply(unsigned_of(options.max_sequences), unsigned_of(c.vocab_size)), sizeof(float));
  return add(multiply(multiply(unsigned_of(options.max_batch_tokens), per_token), sizeof(float)), add(scratch, logits));
}

std::string gigabytes(std::uint64_t bytes) {
  return bytes < 10'000'000 ? fmt::format("{:.2f} MB", static_cast<double>(bytes) * 1e-6)
                            : fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace

std::int64_t context_of(const model::Config& config, const Options& options) {
  const std::int64_t context = options.context == 0 ? config.max_positions : options.context;
  check_range("context", context, 1, kMaxTokens);
  return context;
}

MemoryPlan plan_memory(const model::Config& config, std::uint64_t weight_bytes, const Options& options, int threads,
                       std::uint64_t available, int ranks, bool packs) {
  const std::int64_t context = context_of(config, options);
  check_range("max_batch_tokens", options.max_batch_tokens, 1, 1 << 20);
  check_range("max_sequences", options.max_sequences, 1, 1 << 20);
  check_range("kv_blocks", options.kv_blocks, 0, kMaxTokens / kBlockSize);

  MemoryPlan plan;
  plan.available = available;
  plan.weights = weight_bytes;
  plan.workspace = workspace_bytes(config, options, threads);
  const std::uint64_t fixed = add(plan.weights, plan.workspace);
  const std::uint64_t block_bytes = KvCache::block_bytes(config, options.activations);
  const auto blocks_within = [&](std::uint64_t memory) {
    return static_cast<std::int64_t>(
        std::min(unsigned_of(kMaxTokens / kBlockSize), (memory - std::min(memory, fixed)) / block_bytes));
  };

  const std::int64_t one_sequence = blocks_for(context);
  const std::int64_t needed = options.kv_blocks > 0 ? options.kv_blocks : one_sequence;
  const std::uint64_t kv_needed = multiply(unsigned_of(needed), block_bytes);
  if (add(fixed, kv_needed) > available) {
    const std::int64_t fitting = std::min(blocks_within(available) * kBlockSize, context);
    const std::string numbers =
        fmt::format("not enough memory: weights {}{}, KV cache {} ({} tokens), workspace {}, but {} are available{}",
                    gigabytes(plan.weights),
                    packs ? " (counted as bf16; a model that glyd-pack has packed takes a third less)" : "",
                    gigabytes(kv_needed), needed * kBlockSize, gigabytes(plan.workspace), gigabytes(available),
                    ranks > 1 ? fmt::format(", 1/{} of all", ranks) : "");
    if (fitting == 0)
      fail(Code::Memory, "{}; no context fits: close other programs or take a smaller model{}", numbers,
           ranks > 1 ? ", or fewer ranks (-tp, -pp) where their parts are uneven" : "");
    fail(Code::Memory, "{}; a context of {} tokens would fit (-c {})", numbers, fitting, fitting);
  }

  plan.kv_blocks = options.kv_blocks;
  if (plan.kv_blocks == 0) {
    const std::uint64_t wanted = std::min(multiply(unsigned_of(options.max_sequences), unsigned_of(one_sequence)),
                                          unsigned_of(kMaxTokens / kBlockSize));
    plan.kv_blocks =
        std::max(one_sequence, std::min(static_cast<std::int64_t>(wanted), blocks_within(available - available / 16)));
  }
  plan.kv_cache = multiply(unsigned_of(plan.kv_blocks), block_bytes);
  return plan;
}

}  // namespace glyd::runner::cpu
