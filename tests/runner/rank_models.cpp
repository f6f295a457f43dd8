#include "runner/rank_models.h"

#include <catch2/catch.hpp>

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

std::string error_of(const std::function<void()>& body, Code code) {
  try {
    body();
  } catch (const Error& e) {
    CHECK(e.code() == code);
    CHECK_THAT(e.what(), !Catch::Contains("\n"));
    return e.what();
  }
  return "no error";
}

}  // namespace glyd::test
