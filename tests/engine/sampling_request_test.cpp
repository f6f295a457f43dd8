// Requests to a runner that samples: what they say, and that the tokens are those of the host's sampler.
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"
#include "engine/fake_runner.h"
#include "runner/validate_batch.h"

using namespace glyd;
using namespace glyd::engine;
using namespace glyd::test;
using Catch::Contains;

namespace {

Request request(std::vector<text::TokenId> prompt, std::int64_t max_tokens, const SamplingParams& sampling) {
  return {.prompt = std::move(prompt), .max_tokens = max_tokens, .sampling = sampling, .stop_ids = {}};
}

std::vector<Request> requests() {
  const std::vector<SamplingParams> all = {
      {.temperature = 0},
      {.temperature = 0.8, .top_k = 20, .top_p = 0.95, .seed = 7},
      {.temperature = 0, .repetition_penalty = 1.3},
      {.temperature = 1.5, .min_p = 0.3, .frequency_penalty = 0.5, .seed = 1},
      {.temperature = 1.2, .repetition_penalty = 1.2, .presence_penalty = 0.4, .seed = 1},
      {.temperature = 0.7, .top_p = 0.6, .repetition_penalty = 0.8, .frequency_penalty = -0.2, .seed = 3},
      {.temperature = 2, .presence_penalty = -0.5, .seed = std::numeric_limits<std::uint64_t>::max()}};
  std::vector<Request> result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    result.push_back(request({static_cast<text::TokenId>(i), 9, 8, 9, 9}, 25, all[i]));
    result.back().prompt.resize(5 + i, 30);
  }
  return result;
}

// Few blocks: sequences are preempted and computed again.
std::map<SequenceId, Ending> run(FakeRunner& runner) {
  Engine engine(runner, fake_options(60, {.max_batch_tokens = 16, .max_sequences = 7, .prefill_chunk = 6}));
  for (const Request& r : requests()) engine.add(r);
  const auto endings = run_to_end(engine);
  CHECK(engine.stats().preemptions > 0);
  return endings;
}

}  // namespace

TEST_CASE("tokens that the runner draws are those of the host's sampler, and only ids come back",
          "[engine][sampling]") {
  FakeRunner host(8);
  const auto expected = run(host);
  for (const std::size_t leaves_every : {0, 1, 3}) {
    CAPTURE(leaves_every);
    FakeRunner runner(8);
    runner.samples_ids = true;
    runner.leaves_every = leaves_every;
    CHECK(run(runner) == expected);
    const std::size_t all = 6 * 25, left = leaves_every == 0 ? 0 : all / leaves_every;
    CHECK(runner.ids_drawn == all - left);
    CHECK(runner.rows_of_logits == static_cast<std::int64_t>(left));
  }
}

TEST_CASE("a request holds the parameters, the step's random number and the ids that penalties touch",
          "[engine][sampling]") {
  std::vector<runner::Batch> batches;
  auto options = fake_options(60);
  options.on_batch = [&](const runner::Batch& batch) { batches.push_back(batch); };
  FakeRunner runner(8);
  runner.samples_ids = true;
  Engine engine(runner, options);
  engine.add(request({5, 6, 5}, 2,
                     {.temperature = 0.5,
                      .top_k = 3,
                      .top_p = 0.9,
                      .min_p = 0.1,
                      .repetition_penalty = 1.5,
                      .frequency_penalty = 0.25,
                      .presence_penalty = 0.125,
                      .seed = 11}));
  engine.add(request({7, 8}, 2, {.temperature = 0}));
  engine.add(request({9, 8}, 2, {.temperature = 1, .presence_penalty = 1, .seed = 12}));
  engine.add(request({10}, 2, {.seed = 13}));
  const auto endings = run_to_end(engine);
  REQUIRE(batches.size() == 2);
  const auto touched = [](const runner::Batch& batch, std::size_t row) {
    std::map<std::int32_t, std::int32_t> counts;
    for (std::int32_t i = batch.sampling[row]->touched; i < batch.sampling[row]->touched_end; ++i) {
      const runner::TouchedId& id = batch.touched.at(static_cast<std::size_t>(i));
      CHECK(counts.try_emplace(id.id, id.count).second);
    }
    return counts;
  };
  using Counts = std::map<std::int32_t, std::int32_t>;
  for (std::size_t step = 0; step < 2; ++step) {
    const runner::Batch& batch = batches[step];
    CHECK(batch.greedy == std::vector<std::uint8_t>{0, 1, 0, 0});
    REQUIRE(batch.sampling.size() == 4);
    CHECK(!batch.sampling[1]);
    const runner::RowSampling& row = batch.sampling[0].value();
    CHECK(row.temperature == 0.5);
    CHECK(row.top_k == 3);
    CHECK(row.top_p == 0.9);
    CHECK(row.min_p == 0.1);
    CHECK(row.repetition_penalty == 1.5);
    CHECK(row.frequency_penalty == 0.25);
    CHECK(row.presence_penalty == 0.125);
    CHECK(row.random == random_bits(11, step));
    CHECK(batch.sampling[2].value().random == random_bits(12, step));
    CHECK(batch.sampling[3].value().random == random_bits(13, step));
    Counts first{{5, 0}, {6, 0}}, third;
    if (step == 1) ++first[endings.at(1).tokens[0]], ++third[endings.at(3).tokens[0]];
    CHECK(touched(batch, 0) == first);
    CHECK(touched(batch, 2) == third);  // without a repetition penalty the prompt does not matter
    CHECK(touched(batch, 3) == Counts{});
  }
}

