#pragma once
// Attention over a paged KV cache. q, k, v and the output are bf16, everything inside is fp32; q.k is never rounded
// before the softmax.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/common/activations.h"

namespace glyd::cuda {

inline constexpr int kCacheBlock = 16;       // tokens of a KV block
inline constexpr int kAttentionSplit = 128;  // tokens of a sequence that decode attention takes as one piece

// Keys and values of one layer: [block][kv head][16 tokens][head_dim] each.
struct PagedCache {
  std::uint16_t* keys = nullptr;
  std::uint16_t* values = nullptr;
  int kv_heads = 0;
  int head_dim = 0;  // a multiple of 8, at most 256
};

// Device arrays of the step. Sizes may change from launch to launch without a change of the launch's shape. Block
// tables and lengths, and in decode the keys and values of all tokens but a sequence's last, are read before
// wait_for_previous(): they must be complete before the step's first kernel starts. Copying the batch's arrays to the
// device at the head of each step gives both.
struct AttentionBatch {
  const std::int32_t* block_tables = nullptr;  // [sequence][table_stride]
  std::int64_t table_stride = 0;
  const std::int32_t* context_lengths = nullptr;  // [sequence] positions seen by the sequence's last token
  const std::int32_t* query_start = nullptr;      // prefill only: [sequence + 1] first row of q of each sequence
};

// One token a sequence: q is [sequences][heads * head_dim] (`q_stride` elements from row to row). A sequence with
// context length 0 writes zeros. The KV length is cut at multiples of kAttentionSplit whatever the batch, so a
// sequence's result does not depend on its neighbours. The grid does not depend on the lengths: a captured launch
// serves any. Blocks of the table behind the context are not looked at, nor are slots of the last block behind it.
// `out` may have any layout; an image's tail behind heads * head_dim is zeroed. `workspace`:
// attention_decode_workspace() bytes, 16-byte aligned, in any state. Launches that share it must follow one another.
cudaError_t attention_decode(const std::uint16_t* q, std::int64_t q_stride, const PagedCache& cache,
                             const AttentionBatch& batch, int sequences, int heads, float scale, const Activations& out,
                             void* workspace, cudaStream_t stream);

// For `sequences` sequences whose context lengths (shared blocks counted for each) add up to at most `tokens`, none
// more than `context`.
std::size_t attention_decode_workspace(int sequences, std::int64_t tokens, std::int64_t context, int heads,
                                       int head_dim);

// Chunks of prompts: rows query_start[s] .. query_start[s + 1] of q are the last tokens of sequence s (its k and v are
// in the cache already), causal. A row's result depends on its own sequence alone, and not on how the prompt was cut.
// `tokens` rows in all, at most `longest` of one sequence. Row n of q makes row n of `out`, in any layout (an image's
// tail behind heads * head_dim is the caller's). Keys and values of a sequence's own later tokens must be finite: they
// are multiplied by zero.
cudaError_t attention_prefill(const std::uint16_t* q, std::int64_t q_stride, const PagedCache& cache,
                              const AttentionBatch& batch, int sequences, int tokens, int longest, int heads,
                              float scale, const Activations& out, cudaStream_t stream);

}  // namespace glyd::cuda
