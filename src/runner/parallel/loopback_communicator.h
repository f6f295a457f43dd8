#pragma once
// Ranks that are threads of one process, and talk through its memory.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runner/parallel/communicator.h"

namespace glyd::runner {

// All ranks' communicators and what they share. Each is used by one thread at a time.
class LoopbackGroup {
 public:
  explicit LoopbackGroup(int ranks);

  Communicator& communicator(int rank) { return *ranks_.at(static_cast<std::size_t>(rank)); }

  // Makes an aborted group usable again. While no rank is in an operation.
  void reset();

 private:
  class Rank;
  struct Offer {  // what a rank shows the others during an operation
    std::span<float> values;
    std::span<const float> part;
    std::int64_t number = 0;
  };

  // Returns when all ranks have called it. Throws Aborted.
  void wait_for_all();
  void abort();

  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::vector<Offer> offers_;  // [ranks]

  std::mutex mutex_;
  std::condition_variable wake_;
  std::size_t arrived_ = 0;
  std::uint64_t meetings_ = 0;  // of all ranks, so far
  bool aborted_ = false;
};

}  // namespace glyd::runner
