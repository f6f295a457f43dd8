// Decode and prefill speed of the CPU backend on a model's shape with made-up weights, beside the machine's read
// bandwidth.
//
//   cpu_decode CONFIG_DIR [threads] [context] [tokens]
//   cpu_decode models/qwen3-0.6b          all threads, 128 tokens of context, 32 tokens decoded

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/timing.h"
#include "model/config.h"
#include "runner/cpu/cpu_runner.h"
#include "runner/cpu/read_bandwidth.h"

namespace glyd {
namespace {

constexpr int kRounds = 3;

// One step of a single sequence: tokens [begin, end), logits of the last.
runner::Batch step_of(std::int32_t begin, std::int32_t end, std::int32_t max_blocks) {
  runner::Batch batch;
  for (std::int32_t i = begin; i < end; ++i) {
    batch.token_ids.push_back(i % 1000);
    batch.positions.push_back(i);
    batch.slot_mapping.push_back(i);
  }
  batch.query_start = {0, end - begin};
  batch.context_lengths = {end};
  batch.max_blocks = max_blocks;
  for (std::int32_t b = 0; b < max_blocks; ++b) batch.block_tables.push_back(b);
  batch.logits_rows = {end - begin - 1};
  return batch;
}

int run(const std::string& dir, int threads, std::int32_t context, std::int32_t tokens) {
  runner::Options options;
  options.threads = threads > 0 ? threads : available_threads();
  options.context = context + tokens;
  options.max_sequences = 1;
  options.max_batch_tokens = context;
  runner::cpu::CpuRunner runner(options);
  ConsoleProgress progress;
  runner.load_random(model::load_config(dir), 1, progress);
  const auto blocks = static_cast<std::int32_t>(runner::blocks_for(context + tokens));
  runner.step(step_of(0, context, blocks));  // touches the memory

  // All three in turn, the best of each: another program's burst then spoils a round, not the comparison.
  ThreadPool pool(options.threads);
  double bandwidth = 0, prefill = 0, decode = 0;
  for (int round = 0; round < kRounds; ++round) {
    bandwidth = std::max(bandwidth, runner::cpu::read_bandwidth(pool));

    Clock::time_point start = Clock::now();
    runner.step(step_of(0, context, blocks));
    prefill = std::max(prefill, context / seconds_since(start));

    start = Clock::now();
    for (std::int32_t i = 0; i < tokens; ++i) runner.step(step_of(context + i, context + i + 1, blocks));
    decode = std::max(decode, tokens / seconds_since(start));
  }

  const double weights = static_cast<double>(runner.bytes_per_step());
  fmt::print("{}: {}, {:.3f} GB of weights read a step, best of {} rounds\n", dir, runner.device_name(), weights * 1e-9,
             kRounds);
  fmt::print("read bandwidth  {:8.2f} GB/s\n", bandwidth * 1e-9);
  fmt::print(
      "decode          {:8.2f} tokens/s  {:.2f} GB/s of weights, {:.0f} % of the read bandwidth, context {} to {}\n",
      decode, decode * weights * 1e-9, 100 * decode * weights / bandwidth, context, context + tokens);
  fmt::print("prefill         {:8.2f} tokens/s  {} tokens in one step\n", prefill, context);
  return 0;
}

}  // namespace
}  // namespace glyd

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} CONFIG_DIR [threads] [context] [tokens]\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  try {
    return glyd::run(argv[1], number(2, 0), std::max(1, number(3, 128)), std::max(1, number(4, 32)));
  } catch (const glyd::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return static_cast<int>(e.code());
  }
}
