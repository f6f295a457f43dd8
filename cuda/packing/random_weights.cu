// Gaussian weights for runs without a model: a function of seed and index alone, so any part of a matrix can be made
// anywhere. Two 32-bit numbers of a hash of (seed, pair of elements) become two normals (Box-Muller). The functions are
// the exact library ones and not the fast approximations: the values do not depend on the GPU.

#include "cuda/common/launch.h"
#include "cuda/common/product.h"
#include "cuda/packing/packing.h"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 256;

__host__ __device__ inline std::uint64_t mixed(std::uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Elements 2 i and 2 i + 1, the first in the lower half.
__device__ __forceinline__ std::uint32_t gaussian_pair(std::uint64_t seed, std::uint64_t i, float sigma) {
  const std::uint64_t random = mixed(seed + i * 0x9e3779b97f4a7c15u);
  const float uniform = (static_cast<float>(static_cast<std::uint32_t>(random)) + 0.5f) * 0x1p-32f;  // (0, 1]
  const float angle = static_cast<float>(random >> 32) * 0x1p-31f;                                   // in half turns
  const float radius = sigma * sqrtf(-2.0f * logf(uniform));
  float sine, cosine;
  sincospif(angle, &sine, &cosine);
  return bf16_bits(radius * cosine) | bf16_bits(radius * sine) << 16;
}

// Eight columns of a row a thread.
__global__ void __launch_bounds__(kThreads)
    random_weights_kernel(std::uint64_t seed, float sigma, Window window, std::int64_t eights, std::uint16_t* out) {
  let_next_start();
  wait_for_previous();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= window.rows * eights) return;
  const std::int64_t row = at / eights, col = at % eights * 8;
  const std::int64_t first = (window.first_row + row) * window.all_cols + window.first_col + col;
  std::uint32_t words[4] = {};
  if (first % 2 == 0 && col + 8 <= window.cols) {
    for (int i = 0; i < 4; ++i) words[i] = gaussian_pair(seed, static_cast<std::uint64_t>(first) / 2 + i, sigma);
  } else {
    for (int i = 0; i < 8 && col + i < window.cols; ++i) {
      const auto index = static_cast<std::uint64_t>(first + i);
      const std::uint32_t value = gaussian_pair(seed, index / 2, sigma) >> (index % 2 * 16) & 0xFFFF;
      words[i / 2] |= value << (i % 2 * 16);
    }
  }
  reinterpret_cast<uint4*>(out)[at] = {words[0], words[1], words[2], words[3]};
}

}  // namespace

cudaError_t random_weights(std::uint64_t seed, float sigma, const Window& window, std::uint16_t* out,
                           std::int64_t stride, cudaStream_t stream) {
  if (window.rows < 0 || window.cols < 0 || window.cols > stride || stride % 8 != 0) return cudaErrorInvalidValue;
  const std::int64_t eights = stride / 8, blocks = (window.rows * eights + kThreads - 1) / kThreads;
  if (blocks == 0) return cudaSuccess;
  if (blocks >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  // Seeds that are neighbours are hashed apart; without this, they would give shifted copies of one sequence.
  return launch(random_weights_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream,
                mixed(seed + 0x9e3779b97f4a7c15u), sigma, window, eights, out);
}

}  // namespace glyd::cuda
