#pragma once
// Drives a runner the way an engine does: sequences with their blocks, cut into steps as a test wants.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "runner/cpu/cpu_runner.h"
#include "runner/runner.h"

namespace glyd::test {

using Ids = std::vector<std::int32_t>;
using Rows = std::vector<std::vector<float>>;  // logits, a row a token

// A part of a sequence that runs in one step: tokens [begin, end).
struct Part {
  const Ids* ids;
  const Ids* block_table;
  std::int32_t begin, end;
};

// One step over the parts, logits of every token asked for.
runner::Batch make_batch(const std::vector<Part>& parts);

// Runs the parts in one step; a row of logits for each token.
Rows run_step(runner::Runner& runner, const std::vector<Part>& parts);

// Runs one sequence in chunks of `chunk` tokens over the blocks of `block_table`; a row for each token.
Rows run_chunks(runner::Runner& runner, const Ids& ids, const Ids& block_table, std::int32_t chunk);

// Blocks first, first + 1, ... enough for n tokens.
Ids blocks_from(std::int32_t first, std::int64_t n);

// A loaded runner. The KV cache has `kv_blocks` blocks.
struct RunnerSetup {
  int threads = 1;
  runner::Activations activations = runner::Activations::Fp32;
  runner::WeightFormat weights = runner::WeightFormat::AsStored;
  std::int64_t kv_blocks = 64, max_batch_tokens = 512;
  const runner::cpu::Kernels* kernels = &runner::cpu::best_kernels();
};
std::unique_ptr<runner::Runner> load_runner(const std::filesystem::path& model, const RunnerSetup& setup = {});

// n ids below `vocab`, the same in every run.
Ids random_ids(std::size_t n, std::int32_t vocab, unsigned seed);

std::size_t arg_max(const std::vector<float>& row);

}  // namespace glyd::test
