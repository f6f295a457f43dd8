// Hidden states from a stage to the next: a copy into the other GPU's memory and two words, one that says a message is
// there and one that its place is free again. A message of a decode step is 10 KB a token, once a stage.

#include "cuda/common/launch.h"
#include "cuda/parallel/parallel.h"
#include "cuda/parallel/waiting.cuh"

namespace glyd::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(32) wait_kernel(Passage passage, std::uint32_t ahead) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x == 0) wait_for_word(passage.mine, passage.counters[0] + ahead, passage.stop);
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const uint4* from, uint4* to, std::uint64_t count, Passage passage) {
  let_next_start();
  wait_for_previous();
  const std::uint64_t at = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count) to[at] = from[at];
  if (last_block(passage.counters + 1) && threadIdx.x == 0) store_release(passage.theirs, ++passage.counters[0]);
}

cudaError_t pass_on(const void* from, void* to, std::uint64_t bytes, const Passage& passage, std::uint32_t ahead,
                    cudaStream_t stream) {
  if (bytes == 0 || bytes % 16 != 0) return cudaErrorInvalidValue;
  if (const cudaError_t error = launch(wait_kernel, dim3(1), dim3(32), 0, stream, passage, ahead); error != cudaSuccess)
    return error;
  const std::uint64_t count = bytes / 16;
  return launch(copy_kernel, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream,
                static_cast<const uint4*>(from), static_cast<uint4*>(to), count, passage);
}

}  // namespace

cudaError_t put_in(const void* from, void* to, std::uint64_t bytes, const Passage& passage, cudaStream_t stream) {
  return pass_on(from, to, bytes, passage, 0, stream);
}

cudaError_t take_out(const void* from, void* to, std::uint64_t bytes, const Passage& passage, cudaStream_t stream) {
  return pass_on(from, to, bytes, passage, 1, stream);
}

}  // namespace glyd::cuda
