#include "engine/engine.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "engine/fake_runner.h"
#include "support/errors.h"

using namespace glyd;
using namespace glyd::engine;
using namespace glyd::test;
using Catch::Contains;

namespace {

Request greedy(std::vector<text::TokenId> prompt, std::int64_t max_tokens) {
  Request request{.prompt = std::move(prompt), .max_tokens = max_tokens, .sampling = {}, .stop_ids = {}};
  request.sampling.temperature = 0;
  return request;
}

// `n` tokens beginning with `first`.
std::vector<text::TokenId> prompt(text::TokenId first, std::size_t n) {
  std::vector<text::TokenId> ids(n, 3);
  ids[0] = first;
  return ids;
}

}  // namespace

TEST_CASE("max_tokens ends a sequence with Length, the reason beside the last token", "[engine]") {
  FakeRunner runner(10);
  Engine engine(runner, fake_options(100));
  const auto id = engine.add(greedy({1, 2, 3}, 3));
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(engine.idle());
    const auto outputs = engine.step();
    REQUIRE(outputs.size() == 1);
    CHECK(outputs[0].id == id);
    CHECK(outputs[0].token);
    CHECK(outputs[0].finish == (i == 2 ? std::optional(FinishReason::Length) : std::nullopt));
  }
  CHECK(engine.idle());
  CHECK(engine.free_blocks() == 10);
  CHECK(runner.steps.size() == 3);  // the last token is not run
  CHECK(engine.step().empty());
}

TEST_CASE("a stop id ends a sequence and is not part of its output", "[engine]") {
  const auto whole = alone(greedy({1, 2, 3}, 10), 100);
  REQUIRE(whole.tokens.size() == 10);
  auto request = greedy({1, 2, 3}, 10);
  request.stop_ids = {whole.tokens[4], 48};
  const auto stopped = alone(request, 100);
  // The place where the id first occurs; the test chose the id, so it is there at 4 at the latest.
  const auto at = std::find(whole.tokens.begin(), whole.tokens.end(), whole.tokens[4]);
  CHECK(stopped.tokens == std::vector(whole.tokens.begin(), at));
  CHECK(stopped.finish == FinishReason::Stop);
}

TEST_CASE("the context bounds prompt and output together", "[engine]") {
  const auto ending = alone(greedy(prompt(1, 10), 1000), 16);
  CHECK(ending.tokens.size() == 6);
  CHECK(ending.finish == FinishReason::Context);
  CHECK(alone(greedy(prompt(1, 10), 6), 16).finish == FinishReason::Length);
}

TEST_CASE("a KV cache smaller than the context is filled to its last slot", "[engine]") {
  FakeRunner runner(1);
  Engine engine(runner, fake_options(100));
  const auto id = engine.add(greedy(prompt(1, 10), 1000));
  const auto ending = run_to_end(engine).at(id);
  CHECK(ending.tokens.size() == 7);  // 16 slots, and the token made last needs none
  CHECK(ending.finish == FinishReason::Context);
}

TEST_CASE("a request for no tokens ends at once, without a step of the model", "[engine]") {
  FakeRunner runner(10);
  Engine engine(runner, fake_options(100));
  const auto none = engine.add(greedy({1}, 0));
  const auto one = engine.add(greedy({2}, 1));
  const auto cancelled = engine.add(greedy({3}, 0));
  engine.cancel(cancelled);
  CHECK_FALSE(engine.idle());
  const auto outputs = engine.step();
  REQUIRE(outputs.size() == 1);
  CHECK(outputs[0].id == none);
  CHECK_FALSE(outputs[0].token);
  CHECK(outputs[0].finish == FinishReason::Length);
  CHECK(runner.steps.empty());
  CHECK(run_to_end(engine).at(one).tokens.size() == 1);
  CHECK(engine.free_blocks() == 10);
}

TEST_CASE("add refuses what can never run, with the numbers, and changes nothing", "[engine]") {
  FakeRunner runner(2);
  Engine engine(runner, fake_options(100));
  CHECK_THROWS_WITH(engine.add(greedy({}, 1)), Contains("empty"));
  CHECK_THROWS_WITH(engine.add(greedy({1, -1}, 1)), Contains("token 1") && Contains("-1") && Contains("0 to 49"));
  CHECK_THROWS_WITH(engine.add(greedy({50}, 1)), Contains("50") && Contains("0 to 49"));
  CHECK_THROWS_WITH(engine.add(greedy({1, 2, kPadding}, 1)), Contains("token 2") && Contains("49"));
  CHECK_THROWS_WITH(engine.add(greedy({1}, -1)), Contains("-1"));
  CHECK_THROWS_WITH(engine.add(greedy(prompt(1, 100), 1)), Contains("100") && Contains("no room"));
  CHECK_THROWS_WITH(engine.add(greedy(prompt(1, 33), 1)),
                    Contains("33") && Contains("3 KV blocks") && Contains("are 2"));
  auto bad = greedy({1}, 1);
  bad.sampling.top_p = 0;
  CHECK_THROWS_WITH(engine.add(bad), Contains("top-p is 0"));
  CHECK(engine.idle());
  CHECK(engine.free_blocks() == 2);
  const auto id = engine.add(greedy(prompt(1, 32), 9));  // fills all slots: one token comes out
  CHECK(run_to_end(engine).at(id).tokens.size() == 1);
  CHECK_FALSE(error_of(Code::Usage, [&] { engine.add(greedy({}, 1)); }).empty());
}

