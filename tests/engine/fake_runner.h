#pragma once
// A runner without a model. Its logits are a pure function of a sequence's own tokens, but it reads these tokens from a
// simulated KV cache through the block table, and checks everything it reads: so a wrong block, slot, position or a
// missing recomputation is an exception at once, and a neighbour's influence shows in the ids.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "runner/runner.h"

namespace glyd::test {

inline constexpr std::int32_t kVocab = 50;
inline constexpr std::int32_t kNanToken = 48;  // a row whose sequence holds this token is NaN; unlikely to be made
inline constexpr std::int32_t kPadding = 49;   // not allowed, and its logit is always the largest

class FakeRunner : public runner::Runner {
 public:
  // Sequences are told apart by their first tokens: tests give each its own.
  explicit FakeRunner(std::int64_t blocks) : slots_(static_cast<std::size_t>(blocks * runner::kBlockSize)) {}

  runner::MemoryPlan plan(const model::Checkpoint&) const override { return {}; }
  void load(const model::Checkpoint&, Progress&) override {}
  runner::MemoryPlan plan_random(const model::Config&) const override { return {}; }
  void load_random(const model::Config&, std::uint64_t, Progress&) override {}
  std::int64_t kv_blocks() const override { return static_cast<std::int64_t>(slots_.size()) / runner::kBlockSize; }
  std::uint64_t bytes_per_step() const override { return 0; }
  std::uint64_t weight_bytes() const override { return 0; }
  std::string device_name() const override { return "fake"; }
  runner::StepResult step(const runner::Batch& batch) override;
  bool samples() const override { return samples_ids; }

  // What one sequence ran in one step: tokens [begin, end).
  struct Chunk {
    std::int32_t first_token = 0;  // of the sequence: names it
    std::int64_t begin = 0, end = 0;
    bool logits = false;  // asked for
    std::int64_t tokens() const { return end - begin; }
    bool operator==(const Chunk&) const = default;
  };
  std::vector<std::vector<Chunk>> steps;         // every step taken
  std::function<void(std::size_t)> before_step;  // called with the number of the step; may throw
  std::size_t rows_too_few = 0;                  // returns that many rows of logits, or ids, less
  bool chooses_ids = true;                       // else it gives logits also where only the id is wanted
  bool samples_ids = false;                      // draws the ids of rows with a request, as engine::Sampler does
  std::size_t leaves_every = 0;                  // of these, leaves every so manieth to the host; 0: none
  std::size_t ids_drawn = 0;
  std::int64_t rows_of_logits = 0;       // given so far
  std::optional<std::int32_t> wrong_id;  // given in place of every id chosen

 private:
  void choose_ids(const runner::Batch& batch, runner::StepResult& result);
  std::int32_t draw(const runner::Batch& batch, const runner::RowSampling& how, std::span<float> logits);

  struct Slot {
    std::int32_t token = -1, position = -1;
    std::uint64_t history = 0;  // hash of the sequence's tokens up to this one
  };
  std::vector<Slot> slots_;
  std::size_t requests_seen_ = 0;
};

// Options for a FakeRunner: ids 0 .. kPadding-1 are allowed.
engine::EngineOptions fake_options(std::int64_t context, const engine::SchedulerOptions& scheduler = {});

// How a sequence ended.
struct Ending {
  std::vector<text::TokenId> tokens;
  std::optional<engine::FinishReason> finish;
  std::string error;
  bool operator==(const Ending&) const = default;
};

// Adds an output to its sequence's ending; fails the test when the sequence had ended already.
void collect(const std::vector<engine::Output>& outputs, std::map<engine::SequenceId, Ending>& endings);

// Steps until idle; throws when that takes absurdly long.
std::map<engine::SequenceId, Ending> run_to_end(engine::Engine& engine);

// What `request` gives on its own, with room for everything.
Ending alone(const engine::Request& request, std::int64_t context);

}  // namespace glyd::test
