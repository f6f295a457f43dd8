// Sums from all ranks to all ranks. In a decode step this is latency: a few KB a token and rank, twice a layer. So
// there is one kernel and one trip. Every rank writes (a write over NVLink need not wait for anything to come back),
// then tells each other rank that it has, then waits for the same from all; nobody reads far memory. Large messages
// move (ranks - 1) times their size out of each GPU, where a reduction in two steps would move less than twice: more
// than it from four ranks on, and in prompts alone.
//
// A write and the word of it go to the same GPU, ordered by a fence that covers the block's writes, a count of the
// blocks that are done, and a release by the last one. The reader's acquire is in this kernel, so the next kernel of
// the stream finds everything in its own memory.
//
// CPU twin: src/runner/parallel/loopback_communicator.cpp, which adds in the same order.

#include "cuda/common/launch.h"
#include "cuda/parallel/parallel.h"
#include "cuda/parallel/waiting.cuh"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 128;

// By the threads of one block, of whom the first `ranks` do the work, after all that is to be seen was written and
// fenced. Numbers of meetings wrap around.
__device__ void meet_all(const Meeting& m) {
  __shared__ std::uint32_t number;
  if (threadIdx.x == 0) number = ++m.counters[0];
  __syncthreads();
  const int other = static_cast<int>(threadIdx.x);
  if (other >= m.ranks) return;
  __threadfence_system();
  store_release(m.arrived[other] + m.rank, number);
  wait_for_word(m.arrived[m.rank] + other, number, m.stop);
}

template <bool kMeet>
__global__ void __launch_bounds__(kThreads)
    share_rows_kernel(Product product, std::int64_t eights, std::int64_t rows, const __grid_constant__ Destinations d,
                      const __grid_constant__ Meeting meeting) {
  let_next_start();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t token = at / (rows / 8), row = at % (rows / 8) * 8;
  const int splits = at < eights ? splits_of(product, row) : 1;
  wait_for_previous();
  if (at < eights) {
    float values[8];
    load8(product, token, row, splits, values);
    const float4 low{values[0], values[1], values[2], values[3]}, high{values[4], values[5], values[6], values[7]};
#pragma unroll
    for (int i = 0; i < kMaxRanks; ++i) {
      if (d.to[i] == nullptr) continue;
      float* const to = d.to[i] + token * d.stride + row;
      *reinterpret_cast<float4*>(to) = low;
      *reinterpret_cast<float4*>(to + 4) = high;
    }
  }
  if constexpr (kMeet) {
    if (last_block(meeting.counters + 1)) meet_all(meeting);
  }
}

__global__ void __launch_bounds__(32) meet_kernel(const __grid_constant__ Meeting meeting) {
  let_next_start();
  wait_for_previous();
  meet_all(meeting);
}

__global__ void __launch_bounds__(kThreads)
    add_ranks_kernel(const float* slots, int ranks, std::int64_t stride, float* out, std::int64_t fours) {
  let_next_start();
  wait_for_previous();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= fours) return;
  float4 sum = reinterpret_cast<const float4*>(slots)[at];
  for (int r = 1; r < ranks; ++r) {
    const float4 x = *reinterpret_cast<const float4*>(slots + r * stride + at * 4);
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  reinterpret_cast<float4*>(out)[at] = sum;
}

dim3 blocks_for(std::int64_t threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

}  // namespace

cudaError_t share_rows(const Product& product, int tokens, std::int64_t rows, const Destinations& destinations,
                       const Meeting* meeting, cudaStream_t stream) {
  if (rows % 8 != 0 || destinations.stride % 4 != 0) return cudaErrorInvalidValue;
  const std::int64_t eights = tokens * (rows / 8);
  if (eights == 0) return meeting == nullptr ? cudaSuccess : meet(*meeting, stream);
  if (meeting == nullptr) {
    return launch(share_rows_kernel<false>, blocks_for(eights), dim3(kThreads), 0, stream, product, eights, rows,
                  destinations, Meeting{});
  }
  return launch(share_rows_kernel<true>, blocks_for(eights), dim3(kThreads), 0, stream, product, eights, rows,
                destinations, *meeting);
}

cudaError_t meet(const Meeting& meeting, cudaStream_t stream) {
  return launch(meet_kernel, dim3(1), dim3(32), 0, stream, meeting);
}

cudaError_t add_ranks(const float* slots, int ranks, std::int64_t stride, float* out, std::int64_t count,
                      cudaStream_t stream) {
  if (stride % 4 != 0 || count % 4 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  return launch(add_ranks_kernel, blocks_for(count / 4), dim3(kThreads), 0, stream, slots, ranks, stride, out,
                count / 4);
}

}  // namespace glyd::cuda
