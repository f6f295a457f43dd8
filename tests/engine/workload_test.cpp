// Random requests, arrivals, cancellations and sizes: whatever the mix, each sequence comes out as it does alone.

#include <catch2/catch.hpp>
#include <random>

#include "engine/engine.h"
#include "engine/fake_runner.h"

using namespace glyd;
using namespace glyd::engine;
using namespace glyd::test;

namespace {

class Dice {
 public:
  explicit Dice(unsigned seed) : generator_(seed) {}
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return in(1, n) == 1; }

 private:
  std::mt19937_64 generator_;
};

Request random_request(Dice& dice, text::TokenId first, std::int64_t longest) {
  Request request;
  request.prompt.push_back(first);
  const std::int64_t length = dice.in(1, longest);
  while (std::ssize(request.prompt) < length) request.prompt.push_back(static_cast<text::TokenId>(dice.in(0, 47)));
  if (dice.one_in(10)) request.prompt.back() = kNanToken;
  request.prompt.front() = first;
  request.max_tokens = dice.one_in(10) ? 0 : dice.in(1, 60);
  if (dice.one_in(2))
    request.stop_ids = {static_cast<text::TokenId>(dice.in(0, 47)), static_cast<text::TokenId>(dice.in(0, 47))};
  SamplingParams& s = request.sampling;
  s.seed = static_cast<std::uint64_t>(dice.in(0, 3));
  if (dice.one_in(3)) s.temperature = 0;
  if (dice.one_in(2)) s.top_k = static_cast<int>(dice.in(1, 30));
  if (dice.one_in(2)) s.top_p = 0.8;
  if (dice.one_in(3)) s.min_p = 0.05;
  if (dice.one_in(3)) s.repetition_penalty = 1.1;
  if (dice.one_in(3)) s.presence_penalty = 0.5;
  return request;
}

void check_steps(const FakeRunner& runner, const SchedulerOptions& options) {
  for (const auto& step : runner.steps) {
    std::int64_t tokens = 0;
    bool in_order = true, prompts_begun = false;
    for (const auto& chunk : step) {
      tokens += chunk.tokens();
      const bool inside_one_chunk = chunk.begin / options.prefill_chunk == (chunk.end - 1) / options.prefill_chunk;
      const bool to_a_border = chunk.logits || chunk.end % options.prefill_chunk == 0;
      in_order = in_order && inside_one_chunk && to_a_border;
      // What is more than one token, or yields none, is a prompt: nothing that decodes comes behind it, but the last
      // token of a prompt may be a chunk of its own.
      const bool surely_prompt = chunk.tokens() > 1 || !chunk.logits;
      const bool surely_decodes = chunk.tokens() == 1 && chunk.begin % options.prefill_chunk != 0;
      in_order = in_order && !(prompts_begun && surely_decodes && chunk.begin > 0);
      prompts_begun = prompts_begun || surely_prompt;
    }
    REQUIRE(in_order);
    REQUIRE(tokens <= options.max_batch_tokens);
    REQUIRE(std::ssize(step) <= options.max_sequences);
  }
}

}  // namespace

TEST_CASE("random workloads: every sequence ends as it does alone, and no block is lost", "[engine]") {
  std::int64_t preemptions = 0, cancelled = 0, errors = 0;
  for (unsigned seed = 1; seed <= 600; ++seed) {
    CAPTURE(seed);
    Dice dice(seed);
    const std::int64_t blocks = dice.in(3, 16);
    const std::int64_t context = dice.in(20, blocks * runner::kBlockSize);
    SchedulerOptions options;
    options.max_sequences = dice.in(1, 10);
    options.prefill_chunk = dice.one_in(4) ? 1 : dice.in(1, 40);
    options.max_batch_tokens = options.prefill_chunk + options.max_sequences - 1 + dice.in(0, 50);
    FakeRunner runner(blocks);
    const bool throws = dice.one_in(4);
    if (throws) {
      runner.before_step = [&](std::size_t) {
        if (dice.one_in(5)) throw std::runtime_error("device lost");
      };
    }
    Engine engine(runner, fake_options(context, options));

    std::map<SequenceId, Request> requests;
    std::map<SequenceId, std::size_t> cancelled_at;  // tokens it had
    std::map<SequenceId, Ending> endings;
    std::int64_t to_come = dice.in(1, 14);
    const bool cancels = dice.one_in(2);
    for (int steps = 0; to_come > 0 || !engine.idle(); ++steps) {
      REQUIRE(steps < 20000);
      while (to_come > 0 && (engine.idle() || dice.one_in(3))) {
        const auto request =
            random_request(dice, static_cast<text::TokenId>(to_come), std::min<std::int64_t>(context - 1, 50));
        requests[engine.add(request)] = request;
        --to_come;
      }
      if (cancels && dice.one_in(8)) {
        const auto id = dice.in(1, std::ssize(requests));
        engine.cancel(id);
        if (!endings[id].finish && cancelled_at.try_emplace(id, endings[id].tokens.size()).second) ++cancelled;
      }
      try {
        collect(engine.step(), endings);
      } catch (const std::runtime_error& e) {
        REQUIRE(std::string(e.what()) == "device lost");
      }
    }

    CHECK(engine.free_blocks() == blocks);
    for (const auto& [id, request] : requests) {
      CAPTURE(id);
      Ending expected = alone(request, context);
      if (const auto it = cancelled_at.find(id); it != cancelled_at.end()) {
        REQUIRE(endings[id].tokens.size() == it->second);  // nothing after the cancellation
        expected.tokens.resize(it->second);
        expected.finish.reset();
        expected.error.clear();
      }
      if (expected.finish == FinishReason::Error) ++errors;
      REQUIRE(endings[id] == expected);
    }
    check_steps(runner, options);
    preemptions += engine.stats().preemptions;
  }
  // The mix has met what it is there for.
  CHECK(preemptions > 300);
  CHECK(cancelled > 200);
  CHECK(errors > 200);
}
