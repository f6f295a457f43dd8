// Layers in stages compute, bit for bit, what one stage computes.
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "runner/numbers.h"
#include "runner/rank_models.h"
#include "runner/sequences.h"
#include "support/errors.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using runner::Activations;
using runner::Options;
using runner::WeightFormat;
using test::error_of;
using test::Ids;
using test::load;
using test::options_for;
using test::Rows;
using test::same_bits;
using test::Shape;
using test::TinyModel;

Options staged(int ranks, int stages, WeightFormat weights = WeightFormat::AsStored,
               Activations activations = Activations::Fp32) {
  Options o = options_for(ranks, weights, activations);
  o.pipeline_parallel = stages;
  return o;
}

// Both runners over the same text, in pieces and token by token.
void check_equal(runner::Runner& runner, runner::Runner& want, const Ids& ids) {
  const Ids table = test::blocks_from(0, static_cast<std::int64_t>(ids.size()) + 8);
  for (const std::int32_t chunk : {7, 512})
    CHECK(same_bits(test::run_chunks(runner, ids, table, chunk), test::run_chunks(want, ids, table, chunk)));
  CHECK(test::greedy_ids(runner, ids, table) == test::greedy_ids(want, ids, table));
}

TEST_CASE("tiny shapes in 2, 3 and 5 stages, of one and two ranks", "[runner][pipeline]") {
  for (const Shape& shape : test::shapes()) {
    const TinyModel model(shape.type, test::with(shape.changes, {{"num_hidden_layers", 5}}));
    for (const int ranks : {1, 2}) {
      for (const Activations activations : {Activations::Fp32, Activations::Bf16}) {
        const auto want = load(model.path(), staged(ranks, 1, WeightFormat::AsStored, activations));
        for (const int stages : {2, 3, 5}) {
          INFO(shape.type << " " << shape.changes << " in " << stages << " stages of " << ranks);
          const auto runner = load(model.path(), staged(ranks, stages, WeightFormat::AsStored, activations));
          check_equal(*runner, *want, model.ids(37));
          CHECK(runner->bytes_per_step() == want->bytes_per_step());
        }
      }
    }
  }
}

TEST_CASE("the shipped models in stages, from plain and packed weights", "[runner][pipeline]") {
  for (const std::string& name : test::kShippedModels) {
    const std::filesystem::path plain = test::shipped_model(name), packed = test::packed_copy(name);
    const Ids ids = test::recorded(name)["prompts"][3]["ids"];
    for (const int ranks : {1, 2}) {
      const auto want = load(plain, staged(ranks, 1));
      for (const int stages : {2, 3}) {
        INFO(name << " in " << stages << " stages of " << ranks);
        const auto split = load(plain, staged(ranks, stages));
        check_equal(*split, *want, ids);
        for (const auto& [from, format] :
             {std::pair(packed, WeightFormat::AsStored), std::pair(packed, WeightFormat::Bf16),
              std::pair(plain, WeightFormat::Packed)}) {
          const auto other = load(from, staged(ranks, stages, format));
          check_equal(*other, *want, ids);
          const double held =
              static_cast<double>(other->bytes_per_step()) / static_cast<double>(split->bytes_per_step());
          CHECK(held < (format == WeightFormat::Bf16 ? 1.001 : 0.8));
        }
      }
    }
  }
}

TEST_CASE("made-up weights are the same model in any number of stages", "[runner][pipeline]") {
  const model::Config config = model::load_config(test::shipped_model("tiny-austen"));
  Progress silent;
  const auto want = runner::make_runner(staged(1, 1)), split = runner::make_runner(staged(1, 8));
  want->load_random(config, 11, silent);
  split->load_random(config, 11, silent);
  CHECK(split->weight_bytes() <= split->plan_random(config).weights);
  check_equal(*split, *want, test::random_ids(20, 4096, 6));
}

