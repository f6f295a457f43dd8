#pragma once
// What glyd-bench was asked to measure, read from its command line.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device_options.h"
#include "runner/runner.h"

namespace glyd::tools {

enum class BenchFormat { Markdown, Json, JsonLines, Csv };

struct BenchOptions {
  std::string model;
  bool random_weights = false;
  std::vector<std::int64_t> parallel;                 // sequences at a time, each measured
  std::int64_t prompt = 0, generated = 0, depth = 0;  // tokens of a sequence
  std::int64_t repeats = 0;
  std::uint64_t seed = 0;                     // of prompts and made-up weights
  std::vector<runner::WeightFormat> weights;  // empty: as the directory stores them
  std::vector<runner::Gemm> gemms;
  DeviceOptions device;
  BenchFormat format = BenchFormat::Markdown;
  bool verbose = false, quiet = false;
  std::optional<std::string> log_file;

  std::int64_t context() const { return depth + prompt + generated; }
};

// Empty when --help or --version was printed. Throws Error(Usage).
std::optional<BenchOptions> parse_bench_options(const std::vector<std::string>& args);

}  // namespace glyd::tools
