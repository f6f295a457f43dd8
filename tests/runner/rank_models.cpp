#include "runner/rank_models.h"

#include <catch2/catch.hpp>

#include "runner/cpu/cpu_runner.h"

namespace glyd::test {

runner::Options options_for(int ranks, runner::WeightFormat weights, runner::Activations activations) {
  runner::Options o;
  o.threads = ranks;  // one each
  o.tensor_parallel = ranks;
  o.weights = weights;
  o.activations = activations;
  o.kv_blocks = 64;
  o.max_batch_tokens = 512;
  return o;
}

std::unique_ptr<runner::Runner> load(const std::filesystem::path& model, const runner::Options& options) {
  auto runner = runner::make_runner(options);
  Progress silent;
  runner->load(model::Checkpoint::open(model), silent);
  return runner;
}

Ids greedy_ids(runner::Runner& runner, Ids ids, const Ids& block_table) {
  for (int i = 0; i < 8; ++i) {
    const auto end = static_cast<std::int32_t>(ids.size());
    runner::Batch batch = make_batch({{&ids, &block_table, end - 1, end}});
    batch.greedy = {1};
    const runner::StepResult result = runner.step(batch);
    REQUIRE(result.ids.size() == 1);
    CHECK(result.logits.empty());
    ids.push_back(result.ids[0]);
  }
  return ids;
}

TinyModel::TinyModel(const std::string& type, const io::Json& changes) : config_(tiny_config(type, changes)) {
  write_formula_model(dir_.path(), config_);
}

io::Json sizes(int heads, int kv_heads, int head_dim, int inner, int vocab) {
  return {{"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"head_dim", head_dim},
          {"intermediate_size", inner},
          {"vocab_size", vocab}};
}

io::Json with(io::Json changes, const io::Json& more) {
  changes.update(more);
  return changes;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"qwen3", sizes(8, 1, 8, 25, 32)},
      {"qwen2", sizes(14, 2, 6, 41, 77)},
      {"qwen3", with(sizes(16, 8, 4, 513, 300), {{"attention_bias", true}})},
      {"llama", with(sizes(8, 8, 16, 100, 129), {{"attention_bias", true}, {"mlp_bias", true}})},
      {"qwen3", with(sizes(10, 2, 10, 2047, 300), {{"tie_word_embeddings", true}})},
      {"llama", with(sizes(24, 3, 8, 9, 17), {{"tie_word_embeddings", true}, {"mlp_bias", true}})},
  };
  return all;
}

std::unique_ptr<runner::ParallelRunner> make_ranks(int ranks, int stages,
                                                   const std::function<void(int, runner::Options&)>& options_of,
                                                   const std::function<void(int, runner::Runner&)>& prepare) {
  const auto make_rank = [&](runner::Communicator& communicator) {
    runner::Options options = options_for(1);
    if (options_of) options_of(communicator.global_rank(), options);
    auto rank = std::make_unique<runner::cpu::CpuRunner>(options, runner::cpu::best_kernels(), &communicator);
    if (prepare) prepare(communicator.global_rank(), *rank);
    return rank;
  };
  return std::make_unique<runner::ParallelRunner>(ranks, make_rank, stages);
}

}  // namespace glyd::test
