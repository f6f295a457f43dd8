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

__global__ void __launch_bounds__(kThreads)
    random_weights_kernel(std::uint64_t seed, float sigma, std::int64_t count, std::uint16_t* out) {
  let_next_start();
  wait_for_previous();
  const std::int64_t eight = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (eight * 8 >= count) return;
  std::uint32_t pairs[4];
  for (int i = 0; i < 4; ++i) pairs[i] = gaussian_pair(seed, static_cast<std::uint64_t>(eight) * 4 + i, sigma);
  std::uint16_t* const to = out + eight * 8;
  if (eight * 8 + 8 <= count) {
    *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  } else {
    for (int i = 0; i < count - eight * 8; ++i) to[i] = static_cast<std::uint16_t>(pairs[i / 2] >> (i % 2 * 16));
  }
}

}  // namespace

cudaError_t random_weights(std::uint64_t seed, float sigma, std::int64_t count, std::uint16_t* out,
                           cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const std::int64_t blocks = (count + 8 * kThreads - 1) / (8 * kThreads);
  if (count < 0 || blocks >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  // Seeds that are neighbours are hashed apart; without this, they would give shifted copies of one sequence.
  return launch(random_weights_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream,
                mixed(seed + 0x9e3779b97f4a7c15u), sigma, count, out);
}

}  // namespace glyd::cuda
