// A model over several ranks computes what it computes on one, and all ranks hold the same bits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
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
  CHECK(test::greedy_ids(runner, ids, table) == test::greedy_ids(alone, ids, table));
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
  for (const std::string& name : test::kShippedModels) {
    const std::filesystem::path plain = test::shipped_model(name), packed = test::packed_copy(name);
    const Ids ids = test::recorded(name)["prompts"][3]["ids"];
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
        CHECK(same_bits(got, want));
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
    CHECK(same_bits(got, want));
  }
  const Rows both = test::run_step(*runner, {{&other, &far, 0, 20}, {&ids, &table, 0, 40}});
  REQUIRE(both.size() == 60);
  CHECK(same_bits({both.begin() + 20, both.end()}, want));
}

TEST_CASE("all ranks hold the same bits after every layer", "[runner][parallel]") {
  constexpr int kRanks = 4;
  for (const Activations activations : {Activations::Fp32, Activations::Bf16}) {
    std::mutex mutex;
    std::map<int, Rows> seen;  // by rank
    const auto runner = test::make_ranks(
        kRanks, 1, [&](int, Options& o) { o.activations = activations; },
        [&](int rank, runner::Runner& r) {
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
      CHECK(same_bits(seen[rank], seen[0]));
    }
  }
}

TEST_CASE("degrees that cannot be served are refused by name, before anything is loaded", "[runner][parallel]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  const auto too_many = runner::make_runner(options_for(8));
  Progress silent;
  for (const auto& body : {std::function<void()>([&] { too_many->plan(checkpoint); }),
                           std::function<void()>([&] { too_many->load(checkpoint, silent); })}) {
    CHECK_THAT(error_of(Code::Usage, body),
               Catch::StartsWith("-tp 8: ") && Catch::Contains("num_attention_heads is 4"));
  }
  for (const int ranks : {-1, 0, runner::kMaxRanks + 1})
    CHECK_THAT(error_of(Code::Usage, [&] { runner::make_runner(options_for(ranks)); }),
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
