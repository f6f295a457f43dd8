#pragma once
// A series of glyd-bench at work: a runner with its weights, and the engine loop over it, timed.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "bench_options.h"
#include "bench_record.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "runner/runner.h"

namespace glyd::tools {

// The model's files, or its shape alone.
struct BenchModel {
  BenchModel(const std::filesystem::path& dir, bool random_weights);
  std::uint64_t parameters() const;

  std::optional<model::Checkpoint> checkpoint;  // none: weights are made up
  model::Config config;
};

class BenchSeries {
 public:
  // All arguments outlive this. `chunk`: tokens of a prompt in one step.
  BenchSeries(const BenchModel& model, const BenchOptions& options, std::int64_t chunk, SeriesRecord& record);

  SeriesRecord& record() { return record_; }

  // Works out the memory before any is taken; false, with the record's refusal set, when it is too much.
  bool plan();
  void load(Progress& progress);
  void unload();

  // Opens a point of the record: one run that is not timed, which takes the hash of the logits and starts whatever is
  // started once.
  void warm_up(std::int64_t parallel);
  void run();  // adds a timed run to the last point

 private:
  struct Outcome {
    BenchRun run;
    std::vector<std::vector<text::TokenId>> ids;  // made by each sequence
  };
  Outcome generate(std::int64_t parallel, std::int64_t tokens, bool hash_logits);
  runner::Options runner_options() const;

  const BenchModel& model_;
  const BenchOptions& options_;
  const std::int64_t chunk_;
  SeriesRecord& record_;
  std::unique_ptr<runner::Runner> runner_;
};

}  // namespace glyd::tools