TEST_CASE("a trace sees the layers of all stages in the model's order", "[runner][pipeline]") {
  using Seen = std::vector<std::pair<int, std::vector<float>>>;
  const std::filesystem::path model = test::shipped_model("tiny-austen");
  const Ids ids = test::random_ids(30, 4096, 4), table = test::blocks_from(0, 30);
  const auto traced = [&](const Options& options) {
    Seen seen;
    const auto runner = load(model, options);
    runner->set_trace([&](int layer, std::span<const float> hidden) {
      seen.emplace_back(layer, Rows{{hidden.begin(), hidden.end()}}[0]);
    });
    test::run_chunks(*runner, ids, table, 20);
    runner->set_trace({});
    test::run_chunks(*runner, ids, table, 20);
    return seen;
  };
  for (const int ranks : {1, 2}) {
    const Seen want = traced(staged(ranks, 1)), got = traced(staged(ranks, 3));
    REQUIRE(want.size() == 2 * 9);  // two steps; the embedding and eight layers
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      CHECK(got[i].first == static_cast<int>(i % 9) - 1);
      CHECK(test::bits_equal(got[i].second, want[i].second));
    }
  }
}

TEST_CASE("the rank with the fewest KV blocks decides for all stages", "[runner][pipeline]") {
  const TinyModel model("qwen3", test::sizes(8, 1, 8, 25, 32));
  const auto runner = test::make_ranks(2, 2, [](int rank, Options& o) { o.kv_blocks = rank == 3 ? 7 : 60 + rank; });
  const auto checkpoint = model::Checkpoint::open(model.path());
  Progress silent;
  CHECK(runner->plan(checkpoint).kv_blocks == 7);
  runner->load(checkpoint, silent);
  CHECK(runner->kv_blocks() == 7);
  const Ids ids = model.ids(12), last = {6}, beyond = {7};
  test::run_chunks(*runner, ids, last, 512);
  CHECK_THAT(error_of(Code::Runtime, [&] { test::run_chunks(*runner, ids, beyond, 512); }),
             Catch::Contains("not allocated"));
}

TEST_CASE("stages that cannot be served are refused by name, before anything is loaded", "[runner][pipeline]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  const auto too_many = runner::make_runner(staged(2, 9));
  Progress silent;
  for (const auto& body : {std::function<void()>([&] { too_many->plan(checkpoint); }),
                           std::function<void()>([&] { too_many->load(checkpoint, silent); })}) {
    CHECK_THAT(error_of(Code::Usage, body), Catch::StartsWith("-pp 9: ") && Catch::Contains("num_hidden_layers is 8"));
  }
  for (const int stages : {-1, 0, runner::kMaxRanks + 1})
    CHECK_THAT(error_of(Code::Usage, [&] { runner::make_runner(staged(1, stages)); }),
               Catch::StartsWith("-pp " + std::to_string(stages)));
  CHECK_THAT(error_of(Code::Usage, [&] { runner::make_runner(staged(16, 8)); }),
             Catch::StartsWith("-tp 16 -pp 8: ") && Catch::Contains("128") && Catch::Contains("64"));
}

TEST_CASE("the plan over stages is their sum, and covers what is loaded", "[runner][pipeline]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  Progress silent;
  const auto alone = load(checkpoint.dir(), staged(1, 1));
  const runner::MemoryPlan one = alone->plan(checkpoint);
  const std::uint64_t tied_head = checkpoint.config().tied_head ? 4096 * 256 * 2 : 0;
  for (const int stages : {2, 3, 8}) {
    const auto runner = load(checkpoint.dir(), staged(1, stages));
    const runner::MemoryPlan plan = runner->plan(checkpoint);
    CHECK(plan.kv_blocks == 64);
    CHECK(plan.kv_cache == one.kv_cache);
    CHECK(plan.weights == one.weights + tied_head);
    CHECK(runner->weight_bytes() == alone->weight_bytes() + tied_head);
    CHECK(runner->bytes_per_step() == alone->bytes_per_step());
    CHECK(runner->device_name().starts_with(fmt::format("{} stages, each CPU, 1 thread", stages)));
  }
  CHECK(runner::make_runner(staged(2, 3))->device_name().starts_with("2 x 3 ranks, each CPU, 1 thread"));
}

}  // namespace
}  // namespace glyd
