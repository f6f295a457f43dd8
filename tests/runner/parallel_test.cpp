// A model over several ranks computes what it computes on one; all ranks hold the same bits; one that fails ends all.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
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
using test::shapes;
using test::sizes;
using test::TinyModel;

// Largest difference, as a share of the row's largest logit.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst / largest;
}

// Both runners over the same text, in pieces and token by token: logits within 1e-5, and the same greedy ids.
void check_same(runner::Runner& runner, runner::Runner& alone, const Ids& ids) {
  const Ids table = test::blocks_from(0, static_cast<std::int64_t>(ids.size()) + 8);
  for (const std::int32_t chunk : {512, 3}) {
    const Rows got = test::run_chunks(runner, ids, table, chunk), want = test::run_chunks(alone, ids, table, chunk);
    REQUIRE(got.size() == want.size());
    for (std::size_t t = 0; t < got.size(); ++t) {
      CHECK(difference(got[t], want[t]) < 1e-5);
      CHECK(test::arg_max(got[t]) == test::arg_max(want[t]));
    }
  }
  Ids a = ids, b = ids;
  for (int i = 0; i < 8; ++i) {
    for (auto [text, r] : {std::pair(&a, &runner), std::pair(&b, &alone)}) {
      runner::Batch batch = test::make_batch(
          {{text, &table, static_cast<std::int32_t>(text->size()) - 1, static_cast<std::int32_t>(text->size())}});
      batch.greedy = {1};
      const runner::StepResult result = r->step(batch);
      REQUIRE(result.ids.size() == 1);
      CHECK(result.logits.empty());
      text->push_back(result.ids[0]);
    }
  }
  CHECK(a == b);
}

TEST_CASE("tiny shapes over 2, 3, 4 and 8 ranks", "[runner][parallel]") {
  for (const Shape& shape : shapes()) {
    const TinyModel model(shape.type, shape.changes);
    const auto alone = load(model.path(), options_for(1));
    for (const int ranks : {2, 3, 4, 8}) {
      INFO(shape.type << " " << shape.changes << " over " << ranks);
      const auto runner = load(model.path(), options_for(ranks));
      check_same(*runner, *alone, model.ids(37));
    }
  }
}

TEST_CASE("the shipped models over ranks, from plain and packed weights", "[runner][parallel]") {
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
    const Ids table = test::blocks_from(0, static_cast<std::int64_t>(ids.size()));
    const auto alone = load(plain, options_for(1));
    for (const int ranks : {2, 3, 4}) {
      INFO(name << " over " << ranks);
      const auto split = load(plain, options_for(ranks));
      check_same(*split, *alone, ids);

      // However the weights are stored and held, the same bits; and packed ones stay packed.
      const Rows want = test::run_chunks(*split, ids, table, 512);
      for (const auto& [from, format] :
           {std::pair(packed, WeightFormat::AsStored), std::pair(packed, WeightFormat::Bf16),
            std::pair(plain, WeightFormat::Packed)}) {
        const auto other = load(from, options_for(ranks, format));
        const Rows got = test::run_chunks(*other, ids, table, 512);
        CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end(), test::bits_equal));
        const double held = static_cast<double>(other->bytes_per_step()) / static_cast<double>(split->bytes_per_step());
        if (format == WeightFormat::Bf16) {
          CHECK(held == 1);
        } else {
          CHECK(held < 0.8);
        }
      }
    }
  }
}

TEST_CASE("bf16 activations over ranks stay near those on one", "[runner][parallel]") {
  const std::filesystem::path model = test::shipped_model("tiny-austen");
  const Ids ids = test::random_ids(40, 4096, 3), table = test::blocks_from(0, 40);
  const auto alone = load(model, options_for(1, WeightFormat::AsStored, Activations::Bf16));
  const auto split = load(model, options_for(4, WeightFormat::AsStored, Activations::Bf16));
  const Rows want = test::run_chunks(*alone, ids, table, 512), got = test::run_chunks(*split, ids, table, 512);
  for (std::size_t t = 0; t < got.size(); ++t) CHECK(difference(got[t], want[t]) < 0.03);
}

