#pragma once
// The CPU backend: the readable reference. Each step of a layer is one operation, one file.
//
// It may be one of several ranks that have a part of the model each (model/sharding.h). A rank computes with its own
// layers, heads and inner size as if they were the model's; in two places of a layer, and for the logits, it meets the
// others of its stage. Hidden states come from the stage before and go to the one behind.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "model/config.h"
#include "runner/cpu/context.h"
#include "runner/cpu/kv_cache.h"
#include "runner/cpu/rope.h"
#include "runner/cpu/weights.h"
#include "runner/parallel/communicator.h"
#include "runner/runner.h"

namespace glyd::runner::cpu {

class CpuRunner : public Runner {
 public:
  // `kernels`: the vector loops to use, the best that the machine has by default. `communicator`: of the rank that this
  // is, null where there is only one; the caller keeps it. Throws Error(Usage) for a bad number of threads.
  explicit CpuRunner(const Options& options, const Kernels& kernels = best_kernels(),
                     Communicator* communicator = nullptr);

  MemoryPlan plan(const model::Checkpoint& checkpoint) const override;
  void load(const model::Checkpoint& checkpoint, Progress& progress) override;
  MemoryPlan plan_random(const model::Config& config) const override;
  void load_random(const model::Config& config, std::uint64_t seed, Progress& progress) override;
  StepResult step(const Batch& batch) override;  // results come out of the last stage's first rank alone
  std::int64_t kv_blocks() const override { return kv_blocks_; }
  std::string device_name() const override;

  std::vector<LoadStage> load_stages() const override { return load_stages_; }
  double read_bandwidth() override;
  std::vector<std::pair<std::string, std::string>> device_facts() const override;
  void set_trace(Trace trace) override { trace_ = std::move(trace); }

  std::uint64_t bytes_per_step() const override;
  std::uint64_t weight_bytes() const override { return weights_.bytes(); }

 private:
  // Values of the step's tokens, a row each.
  struct Workspace {
    FloatBuffer hidden;     // [H] the residual stream
    FloatBuffer normed;     // [H]
    FloatBuffer projected;  // [H] what is added to the residual stream
    FloatBuffer qkv;        // [(nq + 2 nkv) d]
    FloatBuffer q;          // [nq][d padded]
    FloatBuffer attended;   // [nq d]
    FloatBuffer gate_up;    // [2 I]
    FloatBuffer activated;  // [I]
  };

  MemoryPlan plan(const model::Config& config, std::uint64_t weight_bytes, bool packs) const;
  model::Shard shard_of(const model::Config& config) const;
  void release();
  void allocate(const model::Config& whole, MemoryPlan plan);
  void run_layer(int layer, const Batch& batch, std::span<const std::int32_t> sequence_of);
  void add_ranks(FloatRows sums, std::size_t tokens);
  std::span<float> hidden_states(std::size_t tokens);
  void show_hidden(int layer, const Batch& batch);
  StepResult logits(const Batch& batch);
  void choose_ids(const Batch& batch, StepResult& result) const;

  Options options_;
  const Kernels& kernels_;
  Communicator* const communicator_;
  ThreadPool pool_;
  model::Shard shard_;
  model::Config config_;  // layers, heads and inner size are the rank's own
  Weights weights_;
  KvCache cache_;
  RopeTable rope_;
  Workspace work_;
  std::optional<Context> context_;  // set by allocate()
  std::int64_t kv_blocks_ = 0;
  std::vector<std::int32_t> forbidden_;  // ids that are never chosen
  Trace trace_;
  std::vector<LoadStage> load_stages_;
  double read_bandwidth_ = 0;  // measured when first asked for
};

}  // namespace glyd::runner::cpu
