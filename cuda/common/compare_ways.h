#pragma once
// From which multiprocessors the way to a page of memory is shorter than to its neighbour: what is known of the two
// halves of the L2 cache (cuda/packing/page_places.h) comes from here.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace glyd::cuda {

// A thread block on each of `multiprocessors` measures, in clocks, the way to the page of 4 KB at `reference` less the
// way to the page behind it: differences[number of the multiprocessor], zero where no thread block came to run. Then
// they share `pages`: nearer[i] is the same of page i and the one behind it, as seen from where the reference is the
// nearer one. All pages are multiples of 4 KB in device memory, whose bytes stay as they are.
cudaError_t compare_ways(std::uint64_t reference, const std::uint64_t* pages, int count, std::int32_t* nearer,
                         std::int32_t* differences, int multiprocessors, cudaStream_t stream);

}  // namespace glyd::cuda
