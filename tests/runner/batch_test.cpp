// Bad batches and bad devices are errors, before anything runs.
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "runner/sequences.h"
#include "runner/validate_batch.h"
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
}

TEST_CASE("a token id outside the vocabulary is named", "[runner]") {
  for (const std::int32_t id : {-1, 32, std::numeric_limits<std::int32_t>::min()}) {
    Batch batch = good_batch();
    batch.token_ids[3] = id;
    try {
      validate(batch, kLimits);
      FAIL("no error");
    } catch (const Error& e) {
      CHECK(e.code() == Code::Usage);
      CHECK(std::string(e.what()) ==
            fmt::format("token id {} at position 8: outside the vocabulary, expected 0 to 31", id));
    }
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
    try {
      make_runner(options);
      FAIL("no error for " << device);
    } catch (const Error& e) {
      CHECK(e.code() == Code::Usage);
      CHECK_THAT(e.what(), Catch::Contains("expected cpu, cuda or cuda:NUMBER"));
    }
  }
  options.device = "cpu";
  options.threads = 2000;
  CHECK_THROWS_WITH(make_runner(options), Catch::Contains("--threads 2000"));
  CHECK_THAT(list_devices().at(0), Catch::StartsWith("cpu: CPU, "));
}

TEST_CASE("made-up weights are the same for the same seed", "[runner]") {
  const model::Config config = model::parse_config(test::tiny_config("qwen3").dump(), "config.json");
  const auto logits = [&](std::uint64_t seed, int threads) {
    Options options;
    options.threads = threads;
    options.kv_blocks = 1;
    cpu::CpuRunner runner(options);
    Progress silent;
    runner.load_random(config, seed, silent);
    return test::run_chunks(runner, {1, 2, 3}, {0}, 3);
  };
  CHECK(logits(1, 1) == logits(1, 2));
  CHECK(logits(1, 1) != logits(2, 1));
}

}  // namespace
}  // namespace glyd::runner
