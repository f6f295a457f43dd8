// The end of a step: the greedy choice, or the logits for the host. Bound by reading the partial sums of the head.
//
// arg_max turns logit and id into one 64-bit key whose order is the order of choice, so that the maximum may be taken
// in any order: first by blocks over pieces of the vocabulary, then by a warp over a row's pieces.

#include "cuda/common/launch.h"
#include "cuda/pointwise/order.cuh"
#include "cuda/pointwise/pointwise.h"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxPieces = 128;  // of a row, whatever the vocabulary

// Block (piece, token) goes over vectors of 8 logits piece * threads + thread, then pieces * threads further on.
__global__ void __launch_bounds__(kThreads)
    best_of_pieces(Product logits, const std::uint8_t* allowed, std::int64_t vocab, Key* best) {
  __shared__ Key warp_best[kThreads / 32];
  let_next_start();
  wait_for_previous();
  const std::int64_t token = blockIdx.y;
  Key key = 0;
  for (std::int64_t id = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8; id < vocab;
       id += std::int64_t{gridDim.x} * kThreads * 8) {
    float x[8];
    load8(logits, token, id, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (id + j >= vocab) break;
      const std::uint32_t order = allowed == nullptr || allowed[id + j] != 0 ? ordered(x[j]) : kForbidden;
      key = max(key, key_of(order, id + j));
    }
  }
  key = warp_max(key);
  if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = key;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  key = warp_max(threadIdx.x < kThreads / 32 ? warp_best[threadIdx.x] : 0);
  if (threadIdx.x == 0) best[token * gridDim.x + blockIdx.x] = key;
}

__global__ void best_of_row(const Key* best, int pieces, std::int32_t* ids) {
  let_next_start();
  wait_for_previous();
  Key key = 0;
  for (int piece = static_cast<int>(threadIdx.x); piece < pieces; piece += 32)
    key = max(key, best[std::int64_t{blockIdx.x} * pieces + piece]);
  key = warp_max(key);
  if (threadIdx.x != 0) return;
  ids[blockIdx.x] = choice_of(key);
}

__global__ void __launch_bounds__(kThreads) finish_logits_kernel(Product logits, std::int64_t vocab, float* out) {
  let_next_start();
  const std::int64_t id = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8, token = blockIdx.y;
  const int splits = id < vocab ? splits_of(logits, id) : 0;
  wait_for_previous();
  if (id >= vocab) return;
  float x[8];
  load8(logits, token, id, splits, x);
  float* to = out + token * vocab + id;
  if (vocab % 4 == 0 && id + 8 <= vocab) {
    reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
    reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (id + j < vocab) to[j] = x[j];
    }
  }
}

// Blocks of 8 logits a thread that cover the vocabulary once.
std::int64_t blocks_of(std::int64_t vocab) { return (vocab + 8 * kThreads - 1) / (8 * kThreads); }

}  // namespace

std::size_t arg_max_workspace(int tokens) { return static_cast<std::size_t>(tokens) * kMaxPieces * sizeof(Key); }

cudaError_t arg_max(const Product& logits, const std::uint8_t* allowed, int tokens, std::int64_t vocab,
                    std::int32_t* ids, void* workspace, cudaStream_t stream) {
  if (vocab <= 0 || vocab > logits.rows) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const auto pieces = static_cast<int>(blocks_of(vocab) < kMaxPieces ? blocks_of(vocab) : kMaxPieces);
  auto* best = static_cast<Key*>(workspace);
  const cudaError_t error = launch(best_of_pieces, dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(tokens)),
                                   kThreads, 0, stream, logits, allowed, vocab, best);
  if (error != cudaSuccess) return error;
  return launch(best_of_row, static_cast<unsigned>(tokens), 32, 0, stream, best, pieces, ids);
}

cudaError_t finish_logits(const Product& logits, int tokens, std::int64_t vocab, float* out, cudaStream_t stream) {
  if (vocab <= 0 || vocab > logits.rows) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks_of(vocab)), static_cast<unsigned>(tokens));
  return launch(finish_logits_kernel, grid, kThreads, 0, stream, logits, vocab, out);
}

}  // namespace glyd::cuda
