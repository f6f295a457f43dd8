// A sequence's logits depend on its own tokens alone: bit for bit, whatever else happens.
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "runner/numbers.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using runner::Activations;
using test::Ids;
using test::Part;
using test::Rows;
using test::same_bits;

// Models of several shapes: head sizes and groups of published ones, odd sizes that need padding.
struct Shape {
  std::string model_type;
  io::Json changes;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"qwen3", {{"head_dim", 8}}},
      {"qwen2", {{"head_dim", 64}, {"num_attention_heads", 14}, {"num_key_value_heads", 2}, {"hidden_size", 72}}},
      {"qwen3",
       {{"head_dim", 128}, {"num_attention_heads", 5}, {"num_key_value_heads", 1}, {"intermediate_size", 100}}},
      {"llama", {{"head_dim", 256}, {"num_attention_heads", 2}, {"num_key_value_heads", 2}, {"vocab_size", 77}}},
      {"qwen3", {{"head_dim", 10}, {"num_attention_heads", 16}, {"num_key_value_heads", 1}, {"hidden_size", 40}}},
  };
  return all;
}

class Model {
 public:
  explicit Model(const Shape& shape) : config_(test::tiny_config(shape.model_type, shape.changes)) {
    test::write_formula_model(dir_.path(), config_);
  }
  std::unique_ptr<runner::Runner> runner(const test::RunnerSetup& setup = {}) const {
    return test::load_runner(dir_.path(), setup);
  }
  Ids ids(std::size_t n, unsigned seed) const { return test::random_ids(n, config_["vocab_size"], seed); }

 private:
  test::TempDir dir_;
  io::Json config_;
};

TEST_CASE("a prompt in chunks gives the bits of the prompt in one piece", "[runner]") {
  for (const Shape& shape : shapes()) {
    const Model model(shape);
    for (const Activations activations : {Activations::Fp32, Activations::Bf16}) {
      const auto runner = model.runner({.activations = activations});
      const Ids ids = model.ids(53, 1), table = test::blocks_from(0, 53);
      const Rows whole = test::run_chunks(*runner, ids, table, 53);
      REQUIRE(whole.size() == 53);
      for (const std::int32_t chunk : {1, 7, 16, 52}) {
        INFO(shape.model_type << " " << shape.changes << " chunk " << chunk);
        CHECK(same_bits(test::run_chunks(*runner, ids, table, chunk), whole));
      }
    }
  }
}

TEST_CASE("threads and scattered blocks change nothing", "[runner]") {
  for (const Shape& shape : shapes()) {
    const Model model(shape);
    const Ids ids = model.ids(70, 2);
    const auto one = model.runner({.threads = 1}), three = model.runner({.threads = 3});
    const Rows expected = test::run_chunks(*one, ids, test::blocks_from(0, 70), 70);
    INFO(shape.model_type << " " << shape.changes);
    CHECK(same_bits(test::run_chunks(*three, ids, test::blocks_from(0, 70), 70), expected));
    CHECK(same_bits(test::run_chunks(*three, ids, test::blocks_from(0, 70), 1), expected));
    CHECK(same_bits(test::run_chunks(*three, ids, {63, 4, 17, 0, 31}, 9), expected));
  }
}

TEST_CASE("alone gives the bits of a batch of 32 of different lengths", "[runner]") {
  for (const Shape& shape : shapes()) {
    const Model model(shape);
    for (const Activations activations : {Activations::Fp32, Activations::Bf16}) {
      const auto alone = model.runner({.threads = 1, .activations = activations});
      const auto together = model.runner({.threads = 2, .activations = activations, .kv_blocks = 256});
      constexpr std::size_t kSequences = 32;

      std::vector<Ids> ids, tables;
      Ids blocks(256);
      std::iota(blocks.begin(), blocks.end(), 0);
      std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
      auto next = blocks.begin();
      for (std::size_t s = 0; s < kSequences; ++s) {
        ids.push_back(model.ids(1 + s * 3, 100 + static_cast<unsigned>(s)));
        const std::size_t needed = test::blocks_from(0, static_cast<std::int64_t>(ids[s].size())).size();
        tables.emplace_back(next, next + static_cast<std::ptrdiff_t>(needed));
        next += static_cast<std::ptrdiff_t>(needed);
      }

      // Steps mix prompts' chunks of different sizes with decoding sequences, the last ones first in the batch.
      std::vector<Rows> rows(kSequences);
      std::vector<std::int32_t> done(kSequences, 0);
      for (int step = 0;; ++step) {
        std::vector<Part> parts;
        std::vector<std::size_t> members;
        for (std::size_t s = kSequences; s-- > 0;) {
          const auto n = static_cast<std::int32_t>(ids[s].size());
          if (done[s] == n) continue;
          const std::int32_t chunk =
              s % 4 == 0 ? 1 : static_cast<std::int32_t>(1 + (s + static_cast<std::size_t>(step)) % 19);
          const std::int32_t end = std::min(n, done[s] + chunk);
          parts.push_back({&ids[s], &tables[s], done[s], end});
          members.push_back(s);
          done[s] = end;
        }
        if (parts.empty()) break;
        std::size_t at = 0;
        const Rows step_rows = test::run_step(*together, parts);
        for (std::size_t i = 0; i < parts.size(); ++i)
          for (std::int32_t t = parts[i].begin; t < parts[i].end; ++t) rows[members[i]].push_back(step_rows[at++]);
      }

      for (std::size_t s = 0; s < kSequences; ++s) {
        INFO(shape.model_type << " " << shape.changes << " sequence " << s);
        const Ids table = test::blocks_from(0, static_cast<std::int64_t>(ids[s].size()));
        CHECK(same_bits(rows[s], test::run_chunks(*alone, ids[s], table, 512)));
      }
    }
  }
}

TEST_CASE("only the rows asked for are returned, in order", "[runner]") {
  const Model model(shapes()[0]);
  const auto runner = model.runner();
  const Ids ids = model.ids(20, 5), table = test::blocks_from(0, 20);
  const Rows all = test::run_chunks(*runner, ids, table, 20);
  runner::Batch batch = test::make_batch({{&ids, &table, 0, 20}});
  batch.logits_rows = {0, 7, 19};
  const std::vector<float> some = runner->step(batch).logits;
  std::vector<float> expected;
  for (const std::size_t row : {0, 7, 19}) expected.insert(expected.end(), all[row].begin(), all[row].end());
  CHECK(test::bits_equal(some, expected));
  batch.logits_rows.clear();
  CHECK(runner->step(batch).logits.empty());
}

TEST_CASE("blocks that another sequence used before leave no trace", "[runner]") {
  const Model model(shapes()[0]);
  const auto runner = model.runner({.kv_blocks = 4});
  const Ids first = model.ids(64, 6), second = model.ids(50, 7);
  const Rows fresh = test::run_chunks(*runner, second, {0, 1, 2, 3}, 50);
  test::run_chunks(*runner, first, {3, 2, 1, 0}, 64);
  CHECK(same_bits(test::run_chunks(*runner, second, {2, 0, 3, 1}, 50), fresh));
}

}  // namespace
}  // namespace glyd
