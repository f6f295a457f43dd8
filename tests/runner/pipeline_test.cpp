// Layers in stages compute, bit for bit, what one stage computes; a rank that fails in any stage ends all.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "io/json.h"
#include "model/packing.h"
#include "runner/numbers.h"
#include "runner/parallel/parallel_runner.h"
#include "runner/rank_models.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using runner::Activations;
using runner::Options;
using runner::ParallelRunner;
using runner::WeightFormat;
using test::error_of;
using test::Ids;
using test::load;
using test::options_for;
using test::Rows;
using test::Shape;
using test::TinyModel;

Options staged(int ranks, int stages, WeightFormat weights = WeightFormat::AsStored,
               Activations activations = Activations::Fp32) {
  Options o = options_for(ranks, weights, activations);
  o.pipeline_parallel = stages;
  return o;
}

bool same_bits(const Rows& a, const Rows& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), test::bits_equal);
}

// The ids that follow, each the largest logit's.
Ids greedy_ids(runner::Runner& runner, Ids ids, const Ids& table) {
  for (int i = 0; i < 6; ++i) {
    const auto end = static_cast<std::int32_t>(ids.size());
    runner::Batch batch = test::make_batch({{&ids, &table, end - 1, end}});
    batch.greedy = {1};
    const runner::StepResult result = runner.step(batch);
    REQUIRE(result.ids.size() == 1);
    CHECK(result.logits.empty());
    ids.push_back(result.ids[0]);
  }
  return ids;
}

// Both runners over the same text, in pieces and token by token.
void check_equal(runner::Runner& runner, runner::Runner& want, const Ids& ids) {
  const Ids table = test::blocks_from(0, static_cast<std::int64_t>(ids.size()) + 8);
  for (const std::int32_t chunk : {7, 512})
    CHECK(same_bits(test::run_chunks(runner, ids, table, chunk), test::run_chunks(want, ids, table, chunk)));
  CHECK(greedy_ids(runner, ids, table) == greedy_ids(want, ids, table));
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
  for (const std::string name : {"tiny-austen", "tiny-austen-qwen2"}) {
    const std::filesystem::path plain = test::shipped_model(name);
    const test::TempDir dir;
    const std::filesystem::path packed = dir.path() / "packed";
    {
      ThreadPool pool(2);
      Progress silent;
      model::pack_model(model::Checkpoint::open(plain), packed, {}, pool, silent);
    }
    const auto path = test::tests_dir() / "data" / "goldens" / (name + ".json");
    const io::Json goldens = io::parse_json(test::read_file(path), path.string());
    const Ids ids = goldens["prompts"][3]["ids"];
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

// Ranks of a test's own making, to look into them; `prepare` is given each rank's number.
std::unique_ptr<ParallelRunner> make_ranks(int ranks, int stages,
                                           const std::function<void(int, Options&)>& options_of = {},
                                           const std::function<void(int, runner::Runner&)>& prepare = {}) {
  const auto make_rank = [&](runner::Communicator& communicator) {
    Options options = options_for(1);
    if (options_of) options_of(communicator.global_rank(), options);
    auto rank = std::make_unique<runner::cpu::CpuRunner>(options, runner::cpu::best_kernels(), &communicator);
    if (prepare) prepare(communicator.global_rank(), *rank);
    return rank;
  };
  return std::make_unique<ParallelRunner>(ranks, make_rank, stages);
}

TEST_CASE("a rank that fails in any stage ends the step on all ranks, under its name", "[runner][pipeline]") {
  constexpr int kRanks = 2, kStages = 3;
  const TinyModel model("qwen3", test::with(test::sizes(8, 1, 8, 25, 32), {{"num_hidden_layers", 6}}));
  const Ids ids = model.ids(12), table = test::blocks_from(0, 12);
  int failing = -1;  // rank, behind every layer of its stage in turn
  int failing_at = 0;
  const auto runner = make_ranks(kRanks, kStages, {}, [&](int rank, runner::Runner& r) {
    r.set_trace([&, rank](int layer, std::span<const float>) {
      if (rank == failing && layer == failing_at) fail(Code::Memory, "out of something");
    });
  });
  Progress silent;
  const auto checkpoint = model::Checkpoint::open(model.path());
  runner->load(checkpoint, silent);
  const Rows want = test::run_chunks(*runner, ids, table, 512);
  for (failing = 0; failing < kRanks * kStages; ++failing) {
    const Range layers = model::make_shard(checkpoint.config(), failing, kRanks, kStages).layers;
    for (std::uint64_t layer = layers.begin; layer < layers.end; ++layer) {
      failing_at = static_cast<int>(layer);
      CHECK(error_of([&] { test::run_chunks(*runner, ids, table, 512); }, Code::Memory) ==
            fmt::format("rank {} of 6: out of something", failing));
    }
  }
  failing = -1;  // and nothing is left of it
  CHECK(same_bits(test::run_chunks(*runner, ids, table, 512), want));

  runner::Batch bad = test::make_batch({{&ids, &table, 0, 12}});
  bad.token_ids[3] = 32;
  CHECK_THAT(error_of([&] { runner->step(bad); }, Code::Usage), Catch::StartsWith("token id 32"));
}

TEST_CASE("a rank of the last stage that cannot load ends the load of all", "[runner][pipeline]") {
  const TinyModel model("qwen3", test::sizes(8, 1, 8, 25, 32));
  const auto runner = make_ranks(2, 2, [](int rank, Options& o) {
    if (rank == 3) o.allowed.resize(31);  // not the model's vocabulary: noticed when memory is allocated
  });
  Progress silent;
  CHECK_THAT(error_of([&] { runner->load(model::Checkpoint::open(model.path()), silent); }, Code::Usage),
             Catch::Contains("allowed out of 31"));
}

TEST_CASE("the rank with the fewest KV blocks decides for all stages", "[runner][pipeline]") {
  const TinyModel model("qwen3", test::sizes(8, 1, 8, 25, 32));
  const auto runner = make_ranks(2, 2, [](int rank, Options& o) { o.kv_blocks = rank == 3 ? 7 : 60 + rank; });
  const auto checkpoint = model::Checkpoint::open(model.path());
  Progress silent;
  CHECK(runner->plan(checkpoint).kv_blocks == 7);
  runner->load(checkpoint, silent);
  CHECK(runner->kv_blocks() == 7);
  const Ids ids = model.ids(12), last = {6}, beyond = {7};
  test::run_chunks(*runner, ids, last, 512);
  CHECK_THAT(error_of([&] { test::run_chunks(*runner, ids, beyond, 512); }, Code::Runtime),
             Catch::Contains("not allocated"));
}

TEST_CASE("stages that cannot be served are refused by name, before anything is loaded", "[runner][pipeline]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  const auto too_many = runner::make_runner(staged(2, 9));
  Progress silent;
  for (const auto& body : {std::function<void()>([&] { too_many->plan(checkpoint); }),
                           std::function<void()>([&] { too_many->load(checkpoint, silent); })}) {
    CHECK_THAT(error_of(body, Code::Usage), Catch::StartsWith("-pp 9: ") && Catch::Contains("num_hidden_layers is 8"));
  }
  for (const int stages : {-1, 0, runner::kMaxRanks + 1})
    CHECK_THAT(error_of([&] { runner::make_runner(staged(1, stages)); }, Code::Usage),
               Catch::StartsWith("-pp " + std::to_string(stages)));
  CHECK_THAT(error_of([&] { runner::make_runner(staged(16, 8)); }, Code::Usage),
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