TEST_CASE("chunks and neighbours change no bit of a sequence over ranks", "[runner][parallel]") {
  const TinyModel model("qwen2", sizes(14, 2, 6, 41, 77));
  const auto runner = load(model.path(), options_for(4));
  const Ids ids = model.ids(40), other = test::random_ids(20, 77, 9);
  const Ids table = test::blocks_from(0, 40), far = test::blocks_from(10, 20);
  const Rows want = test::run_chunks(*runner, ids, table, 512);
  for (const std::int32_t chunk : {1, 7, 16}) {
    const Rows got = test::run_chunks(*runner, ids, table, chunk);
    CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end(), test::bits_equal));
  }
  const Rows both = test::run_step(*runner, {{&other, &far, 0, 20}, {&ids, &table, 0, 40}});
  REQUIRE(both.size() == 60);
  CHECK(std::equal(both.begin() + 20, both.end(), want.begin(), want.end(), test::bits_equal));
}

// Ranks of a test's own making, to look into them.
std::unique_ptr<ParallelRunner> make_ranks(int ranks, const Options& of_rank,
                                           const std::function<void(int, runner::Runner&)>& prepare) {
  return std::make_unique<ParallelRunner>(ranks, [&](runner::Communicator& communicator) {
    auto rank = std::make_unique<runner::cpu::CpuRunner>(of_rank, runner::cpu::best_kernels(), &communicator);
    prepare(communicator.rank(), *rank);
    return rank;
  });
}

Options one_rank(Activations activations = Activations::Fp32) {
  return options_for(1, WeightFormat::AsStored, activations);
}

TEST_CASE("all ranks hold the same bits after every layer", "[runner][parallel]") {
  constexpr int kRanks = 4;
  for (const Activations activations : {Activations::Fp32, Activations::Bf16}) {
    std::mutex mutex;
    std::map<int, std::vector<std::vector<float>>> seen;  // by rank
    const auto runner = make_ranks(kRanks, one_rank(activations), [&](int rank, runner::Runner& r) {
      r.set_trace([&, rank](int, std::span<const float> hidden) {
        const std::lock_guard lock(mutex);
        seen[rank].emplace_back(hidden.begin(), hidden.end());
      });
    });
    Progress silent;
    runner->load(model::Checkpoint::open(test::shipped_model("tiny-austen")), silent);
    const Ids ids = test::random_ids(30, 4096, 4), table = test::blocks_from(0, 30);
    test::run_chunks(*runner, ids, table, 20);
    REQUIRE(seen.size() == kRanks);
    REQUIRE(seen[0].size() == 2 * 9);  // two steps; the embedding and eight layers
    for (int rank = 1; rank < kRanks; ++rank) {
      INFO("rank " << rank);
      CHECK(std::equal(seen[rank].begin(), seen[rank].end(), seen[0].begin(), seen[0].end(), test::bits_equal));
    }
  }
}

TEST_CASE("a rank that fails ends the step on all ranks, under its name", "[runner][parallel]") {
  constexpr int kRanks = 3;
  const TinyModel model("qwen3", sizes(8, 1, 8, 25, 32));
  const Ids ids = model.ids(12), table = test::blocks_from(0, 12);
  int failing = -1;  // rank, in the middle of a step
  const auto runner = make_ranks(kRanks, one_rank(), [&](int rank, runner::Runner& r) {
    r.set_trace([&, rank](int layer, std::span<const float>) {
      if (rank == failing && layer == 0) fail(Code::Memory, "out of something");
    });
  });
  Progress silent;
  runner->load(model::Checkpoint::open(model.path()), silent);
  const Rows want = test::run_chunks(*runner, ids, table, 512);
  for (failing = 0; failing < kRanks; ++failing) {
    CHECK(error_of([&] { test::run_chunks(*runner, ids, table, 512); }, Code::Memory) ==
          fmt::format("rank {} of 3: out of something", failing));
  }
  failing = -1;  // and nothing is left of it
  const Rows got = test::run_chunks(*runner, ids, table, 512);
  CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end(), test::bits_equal));

  runner::Batch bad = test::make_batch({{&ids, &table, 0, 12}});
  bad.token_ids[3] = 32;
  CHECK_THAT(error_of([&] { runner->step(bad); }, Code::Usage), Catch::StartsWith("token id 32"));
}