TEST_CASE("an engine whose options make no sense is refused", "[engine]") {
  FakeRunner runner(2);
  CHECK_THROWS_WITH(Engine(runner, fake_options(0)), Contains("context"));
  CHECK_THROWS_AS(Engine(runner, fake_options(10, {.max_batch_tokens = 1, .max_sequences = 4, .prefill_chunk = 4})),
                  Error);
}

TEST_CASE("a row of NaN ends its own sequence with an error that names the step, and no other", "[engine]") {
  FakeRunner runner(20);
  Engine engine(runner, fake_options(100));
  const auto before = engine.add(greedy({1, 2}, 8));
  const auto sick = engine.add(greedy({5, kNanToken}, 8));
  const auto after = engine.add(greedy({7, 8, 9}, 8));
  auto endings = run_to_end(engine);
  CHECK(endings[sick].tokens.empty());
  CHECK(endings[sick].finish == FinishReason::Error);
  CHECK_THAT(endings[sick].error, Contains("step 0") && Contains("NaN"));
  CHECK(endings[before] == alone(greedy({1, 2}, 8), 100));
  CHECK(endings[after] == alone(greedy({7, 8, 9}, 8), 100));
  CHECK(engine.free_blocks() == 20);
}

TEST_CASE("a NaN in a later step names that step", "[engine]") {
  // Sampled uniformly, the token that makes the rows NaN comes up sooner or later.
  Request request{.prompt = {1}, .max_tokens = 1000, .sampling = {.temperature = 1e6, .seed = 3}, .stop_ids = {}};
  const auto ending = alone(request, 2000);
  REQUIRE(ending.finish == FinishReason::Error);
  REQUIRE(!ending.tokens.empty());
  CHECK(ending.tokens.back() == kNanToken);
  CHECK_THAT(ending.error, Contains("step " + std::to_string(ending.tokens.size()) + ":"));
}

TEST_CASE("after the runner threw, the step can be tried again with the same outcome", "[engine]") {
  FakeRunner runner(4);
  Engine engine(runner, fake_options(60, {.max_batch_tokens = 12, .max_sequences = 3, .prefill_chunk = 8}));
  const std::vector<Request> requests = {greedy(prompt(1, 20), 20), greedy(prompt(2, 5), 25), greedy(prompt(4, 9), 30)};
  std::vector<SequenceId> ids;
  for (const auto& request : requests) ids.push_back(engine.add(request));
  int calls = 0;
  runner.before_step = [&](std::size_t) {
    if (++calls % 2 == 1) throw std::runtime_error("device lost");
  };
  std::map<SequenceId, Ending> endings;
  int thrown = 0;
  while (!engine.idle()) {
    try {
      collect(engine.step(), endings);
    } catch (const std::runtime_error& e) {
      CHECK(std::string(e.what()) == "device lost");
      ++thrown;
    }
    REQUIRE(calls < 10000);
  }
  CHECK(thrown > 20);
  CHECK(engine.stats().preemptions > 0);
  for (std::size_t i = 0; i < requests.size(); ++i) CHECK(endings[ids[i]] == alone(requests[i], 60));
  CHECK(engine.free_blocks() == 4);
}

TEST_CASE("after the runner threw, sequences can be cancelled and the blocks are back", "[engine]") {
  FakeRunner runner(4);
  Engine engine(runner, fake_options(60));
  const auto a = engine.add(greedy(prompt(1, 20), 20));
  const auto b = engine.add(greedy(prompt(2, 20), 20));
  engine.step();
  runner.before_step = [](std::size_t) { throw std::runtime_error("device lost"); };
  CHECK_THROWS(engine.step());
  engine.cancel(a);
  CHECK(engine.free_blocks() == 2);
  engine.cancel(b);
  CHECK(engine.free_blocks() == 4);
  CHECK(engine.idle());
}

