// From the qkv product to attention: q and k are normalised, rotated and rounded once, k and v go to their slots.
//
// A head is taken by 8, 16 or 32 lanes, whichever is the first that holds head_dim with eight values a lane, so the
// heads of the common sizes share warps, and the sum of squares is a butterfly over a head's lanes. RoPE pairs value i
// with value i + rotated / 2, which may sit in any lane and place: values meet in shared memory, nine words for every
// eight values so that neither side has bank conflicts. The token's cosines and sines, the same for all heads, go there
// too, read once a block.

#include "cuda/common/launch.h"
#include "cuda/pointwise/pointwise.h"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kMaxHalf = 128;  // pairs of a head

__global__ void rope_table_kernel(const std::int32_t* positions, const double* inverse_frequencies,
                                  double attention_factor, int tokens, int half, float2* table) {
  let_next_start();
  wait_for_previous();
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= std::int64_t{tokens} * half) return;
  const double angle = positions[at / half] * inverse_frequencies[at % half];
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  table[at] = {static_cast<float>(cosine * attention_factor), static_cast<float>(sine * attention_factor)};
}

// Where value i lies in shared memory.
__host__ __device__ constexpr int place(int i) { return i + i / 8; }

template <int Lanes>
__global__ void __launch_bounds__(kThreads)
    split_heads_kernel(Product qkv, HeadsArguments arguments, PagedCache cache, std::uint16_t* q) {
  __shared__ float meeting[kThreads * 9];
  __shared__ float2 turns[place(kMaxHalf)];
  let_next_start();
  const int head = static_cast<int>((blockIdx.y * kThreads + threadIdx.x) / Lanes);
  const int lane = threadIdx.x % Lanes, first = lane * 8;
  const int d = cache.head_dim;
  const bool is_q = head < arguments.heads, is_v = head >= arguments.heads + cache.kv_heads;
  const bool active = head < arguments.heads + 2 * cache.kv_heads && first < d;
  const std::int64_t row = std::int64_t{head} * d + first;
  const std::uint16_t* norm = is_q ? arguments.q_norm : is_v ? nullptr : arguments.k_norm;
  const int splits = active ? splits_of(qkv, row) : 0;
  uint4 weight{};
  if (active && norm != nullptr) weight = *reinterpret_cast<const uint4*>(norm + first);
  const int half = arguments.rotated / 2;
  const float inverse_d = 1.0f / static_cast<float>(d);
  wait_for_previous();

  const std::int64_t token = blockIdx.x;
  const std::int32_t slot = is_q ? 0 : arguments.slots[token];
  const auto thread = static_cast<int>(threadIdx.x);
  float2 fetched[kMaxHalf / kThreads];  // under way together with the product's loads
#pragma unroll
  for (int i = 0; i < kMaxHalf / kThreads; ++i) {
    if (thread + i * kThreads < half) fetched[i] = arguments.rope[token * half + thread + i * kThreads];
  }
  float x[8] = {};
  if (active) {
    load8(qkv, token, row, splits, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = round_bf16(x[j]);
  }

  // From here to the last rounding lanes of v and idle lanes go along, since the others need their company.
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) squares = fmaf(x[j], x[j], squares);
  for (int offset = Lanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(~0u, squares, offset);
  if (norm != nullptr) {
    const float scale = rsqrtf(squares * inverse_d + arguments.eps);
    float w[8];
    unpack8(weight, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = round_bf16(round_bf16(x[j] * scale) * w[j]);
  }
#pragma unroll
  for (int i = 0; i < kMaxHalf / kThreads; ++i) {
    if (thread + i * kThreads < half) turns[place(thread + i * kThreads)] = fetched[i];
  }
  float* mine = meeting + threadIdx.x / Lanes * (Lanes * 9);
#pragma unroll
  for (int j = 0; j < 8; ++j) mine[place(first + j)] = x[j];
  __syncthreads();
  if (!active) return;
  if (!is_v) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = first + j;
      // Products and sum each rounded, as the reference on the CPU does: no fused multiply-add.
      if (i < half) {
        const float2 turn = turns[place(i)];
        x[j] = __fsub_rn(__fmul_rn(x[j], turn.x), __fmul_rn(mine[place(i + half)], turn.y));
      } else if (i < 2 * half) {
        const float2 turn = turns[place(i - half)];
        x[j] = __fadd_rn(__fmul_rn(x[j], turn.x), __fmul_rn(mine[place(i - half)], turn.y));
      }
    }
  }

  if (is_q) {
    *reinterpret_cast<uint4*>(q + token * arguments.heads * d + row) = pack8(x);
  } else if (slot >= 0) {
    const int kv_head = head - arguments.heads - (is_v ? cache.kv_heads : 0);
    const std::int64_t block = slot / kCacheBlock, in_block = slot % kCacheBlock;
    const std::int64_t at = ((block * cache.kv_heads + kv_head) * kCacheBlock + in_block) * d + first;
    *reinterpret_cast<uint4*>((is_v ? cache.values : cache.keys) + at) = pack8(x);
  }
}

}  // namespace

cudaError_t rope_table(const std::int32_t* positions, const double* inverse_frequencies, double attention_factor,
                       int tokens, int half, float2* table, cudaStream_t stream) {
  const std::int64_t count = std::int64_t{tokens} * half;
  if (count == 0) return cudaSuccess;
  return launch(rope_table_kernel, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream,
                positions, inverse_frequencies, attention_factor, tokens, half, table);
}

cudaError_t split_heads(const Product& qkv, const HeadsArguments& arguments, int tokens, const PagedCache& cache,
                        std::uint16_t* q, cudaStream_t stream) {
  const int d = cache.head_dim;
  if (d <= 0 || d % 8 != 0 || d > 256 || arguments.rotated % 2 != 0 || arguments.rotated > d)
    return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const int lanes = d <= 64 ? 8 : d <= 128 ? 16 : 32;
  const int heads = arguments.heads + 2 * cache.kv_heads, heads_a_block = kThreads / lanes;
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>((heads + heads_a_block - 1) / heads_a_block));
  const auto kernel = lanes == 8    ? split_heads_kernel<8>
                      : lanes == 16 ? split_heads_kernel<16>
                                    : split_heads_kernel<32>;
  return launch(kernel, grid, kThreads, 0, stream, qkv, arguments, cache, q);
}

}  // namespace glyd::cuda