TEST_CASE("a rank that cannot load ends the load of all", "[runner][parallel]") {
  const TinyModel model("qwen3", sizes(8, 1, 8, 25, 32));
  const runner::Options good = one_rank();
  runner::Options bad = good;
  bad.allowed.resize(31);  // not the model's vocabulary: noticed when memory is allocated
  const auto runner = std::make_unique<ParallelRunner>(3, [&](runner::Communicator& c) {
    return std::make_unique<runner::cpu::CpuRunner>(c.rank() == 1 ? bad : good, runner::cpu::best_kernels(), &c);
  });
  Progress silent;
  CHECK_THAT(error_of([&] { runner->load(model::Checkpoint::open(model.path()), silent); }, Code::Usage),
             Catch::Contains("allowed out of 31"));
}

TEST_CASE("degrees that cannot be served are refused by name, before anything is loaded", "[runner][parallel]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  const auto too_many = runner::make_runner(options_for(8));
  Progress silent;
  for (const auto& body : {std::function<void()>([&] { too_many->plan(checkpoint); }),
                           std::function<void()>([&] { too_many->load(checkpoint, silent); })}) {
    CHECK_THAT(error_of(body, Code::Usage),
               Catch::StartsWith("-tp 8: ") && Catch::Contains("num_attention_heads is 4"));
  }
  for (const int ranks : {-1, 0, runner::kMaxRanks + 1})
    CHECK_THAT(error_of([&] { runner::make_runner(options_for(ranks)); }, Code::Usage),
               Catch::Contains("-tp " + std::to_string(ranks)));
}

TEST_CASE("the plan over ranks is their sum, and covers what is loaded", "[runner][parallel]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  Options options = options_for(4);  // two kv heads: each of them is held twice
  options.kv_blocks = 0;
  options.context = 256;
  options.max_sequences = 2;
  const auto runner = runner::make_runner(options);
  options.tensor_parallel = 1;
  const auto alone = runner::make_runner(options);
  const runner::MemoryPlan plan = runner->plan(checkpoint), one = alone->plan(checkpoint);
  CHECK(plan.kv_blocks == 32);
  CHECK(plan.kv_cache == 2 * one.kv_cache);
  const std::uint64_t embedding = 4096 * 256 * 2;
  const std::uint64_t vectors = 4 * (8 * (2 * 256 + 2 * 64) + 256);
  CHECK(plan.weights > one.weights);
  CHECK(plan.weights <
        one.weights + 3 * embedding + 3 * vectors + one.weights / 4);  // k and v rows too are there twice
  Progress silent;
  runner->load(checkpoint, silent);
  alone->load(checkpoint, silent);
  CHECK(runner->kv_blocks() == 32);
  CHECK(runner->weight_bytes() <= plan.weights);
  CHECK(runner->weight_bytes() > plan.weights * 99 / 100);
  CHECK(runner->bytes_per_step() > alone->bytes_per_step());
  CHECK(runner->bytes_per_step() < alone->bytes_per_step() * 5 / 4);
  CHECK(runner->device_name().starts_with("4 ranks, each CPU, 1 thread"));
}

TEST_CASE("made-up weights are the same model over any number of ranks", "[runner][parallel]") {
  const model::Config config = model::load_config(test::shipped_model("tiny-austen"));
  Progress silent;
  const auto alone = runner::make_runner(options_for(1)), split = runner::make_runner(options_for(2));
  alone->load_random(config, 11, silent);
  split->load_random(config, 11, silent);
  CHECK(split->weight_bytes() <= split->plan_random(config).weights);
  check_same(*split, *alone, test::random_ids(20, 4096, 6));
}

}  // namespace
}  // namespace glyd
