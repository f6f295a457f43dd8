#pragma once
// The loop that glyd-run, glyd-bench and later glyd-serve and glyd-eval share: requests in, tokens out.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "runner/runner.h"

namespace glyd::engine {

struct EngineOptions {
  SchedulerOptions scheduler;  // at most the step sizes that the runner was made for
  std::int64_t context = 0;    // longest sequence, prompt and output, in tokens
  std::vector<bool> allowed;   // [vocab_size] ids with a token: the others are refused in prompts and never sampled;
                               // the runner's own choice (runner::Options::allowed) is to be among the same
  // For those who measure or compare. Sees every batch before it runs:
  std::function<void(const runner::Batch&)> on_batch = {};
  // Receives the logits of every row that a token is made from, as the runner gave them. While it is set, the runner is
  // asked for logits where it could choose ids itself.
  std::function<void(SequenceId, std::span<const float>)> on_logits = {};
  // The cure in the message about a prompt that is too long, as the caller knows it.
  std::string too_long = "shorten the prompt or raise the context";
};

// One token made by step(), or the end of a sequence.
struct Output {
  SequenceId id = 0;
  std::optional<text::TokenId> token;  // not set when the sequence ended on a stop id or an error, or was to make none
  std::optional<FinishReason> finish;  // set with the last output of a sequence
  std::string error;                   // when finish is Error: one line
};

struct EngineStats {
  std::int64_t steps = 0;             // of the model
  std::int64_t prompt_tokens = 0;     // run as part of a prompt's chunk; recomputed ones count again
  std::int64_t generated_tokens = 0;  // given out
  std::int64_t decode_tokens = 0;     // of these, made by steps without a prompt token: what decode_seconds went into
  std::int64_t preemptions = 0;
  double prompt_seconds = 0, decode_seconds = 0;  // wall time of steps with any prompt token; of steps without
};

class Engine {
 public:
  // `runner` is loaded and outlives this. Throws Error(Usage) for a context below 1 or scheduler options that do not
  // fit each other.
  Engine(runner::Runner& runner, EngineOptions options);

  // Queues a request. Throws Error(Usage) for an empty prompt, an id without a token, bad sampling values, a negative
  // max_tokens, and a prompt that leaves no room for a token in the context or the KV blocks (with the numbers).
  SequenceId add(Request request);
  void cancel(SequenceId id);  // no further output for it; a finished or unknown id is ignored

  bool idle() const { return sequences_.empty(); }

  // One step of the model (none when idle, or when only requests for 0 tokens are to be ended); outputs in the order of
  // the batch. A row of NaN ends its sequence with an error, not the others. When the runner throws, its exception
  // passes through and no token counts as run: step() may be tried again, or the sequences cancelled.
  std::vector<Output> step();

  const EngineStats& stats() const { return stats_; }
  std::int64_t free_blocks() const { return blocks_.free_blocks(); }

  // Logits [vocab_size] of the token that would follow `prompt`, -inf for ids that are not allowed; only when idle.
  // Throws Error(Usage) like add(), Error(Runtime) for NaN.
  std::vector<float> next_logits(std::span<const text::TokenId> prompt);

 private:
  void check_prompt(std::span<const text::TokenId> prompt) const;
  runner::Batch make_batch(const std::vector<Scheduled>& scheduled) const;
  void ask_for_ids(const std::vector<Scheduled>& scheduled, runner::Batch& batch) const;
  runner::StepResult run(const std::vector<Scheduled>& scheduled, const runner::Batch& batch);
  std::vector<Output> end_empty_requests();
  Output next_output(const Sequence& sequence, std::int32_t chosen, std::span<float> logits) const;
  text::TokenId chosen_token(const Sequence& sequence, std::int32_t chosen) const;
  void end(Sequence& sequence);

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(options_.allowed.size()); }

  runner::Runner& runner_;
  EngineOptions options_;
  BlockManager blocks_;
  Scheduler scheduler_;
  Sampler sampler_;
  std::int64_t max_length_;  // of a sequence: the context, or what the KV blocks hold and the token made last
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<SequenceId> nothing_to_do_;  // requests with max_tokens 0: the next step() ends them
  SequenceId next_id_ = 1;
  EngineStats stats_;
};

}  // namespace glyd::engine
