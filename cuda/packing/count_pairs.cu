// The histogram of exponent pairs that a code is chosen from.
//
// Nearly all pairs of trained weights are made of a few dozen exponents: those are counted in shared memory, a block's
// own counts, and the rest straight in the 65536 counts of the matrix. Counts are integers, so their order is free.

#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/packing/packing.h"

namespace glyd::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kSegment = 512;  // columns of a row that a warp takes at a time
constexpr unsigned kMostBlocks = 2048;

// Exponents 0 and 73 to 135 (2^-54 to 2^9) have one of 64 slots in shared memory.
constexpr std::uint32_t kSlots = 64, kFirstExponent = 72;
__device__ __forceinline__ std::uint32_t slot_of(std::uint32_t exponent) {
  return exponent == 0 ? 0 : exponent > kFirstExponent ? exponent - kFirstExponent : kSlots;
}

__device__ __forceinline__ void add(std::uint64_t* counts, std::uint32_t place, std::uint64_t n) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counts) + place, static_cast<unsigned long long>(n));
}

__global__ void __launch_bounds__(kThreads)
    count_pairs_kernel(PlainSource source, std::uint32_t row_segments, std::uint32_t segments, std::uint64_t* counts) {
  __shared__ std::uint32_t window[kSlots * kSlots];
  for (std::uint32_t i = threadIdx.x; i < kSlots * kSlots; i += kThreads) window[i] = 0;
  __syncthreads();
  let_next_start();
  wait_for_previous();
  const std::uint32_t lane = threadIdx.x % 32, warps = gridDim.x * (kThreads / 32);
  for (std::uint32_t s = blockIdx.x * (kThreads / 32) + threadIdx.x / 32; s < segments; s += warps) {
    const std::uint32_t row = s / row_segments;
    const std::int64_t begin = static_cast<std::int64_t>(s - row * row_segments) * kSegment;
    const std::uint16_t* const weights = source.data + row * source.stride;
#pragma unroll
    for (std::uint32_t part = 0; part < kSegment; part += 256) {
      const std::int64_t col = begin + part + lane * 8;
      if (col >= source.cols) continue;
      const uint4 eight = *reinterpret_cast<const uint4*>(weights + col);
      const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t first = pairs[i] >> 7 & 255, second = pairs[i] >> 23 & 255;
        const std::int64_t left = source.cols - (col + 2 * i);
        if (left == 1) add(counts, kPairCounts + first, 1);
        if (left < 2) break;
        const std::uint32_t a = slot_of(first), b = slot_of(second);
        if (a < kSlots && b < kSlots) {
          atomicAdd(&window[a * kSlots + b], 1u);
        } else {
          add(counts, first << 8 | second, 1);
        }
      }
    }
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < kSlots * kSlots; i += kThreads) {
    const std::uint32_t a = i / kSlots, b = i % kSlots;
    const std::uint32_t pair = (a == 0 ? 0 : a + kFirstExponent) << 8 | (b == 0 ? 0 : b + kFirstExponent);
    if (window[i] != 0) add(counts, pair, window[i]);
  }
}

}  // namespace

cudaError_t count_pairs(const PlainSource& source, std::uint64_t* counts, cudaStream_t stream) {
  const std::int64_t row_segments = (source.cols + kSegment - 1) / kSegment, segments = source.rows * row_segments;
  if (source.stride % 8 != 0 || source.stride < source.cols || segments >= std::int64_t{1} << 31)
    return cudaErrorInvalidValue;
  if (const cudaError_t error = cudaMemsetAsync(counts, 0, (kPairCounts + kLoneCounts) * sizeof(*counts), stream);
      error != cudaSuccess) {
    return error;
  }
  if (segments == 0) return cudaSuccess;
  const std::int64_t blocks = std::min<std::int64_t>((segments + kThreads / 32 - 1) / (kThreads / 32), kMostBlocks);
  return launch(count_pairs_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, source,
                static_cast<std::uint32_t>(row_segments), static_cast<std::uint32_t>(segments), counts);
}

}  // namespace glyd::cuda
