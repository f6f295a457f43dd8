#pragma once
// A model split over several ranks (model/sharding.h), seen as one runner. Each rank is a runner with a part of the
// model, on a thread of its own; it gets the same batches as all others and the same hidden states as those of its
// stage. Stages take turns: each waits for the hidden states of the one before. The first rank of the last stage
// delivers the results.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/parallel/loopback_communicator.h"
#include "runner/parallel/rank_threads.h"
#include "runner/runner.h"

namespace glyd::runner {

class ParallelRunner : public Runner {
 public:
  // Makes the runner of one rank; the communicator is the rank's, and lives longer than it.
  using MakeRank = std::function<std::unique_ptr<Runner>(Communicator&)>;
  // `stages` of `ranks` each.
  ParallelRunner(int ranks, const MakeRank& make_rank, int stages = 1);

  // The sum of the ranks; KV blocks are as many as the rank with the fewest has.
  MemoryPlan plan(const model::Checkpoint& checkpoint) const override;
  MemoryPlan plan_random(const model::Config& config) const override;

  // A rank that fails ends these on all ranks, with its error under its name. The runner stays usable.
  void load(const model::Checkpoint& checkpoint, Progress& progress) override;
  void load_random(const model::Config& config, std::uint64_t seed, Progress& progress) override;
  StepResult step(const Batch& batch) override;

  bool samples() const override { return first().samples(); }
  std::uint64_t bytes_per_step() const override;
  std::uint64_t weight_bytes() const override;
  std::int64_t kv_blocks() const override;
  std::string device_name() const override;
  std::vector<LoadStage> load_stages() const override { return first().load_stages(); }
  std::uint64_t memory_used() const override;
  std::int64_t preferred_chunk() const override { return first().preferred_chunk(); }
  double read_bandwidth() override;  // of the ranks of a stage at once; of the slowest stage
  std::vector<std::pair<std::string, std::string>> device_facts() const override { return first().device_facts(); }
  void set_trace(Trace trace) override;
  std::vector<std::pair<std::string, double>> step_profile() override;  // of all stages, one after another

 private:
  const Runner& first() const { return *ranks_.front(); }
  MemoryPlan sum_of_plans(const std::function<MemoryPlan(const Runner&)>& plan_of) const;
  // The first rank of each stage.
  // Calls body(rank's number, rank's runner) for all at once. Throws the error of the first rank that has one.
  void on_all(const std::function<void(std::size_t, Runner&)>& body);

  const std::size_t ranks_of_stage_, stages_;
  LoopbackGroup group_;
  std::vector<std::unique_ptr<Runner>> ranks_;  // stage by stage
  RankThreads threads_;
};

// The ranks on this machine's CPU: they share its threads and its memory.
std::unique_ptr<Runner> make_parallel_cpu_runner(const Options& options);

}  // namespace glyd::runner
