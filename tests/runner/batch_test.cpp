// Bad batches and bad devices are errors, before anything runs.
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "runner/logits.h"
#include "runner/sequences.h"
#include "runner/validate_batch.h"
#include "support/errors.h"
#include "support/fixtures.h"

namespace glyd::runner {
namespace {

constexpr BatchLimits kLimits{.vocab_size = 32, .kv_blocks = 8, .max_batch_tokens = 40, .max_sequences = 2};

// Two sequences: tokens 5..19 of one, token 16 of the other.
Batch good_batch() {
  static const test::Ids ids(20, 3), table{7, 2}, other{0, 5};
  return test::make_batch({{&ids, &table, 5, 20}, {&ids, &other, 16, 17}});
}

TEST_CASE("a good batch passes", "[runner]") {
  CHECK_NOTHROW(validate(good_batch(), kLimits));
  Batch batch = good_batch();
  batch.logits_rows.clear();
  CHECK_NOTHROW(validate(batch, kLimits));
  batch = good_batch();
  batch.greedy.assign(16, 1);
  CHECK_NOTHROW(validate(batch, kLimits));
}

TEST_CASE("a token id outside the vocabulary is named", "[runner]") {
  for (const std::int32_t id : {-1, 32, std::numeric_limits<std::int32_t>::min()}) {
    Batch batch = good_batch();
    batch.token_ids[3] = id;
    CHECK(test::error_of(Code::Usage, [&] { validate(batch, kLimits); }) ==
          fmt::format("token id {} at position 8: outside the vocabulary, expected 0 to 31", id));
  }
}

TEST_CASE("a batch that contradicts itself or the limits is refused", "[runner]") {
  const std::vector<std::pair<const char*, std::function<void(Batch&)>>> faults = {
      {"no tokens", [](Batch& b) { b = {}; }},
      {"positions too short", [](Batch& b) { b.positions.pop_back(); }},
      {"slots too short", [](Batch& b) { b.slot_mapping.pop_back(); }},
      {"query_start too short", [](Batch& b) { b.query_start.pop_back(); }},
      {"query_start begins late", [](Batch& b) { b.query_start[0] = 1; }},
      {"query_start ends early", [](Batch& b) { b.query_start[2] = 15; }},
      {"query_start beyond the end", [](Batch& b) { b.query_start[1] = 99; }},
      {"query_start negative", [](Batch& b) { b.query_start[1] = -4; }},
      {"an empty sequence", [](Batch& b) { b.query_start[1] = 16; }},
      {"context too long", [](Batch& b) { b.context_lengths[0] = 21; }},
      {"context too short", [](Batch& b) { b.context_lengths[0] = 19; }},
      {"a gap in the positions", [](Batch& b) { b.positions[4] = 30; }},
      {"a negative position", [](Batch& b) { b.positions[0] = -1; }},
      {"a huge position", [](Batch& b) { b.positions[0] = std::numeric_limits<std::int32_t>::max(); }},
      {"max_blocks negative", [](Batch& b) { b.max_blocks = -2; }},
      {"max_blocks zero", [](Batch& b) { b.max_blocks = 0; }},
      {"tables too short", [](Batch& b) { b.block_tables.pop_back(); }},
      {"a missing block", [](Batch& b) { b.block_tables[1] = -1; }},
      {"a block never allocated", [](Batch& b) { b.block_tables[0] = 8; }},
      {"another sequence's block", [](Batch& b) { b.block_tables[0] = 6; }},
      {"a table shorter than the context",
       [](Batch& b) {
         b.max_blocks = 1;
         b.block_tables = {7, 0};
       }},
      {"a slot of another block", [](Batch& b) { b.slot_mapping[2] = 0; }},
      {"a negative slot", [](Batch& b) { b.slot_mapping[2] = -1; }},
      {"logits of a token behind the end", [](Batch& b) { b.logits_rows.back() = 16; }},
      {"logits of a negative token", [](Batch& b) { b.logits_rows[0] = -1; }},
      {"greedy too short", [](Batch& b) { b.greedy.assign(15, 1); }},
      {"logits out of order", [](Batch& b) { b.logits_rows[1] = 0; }},
  };
  for (const auto& [name, damage] : faults) {
    Batch batch = good_batch();
    damage(batch);
    INFO(name);
    CHECK_THROWS_AS(validate(batch, kLimits), Error);
  }
  CHECK_THROWS_AS(
      validate(good_batch(), {.vocab_size = 32, .kv_blocks = 8, .max_batch_tokens = 15, .max_sequences = 2}), Error);
  CHECK_THROWS_AS(
      validate(good_batch(), {.vocab_size = 32, .kv_blocks = 8, .max_batch_tokens = 40, .max_sequences = 1}), Error);
}

TEST_CASE("the runner validates, and goes on after an error", "[runner]") {
  const test::TempDir dir;
  test::write_formula_model(dir.path(), test::tiny_config("qwen3"));
  const auto runner = test::load_runner(dir.path(), {.kv_blocks = 2});
  const test::Ids ids{1, 2, 3}, bad{1, 32, 3}, table{1}, missing{2};
  const test::Rows rows = test::run_chunks(*runner, ids, table, 3);
  CHECK_THROWS_AS(test::run_chunks(*runner, bad, table, 3), Error);
  CHECK_THROWS_AS(test::run_chunks(*runner, ids, missing, 3), Error);
  CHECK(test::run_chunks(*runner, ids, table, 3) == rows);
}

TEST_CASE("a step without a model is an error", "[runner]") {
  cpu::CpuRunner runner({});
  CHECK_THROWS_AS(runner.step(good_batch()), Error);
}

TEST_CASE("a model that does not load leaves a runner that says so, and can load another", "[runner]") {
  const test::TempDir dir;
  test::write_formula_model(dir.path(), test::tiny_config("qwen3"));
  const auto good = model::Checkpoint::open(dir.path());
  Options options;
  options.kv_blocks = 1;
  cpu::CpuRunner runner(options);
  Progress silent;
  runner.load(good, silent);
  const test::Rows rows = test::run_chunks(runner, {1, 2, 3}, {0}, 3);

  struct Refusing : Progress {
    void advance(std::uint64_t) override { fail(Code::Interrupted, "stopped while loading"); }
  } refusing;
  CHECK_THROWS_WITH(runner.load(good, refusing), "stopped while loading");
  CHECK_THROWS_WITH(test::run_chunks(runner, {1, 2, 3}, {0}, 3), Catch::Contains("no model"));
  runner.load(good, silent);
  CHECK(test::run_chunks(runner, {1, 2, 3}, {0}, 3) == rows);
}

TEST_CASE("devices by name", "[runner]") {
  Options options;
  options.threads = 2;
  CHECK_THAT(make_runner(options)->device_name(), Catch::StartsWith("CPU, 2 threads"));
  for (const char* device : {"", "gpu", "cpu:0", "cudax"}) {
    options.device = device;
    INFO(device);
    CHECK_THAT(test::error_of(Code::Usage, [&] { make_runner(options); }),
               Catch::Contains("expected cpu, cuda or cuda:NUMBER"));
  }
  options.device = "cpu";
  options.threads = 2000;
  CHECK_THROWS_WITH(make_runner(options), Catch::Contains("--threads 2000"));
  CHECK_THAT(list_devices().at(0), Catch::StartsWith("cpu: CPU, "));
}

TEST_CASE("made-up weights are the same for the same seed, packed too", "[runner]") {
  auto json = test::tiny_config("qwen3");
  json["intermediate_size"] = 512;  // large enough that packing shrinks it
  json["vocab_size"] = 512;
  const model::Config config = model::parse_config(json.dump(), "config.json");
  const auto logits = [&](std::uint64_t seed, int threads, WeightFormat format = WeightFormat::AsStored) {
    Options options;
    options.threads = threads;
    options.kv_blocks = 1;
    options.weights = format;
    cpu::CpuRunner runner(options);
    Progress silent;
    CHECK(runner.plan_random(config).kv_blocks == 1);
    runner.load_random(config, seed, silent);
    CHECK(runner.weight_bytes() <= runner.plan_random(config).weights);
    if (format == WeightFormat::Packed) CHECK(runner.weight_bytes() < runner.plan_random(config).weights);
    REQUIRE(runner.load_stages().size() == 1);
    CHECK(runner.load_stages()[0].seconds > 0);
    return test::run_chunks(runner, {1, 2, 3}, {0}, 3);
  };
  CHECK(logits(1, 1) == logits(1, 2));
  CHECK(logits(1, 1) != logits(2, 1));
  CHECK(logits(1, 1) == logits(1, 2, WeightFormat::Packed));
}

TEST_CASE("greedy rows become the ids of their largest logits, the others stay logits", "[runner]") {
  const test::TempDir dir;
  test::write_formula_model(dir.path(), test::tiny_config("qwen3"));
  const auto checkpoint = model::Checkpoint::open(dir.path());
  const test::Ids ids{1, 2, 3, 4, 5, 6}, table{0};
  Batch batch = test::make_batch({{&ids, &table, 0, 6}});
  Progress silent;
  Options options;
  options.kv_blocks = 1;
  cpu::CpuRunner plain(options);
  plain.load(checkpoint, silent);
  const std::vector<float> all = plain.step(batch).logits;
  const std::size_t vocab = all.size() / 6;
  const auto row = [&](std::size_t i) {
    return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                              all.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
  };

  batch.greedy = {1, 0, 1, 0, 0, 1};
  StepResult result = plain.step(batch);
  CHECK(result.ids == std::vector<std::int32_t>{static_cast<std::int32_t>(test::arg_max(row(0))), kNoId,
                                                static_cast<std::int32_t>(test::arg_max(row(2))), kNoId, kNoId,
                                                static_cast<std::int32_t>(test::arg_max(row(5)))});
  std::vector<float> kept;
  for (const std::size_t i : {1, 3, 4}) {
    const auto values = row(i);
    kept.insert(kept.end(), values.begin(), values.end());
  }
  CHECK(result.logits == kept);

  // Without the id that row 0 chose, the second largest is next.
  options.allowed.assign(vocab, true);
  options.allowed[test::arg_max(row(0))] = false;
  cpu::CpuRunner masked(options);
  masked.load(checkpoint, silent);
  auto second = row(0);
  second[test::arg_max(second)] = -1e30f;
  CHECK(masked.step(batch).ids.at(0) == static_cast<std::int32_t>(test::arg_max(second)));

  options.allowed.pop_back();
  cpu::CpuRunner wrong(options);
  CHECK_THROWS_WITH(wrong.load(checkpoint, silent), Catch::Contains("31") && Catch::Contains("32"));
}

TEST_CASE("an id is chosen only among numbers", "[runner]") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const auto choose = [](std::vector<float> logits, std::vector<std::int32_t> forbidden = {}) {
    return choose_id(logits, forbidden);
  };
  std::vector<float> long_row(1000, -3.0f);
  long_row[517] = long_row[700] = 2.0f;
  CHECK(choose(long_row) == 517);
  CHECK(choose(long_row, {517}) == 700);
  CHECK(choose({1, -kInf, 1}) == 0);
  CHECK(choose({1, kNan, 2}) == kNotFinite);
  CHECK(choose({1, kInf, 2}) == kNotFinite);
  CHECK(choose({1, kNan, kInf}, {1, 2}) == 0);
  CHECK(choose({-kInf, -kInf}) == kAllMasked);
  CHECK(choose({5, -kInf}, {0}) == kAllMasked);
}

TEST_CASE("a trace sees the residual stream behind the embedding and each layer", "[runner]") {
  const test::TempDir dir;
  test::write_formula_model(dir.path(), test::tiny_config("qwen3"));
  const auto runner = test::load_runner(dir.path(), {.kv_blocks = 1});
  std::vector<std::pair<int, std::vector<float>>> seen;
  runner->set_trace([&](int layer, std::span<const float> hidden) {
    seen.emplace_back(layer, std::vector(hidden.begin(), hidden.end()));
  });
  const test::Rows rows = test::run_chunks(*runner, {1, 2, 3}, {0}, 3);
  REQUIRE(seen.size() == 3);  // two layers
  for (int i = 0; i < 3; ++i) {
    CHECK(seen[static_cast<std::size_t>(i)].first == i - 1);
    CHECK(seen[static_cast<std::size_t>(i)].second.size() == 3 * 16);
  }
  CHECK(seen[0].second != seen[1].second);
  CHECK(seen[1].second != seen[2].second);
  // The embedding of the first token is its row of the matrix.
  const auto checkpoint = model::Checkpoint::open(dir.path());
  std::vector<Bf16> row(16);
  checkpoint.read_rows(checkpoint.spec().embed, 1, 1, row);
  for (std::size_t i = 0; i < 16; ++i) CHECK(seen[0].second[i] == to_float(row[i]));
  runner->set_trace({});
  CHECK(test::run_chunks(*runner, {1, 2, 3}, {0}, 3) == rows);
  CHECK(seen.size() == 3);
}

}  // namespace
}  // namespace glyd::runner
