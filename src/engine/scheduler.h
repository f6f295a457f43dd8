#pragma once
// Which tokens run in the next step: continuous batching within a token budget, long prompts in chunks.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sequence.h"

namespace glyd::engine {

struct SchedulerOptions {
  std::int64_t max_batch_tokens = 2048;
  std::int64_t max_sequences = 64;
  std::int64_t prefill_chunk = 512;   // a prompt is cut at multiples of this, counted from its own start
};

// The sequences of one step and how many of their tokens run: [sequence->computed, computed + tokens).
struct Scheduled {
  Sequence* sequence = nullptr;
  std::int64_t tokens = 0;
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, BlockManager& blocks);

  void add(Sequence* sequence);     // to the end of the queue
  void remove(Sequence* sequence);  // finished or cancelled: gives its blocks back

  // Decoding sequences first, oldest first, then prompts in the order they came. When blocks run out the newest running
  // sequence is preempted: its blocks are freed, it waits at the head of the queue and is computed again from its tokens.
  // Empty only when nothing waits or runs.
  std::vector<Scheduled> schedule();

  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::int64_t preemptions() const { return preemptions_; }

 private:
  void preempt_newest();

  SchedulerOptions options_;
  BlockManager& blocks_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // oldest first
  std::int64_t preemptions_ = 0;
};

}  // namespace glyd::engine
