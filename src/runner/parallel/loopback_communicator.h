#pragma once
// Ranks that are threads of one process, and talk through its memory.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "runner/parallel/communicator.h"
#include "runner/parallel/meeting.h"

namespace glyd::runner {

// All ranks' communicators and what they share. Each is used by one thread at a time.
class LoopbackGroup {
 public:
  // `stages` of `ranks` each.
  explicit LoopbackGroup(int ranks, int stages = 1);

  Communicator& communicator(int global_rank) { return *ranks_.at(static_cast<std::size_t>(global_rank)); }

  // Makes an aborted group usable again. While no rank is in an operation.
  void reset();

 private:
  class Rank;
  struct Offer {  // what a rank shows the others during an operation
    std::span<float> values;
    std::span<const float> part;
    std::int64_t number = 0;
  };

  void abort();

  std::vector<std::unique_ptr<Communicator>> ranks_;  // stage by stage
  std::vector<Offer> offers_;                         // [ranks]
  std::deque<Meeting> stages_;                        // of each stage's ranks
  Meeting everyone_;
  std::deque<Channel> channels_;  // from each rank to that of the next stage; the last stage has none
};

}  // namespace glyd::runner