TEST_CASE("whoever wants to see the logits has them sampled on the host", "[engine][sampling]") {
  auto options = fake_options(60);
  int seen = 0;
  options.on_logits = [&](SequenceId, std::span<const float> logits) { seen += logits.size() == kVocab; };
  FakeRunner runner(30);
  runner.samples_ids = true;
  Engine engine(runner, options);
  for (const Request& r : requests()) engine.add(r);
  const auto endings = run_to_end(engine);
  CHECK(seen == 7 * 25);
  CHECK(runner.ids_drawn == 0);
  SequenceId id = 1;
  for (const Request& r : requests()) CHECK(endings.at(id++) == alone(r, 60));
}

TEST_CASE("rows that cannot be sampled end their sequences with an error, and no other", "[engine][sampling]") {
  FakeRunner runner(8);
  runner.samples_ids = true;
  Engine engine(runner, fake_options(60));
  const Request good = request({2, 3}, 9, {.temperature = 1, .seed = 1});
  const auto a = engine.add(good);
  const auto b = engine.add(request({5, kNanToken}, 9, {.temperature = 1, .seed = 1}));
  const auto endings = run_to_end(engine);
  CHECK(endings.at(a) == alone(good, 60));
  CHECK(endings.at(b).finish == FinishReason::Error);
  CHECK_THAT(endings.at(b).error, Contains("step 0") && Contains("NaN"));
  for (const auto& [wrong, what] : {std::pair{runner::kAllMasked, "masked"}, {kPadding, "id 49"}, {-4, "id -4"}}) {
    runner.wrong_id = wrong;
    const auto c = engine.add(good);
    CHECK_THAT(run_to_end(engine).at(c).error, Contains(what));
  }
}

TEST_CASE("a step that failed is asked for again with the same requests", "[engine][sampling]") {
  FakeRunner runner(30);
  runner.samples_ids = true;
  Engine engine(runner, fake_options(60));
  for (const Request& r : requests()) engine.add(r);
  int calls = 0;
  runner.before_step = [&](std::size_t) {
    if (++calls % 2 == 1) throw std::runtime_error("device lost");
  };
  std::map<SequenceId, Ending> endings;
  while (!engine.idle()) {
    try {
      collect(engine.step(), endings);
    } catch (const std::runtime_error&) {
    }
    REQUIRE(calls < 1000);
  }
  SequenceId id = 1;
  for (const Request& r : requests()) CHECK(endings.at(id++) == alone(r, 60));
}

TEST_CASE("requests that contradict themselves or the batch are refused", "[engine][sampling]") {
  using runner::Batch;
  Batch good;
  good.logits_rows = {0, 1, 2};
  good.greedy = {1, 0, 0};
  good.sampling.resize(3);
  good.sampling[2] = runner::RowSampling{};
  good.sampling[1] = runner::RowSampling{.repetition_penalty = 1.5, .touched = 1, .touched_end = 3};
  good.touched = {{4, 0}, {0, 2}, {31, 1}};
  const runner::BatchLimits limits{.vocab_size = 32, .kv_blocks = 1};
  CHECK_NOTHROW(runner::validate_sampling(good, limits));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<const char*, std::function<void(Batch&)>>> faults = {
      {"too few entries", [](Batch& b) { b.sampling.resize(2); }},
      {"greedy and sampled", [](Batch& b) { b.greedy[1] = 1; }},
      {"temperature below 0", [](Batch& b) { b.sampling[1]->temperature = -1; }},
      {"temperature NaN", [](Batch& b) { b.sampling[1]->temperature = kNan; }},
      {"top-k", [](Batch& b) { b.sampling[1]->top_k = -1; }},
      {"top-p 0", [](Batch& b) { b.sampling[1]->top_p = 0; }},
      {"top-p above 1", [](Batch& b) { b.sampling[1]->top_p = 1.5; }},
      {"top-p NaN", [](Batch& b) { b.sampling[1]->top_p = kNan; }},
      {"min-p", [](Batch& b) { b.sampling[1]->min_p = -0.5; }},
      {"min-p above 1", [](Batch& b) { b.sampling[1]->min_p = 2; }},
      {"repetition", [](Batch& b) { b.sampling[1]->repetition_penalty = 0; }},
      {"frequency", [](Batch& b) { b.sampling[1]->frequency_penalty = kInf; }},
      {"presence", [](Batch& b) { b.sampling[1]->presence_penalty = kNan; }},
      {"touched before the first", [](Batch& b) { b.sampling[1]->touched = -1; }},
      {"touched behind its end", [](Batch& b) { b.sampling[1]->touched = 4; }},
      {"touched behind the last", [](Batch& b) { b.sampling[1]->touched_end = 4; }},
      {"touched by two rows", [](Batch& b) { b.sampling[2]->touched = 2, b.sampling[2]->touched_end = 3; }},
      {"id below 0", [](Batch& b) { b.touched[0].id = -1; }},
      {"id of no token", [](Batch& b) { b.touched[2].id = 32; }},
      {"count below 0", [](Batch& b) { b.touched[1].count = -1; }},
      {"more ids than the cache holds tokens", [](Batch& b) { b.touched.resize(17); }},
  };
  for (const auto& [what, spoil] : faults) {
    Batch bad = good;
    spoil(bad);
    INFO(what);
    CHECK_THROWS_WITH(runner::validate_sampling(bad, limits), Contains("bad batch"));
  }
}
