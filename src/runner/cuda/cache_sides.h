#pragma once
// Which half of a device's L2 cache is near to which multiprocessor, and to which pages: found by timing the ways
// (cuda/packing/page_places.h says what it is good for). A wrong answer would cost time and nothing else.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/packing/resident.h"
#include "runner/cuda/device_memory.h"

namespace glyd::runner {

class CacheSides {
 public:
  // Measures the current device; a few milliseconds. Nothing is known afterwards of a chip whose cache is no two
  // halves, or other ones than these.
  CacheSides(int multiprocessors, cudaStream_t stream);

  bool known() const { return mask_ != 0; }
  int processors(int side) const { return count_[static_cast<std::size_t>(side)]; }

  // Whether a matrix is large enough: taking runs by side costs a launch a fraction of a microsecond, which short ones
  // do not earn.
  static bool is_worth_it(const cuda::ResidentMatrix& matrix);
  // Whether pages of a matrix can have other places than those of a chip that nothing is known of.
  static bool fits(const cuda::ResidentMatrix& matrix);
  // Where pages of a matrix go whose memory this is. Nothing: it is small or does not fit, or its memory is not what
  // was expected. Waits for the stream.
  std::optional<cuda::PagePlaces> places(const cuda::ResidentMatrix& matrix, cudaStream_t stream) const;

 private:
  struct Comparison {
    std::vector<bool> same;                 // of each page: whether it belongs to the side of the reference page
    std::vector<std::int32_t> differences;  // of each multiprocessor (compare_ways())
  };
  // Nothing: it cannot be told.
  std::optional<Comparison> compare(const std::vector<std::uint64_t>& pages, cudaStream_t stream) const;

  int multiprocessors_;
  DeviceMemory memory_;  // enough for 2 MB at a multiple of it, the reference page first; then what is measured
  std::uint64_t reference_ = 0;
  std::uint32_t mask_ = 0;
  std::array<int, 2> count_{};
  std::array<std::uint32_t, cuda::kMaxProcessors / 32> sides_{};
};

}  // namespace glyd::runner
