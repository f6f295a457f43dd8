#pragma once
// Which tokens run in the next step: continuous batching within a token budget, long prompts in chunks.

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sequence.h"

namespace glyd::engine {

// Each at least 1, and max_batch_tokens >= prefill_chunk + max_sequences - 1: so a chunk of a prompt always fits beside
// the decoding sequences, however many there are, and no prompt starves.
struct SchedulerOptions {
  std::int64_t max_batch_tokens = 2048;  // of one step
  std::int64_t max_sequences = 64;       // running at a time
  std::int64_t prefill_chunk = 512;      // a prompt is cut at multiples of this, counted from its own start
  // A step is of prompts or of decoding sequences, prompts first: what a benchmark wants to measure apart. Else both
  // run together, and nobody waits for a long prompt.
  bool prompts_apart = false;
};

// A sequence of one step and how many of its tokens run: [sequence->computed, computed + tokens).
struct Scheduled {
  Sequence* sequence = nullptr;
  std::int64_t tokens = 0;
};

// Sequences stay the caller's and must outlive their time between add() and remove(). Each must fit the KV blocks when
// it is alone, or schedule() cannot keep its promise.
class Scheduler {
 public:
  // Throws Error(Usage) for options that break the rule above.
  Scheduler(const SchedulerOptions& options, BlockManager& blocks);

  void add(Sequence* sequence);     // to the end of the queue
  void remove(Sequence* sequence);  // finished or cancelled: gives its blocks back

  // The next step: decoding sequences, oldest first, then prompts in the order they came, a chunk of each.
  // A waiting sequence is admitted when the blocks for all of its present tokens are free, not just those of its next
  // chunk: a prompt that is admitted on a part of what it needs is soon preempted, and its work was for nothing.
  // When a decoding sequence finds no block the newest running one is preempted: its blocks are freed, it waits at the
  // head of the queue and is computed again from its tokens. The oldest is never preempted, so something always
  // advances. Empty only when nothing waits or runs. The caller adds `tokens` to `computed` once the step has
  // succeeded.
  std::vector<Scheduled> schedule();

  // Tokens of the sequence's next chunk: to the next multiple of prefill_chunk, at most to its end. Depends on the
  // sequence alone, never on what its neighbours leave free.
  std::int64_t next_tokens(const Sequence& sequence) const;

  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::int64_t preemptions() const { return preemptions_; }

 private:
  std::vector<Scheduled> decoding();
  std::vector<Scheduled> prompts(std::int64_t budget);
  bool reserve_or_preempt(Sequence& sequence);
  void preempt_newest();

  SchedulerOptions options_;
  BlockManager& blocks_;
  // Both oldest first, and everything in running_ is older than everything in waiting_.
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::int64_t preemptions_ = 0;
};

}  // namespace glyd::engine