TEST_CASE("a request for no tokens is answered though the runner throws", "[engine]") {
  FakeRunner runner(4);
  Engine engine(runner, fake_options(60));
  runner.before_step = [](std::size_t) { throw std::runtime_error("device lost"); };
  engine.add(greedy({1}, 5));
  engine.add(greedy({2}, 0));
  CHECK(engine.step().size() == 1);
  CHECK_THROWS(engine.step());
}

TEST_CASE("a runner that returns too few logits is an error, not a read past the end", "[engine]") {
  FakeRunner runner(4);
  Engine engine(runner, fake_options(60));
  const auto id = engine.add(greedy({1}, 5));
  runner.rows_too_few = 1;
  runner.chooses_ids = false;
  CHECK_THROWS_WITH(engine.step(), Contains("0 logits for 1 rows of 50"));
  engine.cancel(id);
  CHECK(engine.free_blocks() == 4);
}

TEST_CASE("ids that the runner chose are those of the logits, and logits are asked for only where they are needed",
          "[engine]") {
  const std::vector<SamplingParams> all = {{.temperature = 0},
                                           {.temperature = 0.8, .seed = 7},
                                           {.temperature = 0, .repetition_penalty = 1.3},
                                           {.temperature = 0},
                                           {.temperature = 0, .frequency_penalty = 0.5},
                                           {.temperature = 0, .presence_penalty = 0.5}};
  const auto run = [&](bool chooses_ids, std::int64_t& rows_of_logits) {
    FakeRunner runner(30);
    runner.chooses_ids = chooses_ids;
    Engine engine(runner, fake_options(60));
    for (std::size_t i = 0; i < all.size(); ++i)
      engine.add({.prompt = prompt(static_cast<int>(i), 5), .max_tokens = 12, .sampling = all[i], .stop_ids = {}});
    auto endings = run_to_end(engine);
    rows_of_logits = runner.rows_of_logits;
    return endings;
  };
  std::int64_t with_ids = 0, with_logits = 0;
  CHECK(run(true, with_ids) == run(false, with_logits));
  CHECK(with_ids == 4 * 12);
  CHECK(with_logits == 6 * 12);
}

TEST_CASE("ids that no row asked for, too few of them, or without a token are errors", "[engine]") {
  FakeRunner runner(8);
  Engine engine(runner, fake_options(60));
  const Request sampled{.prompt = {2, 3}, .max_tokens = 3, .sampling = {.temperature = 1, .seed = 1}, .stop_ids = {}};
  const auto a = engine.add(greedy({1}, 5));
  const auto b = engine.add(sampled);
  runner.wrong_id = 5;  // for the sampled row too
  CHECK_THROWS_WITH(engine.step(), Contains("rows that asked for logits"));
  engine.cancel(b);
  runner.wrong_id.reset();
  runner.rows_too_few = 1;
  const auto c = engine.add(greedy({4, 5}, 5));
  CHECK_THROWS_WITH(engine.step(), Contains("ids"));
  engine.cancel(c);
  runner.rows_too_few = 0;
  for (const std::int32_t id : {kPadding, kVocab, -4}) {
    runner.wrong_id = id;
    const auto d = engine.add(greedy({6, 7}, 5));
    const auto endings = run_to_end(engine);
    CHECK(endings.at(d).finish == FinishReason::Error);
    CHECK_THAT(endings.at(d).error, Contains(fmt::format("id {}", id)));
  }
  runner.wrong_id = runner::kAllMasked;
  const auto e = engine.add(greedy({6, 7}, 5));
  CHECK_THAT(run_to_end(engine).at(e).error, Contains("masked"));
  static_cast<void>(a);
}

TEST_CASE("whoever wants to see the logits gets the rows that tokens are made from", "[engine]") {
  FakeRunner runner(8);
  auto options = fake_options(60, {.max_batch_tokens = 8, .max_sequences = 2, .prefill_chunk = 4});
  std::map<SequenceId, std::vector<text::TokenId>> largest;
  std::vector<std::int32_t> tokens;
  options.on_batch = [&](const runner::Batch& batch) { tokens.push_back(batch.tokens()); };
  options.on_logits = [&](SequenceId id, std::span<const float> logits) {
    REQUIRE(logits.size() == kVocab);
    largest[id].push_back(
        static_cast<text::TokenId>(std::max_element(logits.begin(), logits.begin() + kPadding) - logits.begin()));
  };
  Engine engine(runner, options);
  const auto a = engine.add(greedy(prompt(1, 6), 5)), b = engine.add(greedy(prompt(2, 3), 7));
  const auto endings = run_to_end(engine);
  CHECK(largest.at(a) == endings.at(a).tokens);
  CHECK(largest.at(b) == endings.at(b).tokens);
  CHECK(endings.at(b) == alone(greedy(prompt(2, 3), 7), 60));
  CHECK(tokens == std::vector<std::int32_t>{7, 3, 2, 2, 2, 2, 1});
}

