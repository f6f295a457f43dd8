#pragma once
// What glyd-bench measured, as plain data: filled by bench_series, shown by bench_report.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench_options.h"
#include "model/config.h"
#include "runner/runner.h"

namespace glyd::tools {

// One run: all prompts, then all sequences in step, a token each. Rates are tokens a second of all together.
struct BenchRun {
  double prompt_rate = 0;
  double generation_rate = 0;  // 0: each sequence made only the token behind its prompt
  double step_seconds = 0;     // of a generation step; 0 likewise
};

// A series at one number of sequences.
struct BenchPoint {
  std::int64_t parallel = 0;
  std::vector<BenchRun> runs;
  std::string ids_hash;     // of all ids that a run makes
  std::string logits_hash;  // of the rows behind the prompts and of the first steps after them
  bool repeatable = true;   // every run made the same ids
  std::vector<std::pair<std::string, double>> step_profile;  // seconds by part, where the device measures it
};

// One way to hold the weights and to multiply.
struct SeriesRecord {
  runner::WeightFormat weights = runner::WeightFormat::AsStored;
  runner::Gemm gemm = runner::Gemm::Auto;
  std::optional<std::string> refusal;  // why it did not run: what memory lacks
  runner::MemoryPlan plan;
  std::uint64_t weight_bytes = 0, bytes_per_step = 0;
  std::uint64_t memory_used = 0;                    // of the device, by the runner; 0: unknown
  std::optional<std::uint64_t> driver_memory_used;  // of the whole GPU, by nvidia-smi
  double load_seconds = 0;
  std::vector<runner::LoadStage> load_stages;
  std::vector<BenchPoint> points;

  std::string name() const;  // "packed", "bf16 cublas"
};

struct BenchRecord {
  BenchOptions options;
  std::string date;  // UTC
  model::Config config;
  std::uint64_t parameters = 0;
  std::string device;
  std::vector<std::pair<std::string, std::string>> device_facts;
  double read_bandwidth = 0;         // bytes a second; 0: unknown
  std::int64_t chunk = 0;            // tokens of a prompt in one step
  bool by_turns = true;              // all series loaded together; else one after the other
  std::uint64_t process_memory = 0;  // most that this process had resident
  std::vector<SeriesRecord> series;
};

struct Spread {
  double mean = 0, deviation = 0;  // of the sample; 0 of a single value
  std::size_t count = 0;
};
Spread spread(const std::vector<double>& values);
Spread spread(const std::vector<BenchRun>& runs, double BenchRun::*member);

}  // namespace glyd::tools
