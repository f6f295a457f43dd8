// The gated activation. Bound by reading the partial sums: eight gates and their eight ups a thread, all loads of both
// under way before the first is used.

#include "cuda/common/launch.h"
#include "cuda/pointwise/pointwise.h"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 64;  // small blocks: the last wave is short, and one token still reaches many SMs

__global__ void __launch_bounds__(kThreads) swiglu_kernel(Product gate_up, std::int64_t inner, Activations out) {
  let_next_start();
  const std::int64_t k = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * 8;
  const std::int64_t rows[2] = {k, inner + k};
  int splits[2] = {};
  if (k < inner) splits[0] = splits_of(gate_up, rows[0]), splits[1] = splits_of(gate_up, rows[1]);
  wait_for_previous();

  const std::int64_t token = blockIdx.x;
  if (k < inner) {
    float x[2][8];
    load8(gate_up, token, rows, splits, x);
    float y[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float gate = round_bf16(x[0][j]), up = round_bf16(x[1][j]);
      y[j] = round_bf16(gate * __frcp_rn(1.0f + expf(-gate))) * up;
    }
    store8(out, static_cast<int>(token), static_cast<int>(k), pack8(y));
  } else if (out.layout != Layout::Rows && k < (inner + 31) / 32 * 32) {
    store8(out, static_cast<int>(token), static_cast<int>(k), uint4{});
  }
}

}  // namespace

cudaError_t swiglu(const Product& gate_up, int tokens, std::int64_t inner, const Activations& out,
                   cudaStream_t stream) {
  if (inner <= 0 || inner % 8 != 0 || gate_up.rows < 2 * inner) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const std::int64_t vectors = (inner + 31) / 32 * 4;  // an image's padding included
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  return launch(swiglu_kernel, grid, kThreads, 0, stream, gate_up, inner, out);
}

}  // namespace glyd::cuda
