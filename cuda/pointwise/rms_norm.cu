// Residual sum and RMSNorm. A step of one token runs this twice a layer on 10 KB of activations, so it is latency and
// nothing else: launch, one trip to memory, one reduction, one store.
//
// A block takes a token and keeps it in registers, eight values a thread (more only above a width of 8192). The weights
// and the numbers of splits are read while the previous kernel still runs; behind the wait all loads of h and of every
// partial sum are issued at once. The sum of squares is added within threads, then within warps, then over the warps,
// which every warp does for itself, so there is one barrier. The order follows from the width alone.

#include "cuda/common/launch.h"
#include "cuda/pointwise/pointwise.h"

namespace glyd::cuda {
namespace {

// The sum over the block in every thread.
__device__ float block_sum(float value) {
  __shared__ float warp_sums[32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < blockDim.x / 32 ? warp_sums[lane] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

struct Norm {
  std::uint16_t* h;
  const std::int32_t* rows;  // or null
  const std::uint16_t* weight;
  float eps;
  int width;
  float inverse_width;
};

// `Vectors` of 8 values a thread; thread t has vectors t, t + threads, ...
template <int Vectors, int MaxThreads, bool Add>
__global__ void __launch_bounds__(MaxThreads) rms_norm_kernel(Norm norm, Product add, Activations out) {
  let_next_start();
  const auto first = static_cast<int>(threadIdx.x) * 8, step = static_cast<int>(blockDim.x) * 8;
  uint4 weight[Vectors];
  int splits[Vectors];
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int k = first + v * step;
    if (k >= norm.width) continue;
    if (out.data != nullptr) weight[v] = *reinterpret_cast<const uint4*>(norm.weight + k);
    if (Add) splits[v] = splits_of(add, k);
  }
  wait_for_previous();

  const std::int64_t token = norm.rows == nullptr ? blockIdx.x : norm.rows[blockIdx.x];
  std::uint16_t* h = norm.h + token * norm.width;
  float x[Vectors][8];
  float squares = 0;
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int k = first + v * step;
    if (k >= norm.width) continue;
    const uint4 before = *reinterpret_cast<const uint4*>(h + k);
    if (Add) {
      load8(add, token, k, splits[v], x[v]);
      float residual[8];
      unpack8(before, residual);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[v][j] = residual[j] + round_bf16(x[v][j]);
      const uint4 sum = pack8(x[v]);
      *reinterpret_cast<uint4*>(h + k) = sum;
      unpack8(sum, x[v]);
    } else {
      unpack8(before, x[v]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(x[v][j], x[v][j], squares);
  }
  if (out.data == nullptr) return;

  const float scale = rsqrtf(block_sum(squares) * norm.inverse_width + norm.eps);
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int k = first + v * step;
    if (k < norm.width) {
      float w[8];
      unpack8(weight[v], w);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[v][j] = round_bf16(x[v][j] * scale) * w[j];
      store8(out, static_cast<int>(blockIdx.x), k, pack8(x[v]));
    } else if (out.layout != Layout::Rows && k < (norm.width + 31) / 32 * 32) {
      store8(out, static_cast<int>(blockIdx.x), k, uint4{});
    }
  }
}

template <int Vectors, int MaxThreads>
cudaError_t launch_norm(const Norm& norm, const Product* add, int tokens, const Activations& out, cudaStream_t stream) {
  constexpr int kWarpWidth = 32 * 8 * Vectors;
  const auto grid = static_cast<unsigned>(tokens);
  const auto block = static_cast<unsigned>((norm.width + kWarpWidth - 1) / kWarpWidth * 32);
  return add == nullptr
             ? launch(rms_norm_kernel<Vectors, MaxThreads, false>, grid, block, 0, stream, norm, Product{}, out)
             : launch(rms_norm_kernel<Vectors, MaxThreads, true>, grid, block, 0, stream, norm, *add, out);
}

}  // namespace

cudaError_t rms_norm(std::uint16_t* h, const Product* add, const std::int32_t* rows, const std::uint16_t* weight,
                     float eps, int tokens, int width, const Activations& out, cudaStream_t stream) {
  if (width <= 0 || width % 8 != 0 || (add != nullptr && rows != nullptr)) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const Norm norm{h, rows, weight, eps, width, 1.0f / static_cast<float>(width)};
  // Fewer threads leave each more registers, which four parts in flight need.
  if (width <= 768 * 8) return launch_norm<1, 768>(norm, add, tokens, out, stream);
  if (width <= 1024 * 8) return launch_norm<1, 1024>(norm, add, tokens, out, stream);
  if (width <= 1024 * 16) return launch_norm<2, 1024>(norm, add, tokens, out, stream);
  if (width <= 1024 * 32) return launch_norm<4, 1024>(norm, add, tokens, out, stream);
  return cudaErrorInvalidValue;
}

}  // namespace glyd::cuda