TEST_CASE("a cancelled sequence says nothing more, wherever it was", "[engine]") {
  FakeRunner runner(20);
  Engine engine(runner, fake_options(200, {.max_batch_tokens = 20, .max_sequences = 2, .prefill_chunk = 16}));
  const auto decoding = engine.add(greedy({1}, 50));
  const auto in_prompt = engine.add(greedy(prompt(2, 50), 50));
  const auto waiting = engine.add(greedy({4}, 50));
  const auto kept = engine.add(greedy({5, 6}, 5));
  CHECK(engine.step().size() == 1);
  for (const auto id : {decoding, in_prompt, waiting, waiting, SequenceId{999}}) engine.cancel(id);
  CHECK(engine.free_blocks() == 20);
  const auto endings = run_to_end(engine);
  CHECK(endings.size() == 1);
  CHECK(endings.at(kept) == alone(greedy({5, 6}, 5), 200));
  engine.cancel(kept);
  CHECK(engine.free_blocks() == 20);
}

TEST_CASE("neighbours, chunks and preemption leave a seeded sequence as it is alone", "[engine]") {
  FakeRunner runner(4);
  Engine engine(runner, fake_options(64, {.max_batch_tokens = 16, .max_sequences = 4, .prefill_chunk = 7}));
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request r{
        .prompt = prompt(i, 3 + 5 * static_cast<std::size_t>(i)), .max_tokens = 30, .sampling = {}, .stop_ids = {}};
    r.sampling = {.temperature = 1.5, .top_k = 20, .repetition_penalty = 1.2, .frequency_penalty = 0.3, .seed = 42};
    requests.push_back(r);
    engine.add(r);
  }
  const auto endings = run_to_end(engine);
  CHECK(engine.stats().preemptions > 0);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK(endings.at(static_cast<SequenceId>(i) + 1) == alone(requests[i], 64));
  }
}

TEST_CASE("statistics count tokens where they were made, recomputed ones again", "[engine]") {
  FakeRunner runner(2);
  Engine engine(runner, fake_options(32, {.max_batch_tokens = 64, .max_sequences = 2, .prefill_chunk = 10}));
  engine.add(greedy(prompt(1, 12), 10));
  run_to_end(engine);
  CHECK(engine.stats().steps == 11);  // two chunks, the second with a token; nine tokens more
  CHECK(engine.stats().prompt_tokens == 12);
  CHECK(engine.stats().generated_tokens == 10);
  CHECK(engine.stats().decode_tokens == 9);
  CHECK(engine.stats().preemptions == 0);
  CHECK(engine.stats().prompt_seconds > 0);
  CHECK(engine.stats().decode_seconds > 0);

  engine.add(greedy(prompt(1, 16), 3));
  engine.add(greedy(prompt(2, 16), 3));
  run_to_end(engine);
  CHECK(engine.stats().preemptions == 1);
  CHECK(engine.stats().prompt_tokens == 12 + 16 + 16 + 17);  // the second has made one token when it starts over
}

TEST_CASE("next_logits gives the row behind a prompt, in chunks, and gives the blocks back", "[engine]") {
  FakeRunner runner(4);
  Engine engine(runner, fake_options(60, {.max_batch_tokens = 10, .max_sequences = 1, .prefill_chunk = 10}));
  const auto ids = prompt(1, 25);
  const auto logits = engine.next_logits(ids);
  REQUIRE(logits.size() == kVocab);
  CHECK(logits[kPadding] == -std::numeric_limits<float>::infinity());
  CHECK(runner.steps ==
        std::vector<std::vector<FakeRunner::Chunk>>{{{1, 0, 10, false}}, {{1, 10, 20, false}}, {{1, 20, 25, true}}});
  const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
  CHECK(alone(greedy(ids, 1), 60).tokens == std::vector<text::TokenId>{static_cast<text::TokenId>(likeliest)});
  CHECK(engine.free_blocks() == 4);

  CHECK_THROWS_WITH(engine.next_logits(std::vector<text::TokenId>{1, kNanToken}), Contains("step 0"));
  CHECK_THROWS_WITH(engine.next_logits({}), Contains("empty"));
  CHECK_THROWS_WITH(engine.next_logits(prompt(1, 60)), Contains("60"));
  runner.before_step = [](std::size_t) { throw std::runtime_error("device lost"); };
  CHECK_THROWS(engine.next_logits(ids));
  CHECK(engine.free_blocks() == 4);
  runner.before_step = nullptr;
  engine.add(greedy({1}, 1));
  CHECK_THROWS_WITH(engine.next_logits(ids), Contains("1 sequences"));
}
