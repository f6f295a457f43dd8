#pragma once
// The operations between products. Each reads a product's partial sums, does its work in fp32, rounds where the
// reference rounds, and writes what the next operation wants.

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "cuda/attention/attention.h"
#include "cuda/common/activations.h"
#include "cuda/common/product.h"

namespace glyd::cuda {

// h = bf(h + bf(product)) (when `add` is given), then out = bf(bf(h / rms(h)) * weight), over `width` values of each of
// `tokens` tokens. h: [token][width] bf16, updated in place. `rows`: when not null, output column i is token rows[i] of
// h, only the norm is done and h stays as it is (the tokens whose logits are wanted); `add` is null then. `out.data`
// may be null: only the sum is wanted. width is a multiple of 8, at most 32,768.
cudaError_t rms_norm(std::uint16_t* h, const Product* add, const std::int32_t* rows, const std::uint16_t* weight,
                     float eps, int tokens, int width, const Activations& out, cudaStream_t stream);

// (cos, sin) * attention_factor of each token's angles, [token][half], computed once a step: angle i is
// positions[token] * inverse_frequencies[i], in double.
cudaError_t rope_table(const std::int32_t* positions, const double* inverse_frequencies, double attention_factor,
                       int tokens, int half, float2* table, cudaStream_t stream);

// Heads of a qkv product (q's heads, k's, v's): RMSNorm over each head of q and k when the weights are not null, RoPE,
// k and v into their slots, q to [token][heads * head_dim].
struct HeadsArguments {
  const std::uint16_t* q_norm = nullptr;  // [head_dim] or null
  const std::uint16_t* k_norm = nullptr;
  float eps = 0;
  int heads = 0;                        // of q; kv_heads and head_dim are the cache's
  int rotated = 0;                      // dimensions that RoPE turns, even, <= head_dim
  const float2* rope = nullptr;         // [token][rotated / 2] from rope_table()
  const std::int32_t* slots = nullptr;  // [token] block * 16 + place in it; -1: nothing is written to the cache
};
cudaError_t split_heads(const Product& qkv, const HeadsArguments& arguments, int tokens, const PagedCache& cache,
                        std::uint16_t* q, cudaStream_t stream);

// out = bf(bf(silu(gate)) * up): rows 0 .. inner of the product are gate, inner .. 2 inner are up (each bf16 first).
cudaError_t swiglu(const Product& gate_up, int tokens, std::int64_t inner, const Activations& out, cudaStream_t stream);

// Greedy choice: ids[i] = the lowest id of the largest logit among the allowed ones, of row i. `allowed`: [vocab]
// bytes, 0: never chosen; null: all. A row with a NaN or +inf among allowed ids gives -1, a row of nothing but -inf -2.
cudaError_t arg_max(const Product& logits, const std::uint8_t* allowed, int tokens, std::int64_t vocab,
                    std::int32_t* ids, void* workspace, cudaStream_t stream);
std::size_t arg_max_workspace(int tokens);

// How one row is sampled: engine::SamplingParams, with the step's random number.
struct RowSampling {
  double temperature = 1, top_p = 1, min_p = 0;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::uint64_t random = 0;      // engine::random_bits(seed, step)
  std::int32_t top_k = 0;        // 0: all
  std::int32_t touched = 0;      // penalties: touched_ids[touched .. touched_end) are the distinct ids of prompt and
  std::int32_t touched_end = 0;  // output; read only when a penalty is on
};
struct TouchedId {
  std::int32_t id = 0;
  std::int32_t count = 0;  // in the output
};

// ids[i] = the next id of row i by the rules of engine::Sampler, drawn along the ids that are kept in ascending order.
// vocab is at most 4,194,304. -1 and -2 as arg_max. -3: more candidates than the
// kernel holds; the host samples from finish_logits(). That takes top_k > 2048, a top_p that 1024 and more candidates
// do not reach, or thousands of equal logits at the border. `workspace`: sample_workspace() bytes.
inline constexpr std::int32_t kTooManyCandidates = -3;
cudaError_t sample(const Product& logits, const std::uint8_t* allowed, const RowSampling* rows,
                   const TouchedId* touched_ids, int tokens, std::int64_t vocab, std::int32_t* ids, void* workspace,
                   cudaStream_t stream);
std::size_t sample_workspace(int tokens, std::int64_t vocab);

// Finished fp32 logits [token][vocab] for the host.
cudaError_t finish_logits(const Product& logits, int tokens, std::int64_t vocab, float* out, cudaStream_t stream);

}  // namespace glyd::cuda
