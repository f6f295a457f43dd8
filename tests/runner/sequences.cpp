#include "runner/sequences.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace glyd::test {

runner::Batch make_batch(const std::vector<Part>& parts) {
  runner::Batch batch;
  batch.query_start.push_back(0);
  for (const Part& p : parts)
    batch.max_blocks = std::max(batch.max_blocks, static_cast<std::int32_t>(p.block_table->size()));
  for (const Part& p : parts) {
    for (std::int32_t i = p.begin; i < p.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      batch.logits_rows.push_back(batch.tokens());
      batch.token_ids.push_back((*p.ids)[at]);
      batch.positions.push_back(i);
      batch.slot_mapping.push_back((*p.block_table)[at / runner::kBlockSize] * runner::kBlockSize +
                                   i % runner::kBlockSize);
    }
    batch.query_start.push_back(batch.tokens());
    batch.context_lengths.push_back(p.end);
    batch.block_tables.insert(batch.block_tables.end(), p.block_table->begin(), p.block_table->end());
    batch.block_tables.resize(batch.context_lengths.size() * static_cast<std::size_t>(batch.max_blocks), -1);
  }
  return batch;
}

Rows run_step(runner::Runner& runner, const std::vector<Part>& parts) {
  const runner::Batch batch = make_batch(parts);
  const std::vector<float> logits = runner.step(batch).logits;
  const std::size_t vocab = logits.size() / batch.token_ids.size();
  Rows rows;
  for (std::size_t t = 0; t < batch.token_ids.size(); ++t)
    rows.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t * vocab),
                      logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * vocab));
  return rows;
}

Rows run_chunks(runner::Runner& runner, const Ids& ids, const Ids& block_table, std::int32_t chunk) {
  Rows rows;
  const auto n = static_cast<std::int32_t>(ids.size());
  for (std::int32_t begin = 0; begin < n; begin += chunk) {
    for (auto& row : run_step(runner, {{&ids, &block_table, begin, std::min(n, begin + chunk)}}))
      rows.push_back(std::move(row));
  }
  return rows;
}

Ids blocks_from(std::int32_t first, std::int64_t n) {
  Ids blocks(static_cast<std::size_t>((n + runner::kBlockSize - 1) / runner::kBlockSize));
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

std::unique_ptr<runner::Runner> load_runner(const std::filesystem::path& model, const RunnerSetup& setup) {
  runner::Options options;
  options.threads = setup.threads;
  options.activations = setup.activations;
  options.weights = setup.weights;
  options.kv_blocks = setup.kv_blocks;
  options.max_batch_tokens = setup.max_batch_tokens;
  auto runner = std::make_unique<runner::cpu::CpuRunner>(options, *setup.kernels);
  Progress silent;
  runner->load(model::Checkpoint::open(model), silent);
  return runner;
}

Ids random_ids(std::size_t n, std::int32_t vocab, unsigned seed) {
  std::mt19937 engine(seed);
  Ids ids(n);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(engine() % static_cast<unsigned>(vocab));
  return ids;
}

std::size_t arg_max(const std::vector<float>& row) {
  return static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace glyd::test
