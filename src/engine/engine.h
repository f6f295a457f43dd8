#pragma once
// The loop that glyd-run, glyd-bench and later glyd-serve and glyd-eval share: requests in, tokens out.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "runner/runner.h"

namespace glyd::engine {

struct EngineOptions {
  SchedulerOptions scheduler;
  std::int64_t context = 0;      // longest sequence, tokens
  std::vector<bool> allowed;     // [vocab_size] ids that may be sampled
};

// One token made by step(), or the end of a sequence.
struct Output {
  SequenceId id = 0;
  std::optional<text::TokenId> token;       // not set when the sequence ended on a stop id or an error
  std::optional<FinishReason> finish;       // set with the last output of a sequence
  std::string error;                        // when finish is Error: one line
};

struct EngineStats {
  std::int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  double prompt_seconds = 0, decode_seconds = 0;  // steps with any prompt token; steps without
};

class Engine {
 public:
  // `runner` is loaded and outlives this.
  Engine(runner::Runner& runner, EngineOptions options);

  // Queues a request. Throws Error(Usage) for an empty prompt, an id out of the vocabulary, bad sampling values, and a
  // prompt that cannot fit the context or the KV blocks (with the numbers).
  SequenceId add(Request request);
  void cancel(SequenceId id);  // no further output for it

  bool idle() const;
  // One step of the model; outputs in the order of the batch. A row of NaN ends its sequence with an error, not the others.
  std::vector<Output> step();

  const EngineStats& stats() const { return stats_; }
  std::int64_t free_blocks() const { return blocks_.free_blocks(); }

  // Logits [vocab_size] of the token that would follow `prompt`; only when idle.
  std::vector<float> next_logits(std::span<const text::TokenId> prompt);

 private:
  runner::Batch make_batch(const std::vector<Scheduled>& scheduled) const;

  runner::Runner& runner_;
  EngineOptions options_;
  BlockManager blocks_;
  Scheduler scheduler_;
  Sampler sampler_;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  SequenceId next_id_ = 1;
  EngineStats stats_;
};

}  // namespace glyd::engine
