#include "engine/scheduler.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "base/error.h"

using namespace glyd;
using namespace glyd::engine;

namespace {

Sequence sequence(SequenceId id, std::size_t prompt) {
  Sequence s;
  s.id = id;
  s.request.prompt.assign(prompt, 1);
  return s;
}

// What a step that went well does to its sequences: all ran, and those at their end have one token more.
void advance(const std::vector<Scheduled>& step) {
  for (const auto& [s, tokens] : step) {
    s->computed += tokens;
    if (s->computed == s->length()) s->output.push_back(7);
  }
}

std::vector<std::pair<SequenceId, std::int64_t>> plain(const std::vector<Scheduled>& step) {
  std::vector<std::pair<SequenceId, std::int64_t>> result;
  for (const auto& [s, tokens] : step) result.emplace_back(s->id, tokens);
  return result;
}

using Plain = std::vector<std::pair<SequenceId, std::int64_t>>;

}  // namespace

TEST_CASE("blocks are taken all or none, rounded up, and come back", "[engine]") {
  BlockManager blocks(4, 16);
  CHECK(blocks.blocks_for(0) == 0);
  CHECK(blocks.blocks_for(1) == 1);
  CHECK(blocks.blocks_for(16) == 1);
  CHECK(blocks.blocks_for(17) == 2);

  Sequence a = sequence(1, 1), b = sequence(2, 1);
  REQUIRE(blocks.reserve(a, 33));
  CHECK(a.block_table.size() == 3);
  CHECK(blocks.reserve(a, 20));  // has more already
  CHECK(a.block_table.size() == 3);
  CHECK_FALSE(blocks.reserve(b, 17));
  CHECK(b.block_table.empty());
  CHECK(blocks.free_blocks() == 1);
  REQUIRE(blocks.reserve(b, 16));
  std::set<std::int32_t> held(a.block_table.begin(), a.block_table.end());
  held.insert(b.block_table.begin(), b.block_table.end());
  CHECK(held == std::set<std::int32_t>{0, 1, 2, 3});

  const auto first = a.block_table;
  CHECK_FALSE(blocks.reserve(a, 49));
  CHECK(a.block_table == first);
  blocks.release(b);
  REQUIRE(blocks.reserve(a, 49));
  CHECK(std::vector(a.block_table.begin(), a.block_table.begin() + 3) == first);  // what it had stays in its place
  blocks.release(a);
  CHECK(a.block_table.empty());
  CHECK(blocks.free_blocks() == 4);
}

TEST_CASE("a KV cache whose slots do not fit 32 bits, or of no block, is refused", "[engine]") {
  CHECK_THROWS_AS(BlockManager(0, 16), Error);
  CHECK_THROWS_AS(BlockManager(std::int64_t{1} << 27, 16), Error);
}

TEST_CASE("options that could starve a prompt are refused with the numbers", "[engine]") {
  BlockManager blocks(4, 16);
  CHECK_NOTHROW(Scheduler({.max_batch_tokens = 575, .max_sequences = 64, .prefill_chunk = 512}, blocks));
  CHECK_THROWS_WITH(Scheduler({.max_batch_tokens = 574, .max_sequences = 64, .prefill_chunk = 512}, blocks),
                    Catch::Contains("574") && Catch::Contains("64") && Catch::Contains("512"));
  CHECK_THROWS_AS(Scheduler({.max_batch_tokens = 10, .max_sequences = 0, .prefill_chunk = 1}, blocks), Error);
  CHECK_THROWS_AS(Scheduler({.max_batch_tokens = 10, .max_sequences = 1, .prefill_chunk = 0}, blocks), Error);
  CHECK_THROWS_AS(Scheduler({.max_batch_tokens = -5, .max_sequences = 1, .prefill_chunk = 1}, blocks), Error);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(Scheduler({.max_batch_tokens = 10, .max_sequences = kMax, .prefill_chunk = kMax}, blocks), Error);
}

TEST_CASE("a prompt is cut at multiples of the chunk, counted from its own start", "[engine]") {
  BlockManager blocks(100, 16);
  Scheduler scheduler({.max_batch_tokens = 1000, .max_sequences = 2, .prefill_chunk = 100}, blocks);
  Sequence s = sequence(1, 250);
  scheduler.add(&s);
  for (const std::int64_t tokens : {100, 100, 50, 1, 1}) {
    const auto step = scheduler.schedule();
    CHECK(plain(step) == Plain{{1, tokens}});
    advance(step);
  }
}

TEST_CASE("the next chunk ends at a border wherever the sequence stands", "[engine]") {
  BlockManager blocks(100, 16);
  const Scheduler scheduler({.max_batch_tokens = 1000, .max_sequences = 2, .prefill_chunk = 100}, blocks);
  Sequence s = sequence(1, 250);
  for (const auto& [computed, tokens] : Plain{{0, 100}, {1, 99}, {99, 1}, {100, 100}, {150, 50}, {200, 50}, {249, 1}}) {
    s.computed = computed;
    CHECK(scheduler.next_tokens(s) == tokens);
  }
}

TEST_CASE("a chunk that does not fit what neighbours leave waits; it is not cut shorter", "[engine]") {
  BlockManager blocks(100, 16);
  Scheduler scheduler({.max_batch_tokens = 130, .max_sequences = 3, .prefill_chunk = 100}, blocks);
  Sequence a = sequence(1, 150), b = sequence(2, 60), c = sequence(3, 10);
  for (Sequence* s : {&a, &b, &c}) scheduler.add(s);
  const std::vector<Plain> expected = {
      {{1, 100}},  // b's 60 do not fit beside a's 100, and c does not overtake b
      {{1, 50}, {2, 60}, {3, 10}},
      {{1, 1}, {2, 1}, {3, 1}},
  };
  for (const Plain& e : expected) {
    const auto step = scheduler.schedule();
    CHECK(plain(step) == e);
    advance(step);
  }
}

TEST_CASE("decoding sequences come first, also before older prompts, and never keep a prompt from running",
          "[engine]") {
  BlockManager blocks(100, 16);
  Scheduler scheduler({.max_batch_tokens = 12, .max_sequences = 3, .prefill_chunk = 10}, blocks);
  Sequence a = sequence(1, 25), b = sequence(2, 2), c = sequence(3, 10);
  for (Sequence* s : {&a, &b, &c}) scheduler.add(s);
  const std::vector<Plain> expected = {
      {{1, 10}, {2, 2}}, {{2, 1}, {1, 10}}, {{2, 1}, {1, 5}}, {{1, 1}, {2, 1}, {3, 10}}, {{1, 1}, {2, 1}, {3, 1}},
  };
  for (const Plain& e : expected) {
    const auto step = scheduler.schedule();
    CHECK(plain(step) == e);
    advance(step);
  }
}

TEST_CASE("no more than max_sequences run, and the next comes in when one leaves", "[engine]") {
  BlockManager blocks(100, 16);
  Scheduler scheduler({.max_batch_tokens = 100, .max_sequences = 2, .prefill_chunk = 10}, blocks);
  Sequence a = sequence(1, 1), b = sequence(2, 1), c = sequence(3, 1);
  for (Sequence* s : {&a, &b, &c}) scheduler.add(s);
  auto step = scheduler.schedule();
  CHECK(plain(step) == Plain{{1, 1}, {2, 1}});
  advance(step);
  scheduler.remove(&a);
  CHECK(plain(scheduler.schedule()) == Plain{{2, 1}, {3, 1}});
}

TEST_CASE("a sequence is admitted only when the blocks for all of its tokens are free", "[engine]") {
  BlockManager blocks(4, 16);
  Scheduler scheduler({.max_batch_tokens = 100, .max_sequences = 4, .prefill_chunk = 8}, blocks);
  Sequence a = sequence(1, 20), b = sequence(2, 33), c = sequence(3, 1);
  for (Sequence* s : {&a, &b, &c}) scheduler.add(s);
  const auto step = scheduler.schedule();
  CHECK(plain(step) == Plain{{1, 8}});  // b needs 3 blocks and 2 are free; c, which needs one, does not overtake it
  CHECK(blocks.free_blocks() == 2);
  scheduler.remove(&a);
  CHECK(plain(scheduler.schedule()) == Plain{{2, 8}, {3, 1}});
  CHECK(blocks.free_blocks() == 0);
}

TEST_CASE("without a free block the newest goes back to the head of the queue and starts over", "[engine]") {
  BlockManager blocks(3, 16);
  Scheduler scheduler({.max_batch_tokens = 100, .max_sequences = 4, .prefill_chunk = 32}, blocks);
  Sequence a = sequence(1, 16), b = sequence(2, 16), c = sequence(3, 15), d = sequence(4, 1);
  for (Sequence* s : {&a, &b, &c, &d}) scheduler.add(s);
  auto step = scheduler.schedule();
  CHECK(plain(step) == Plain{{1, 16}, {2, 16}, {3, 15}});
  advance(step);

  // a and b now need a second block each: c goes for a's, then b is the newest and gives up its own.
  step = scheduler.schedule();
  CHECK(plain(step) == Plain{{1, 1}});
  CHECK(scheduler.preemptions() == 2);
  CHECK(b.computed == 0);
  CHECK(b.block_table.empty());
  CHECK(c.computed == 0);
  CHECK(b.output.size() == 1);  // what it has made stays
  CHECK(blocks.free_blocks() == 1);
  advance(step);

  // One block is free: b needs two now (16 + 1 tokens), and nobody overtakes it.
  step = scheduler.schedule();
  CHECK(plain(step) == Plain{{1, 1}});
  advance(step);
  scheduler.remove(&a);
  step = scheduler.schedule();
  CHECK(plain(step) == Plain{{2, 17}, {3, 16}});  // in their old order, prompt and output so far
  scheduler.remove(&b);
  scheduler.remove(&c);
  CHECK(plain(scheduler.schedule()) == Plain{{4, 1}});
  scheduler.remove(&d);
  CHECK(blocks.free_blocks() == 3);
  CHECK(scheduler.idle());
}

TEST_CASE("a waiting sequence can be removed, and one that was preempted", "[engine]") {
  BlockManager blocks(2, 16);
  Scheduler scheduler({.max_batch_tokens = 100, .max_sequences = 4, .prefill_chunk = 32}, blocks);
  Sequence a = sequence(1, 16), b = sequence(2, 16), c = sequence(3, 16);
  for (Sequence* s : {&a, &b, &c}) scheduler.add(s);
  advance(scheduler.schedule());
  advance(scheduler.schedule());
  REQUIRE(scheduler.preemptions() == 1);
  scheduler.remove(&b);
  scheduler.remove(&c);
  CHECK_FALSE(scheduler.idle());
  scheduler.remove(&a);
  CHECK(scheduler.idle());
  CHECK(scheduler.schedule().empty());
  CHECK(blocks.free_blocks() == 2);
}

TEST_CASE("prompts apart: no decoding sequence runs while a prompt can", "[engine]") {
  BlockManager blocks(20, 16);
  Scheduler scheduler({.max_batch_tokens = 9, .max_sequences = 4, .prefill_chunk = 6, .prompts_apart = true}, blocks);
  Sequence a = sequence(1, 4), b = sequence(2, 8), c = sequence(3, 5);
  for (Sequence* s : {&a, &b}) scheduler.add(s);
  const auto next = [&] {
    const auto step = scheduler.schedule();
    advance(step);
    return plain(step);
  };
  CHECK(next() == Plain{{1, 4}});  // 5 tokens left are too few for b's chunk of 6
  CHECK(next() == Plain{{2, 6}});  // a could decode, and waits
  CHECK(next() == Plain{{2, 2}});
  CHECK(next() == Plain{{1, 1}, {2, 1}});  // now both
  scheduler.add(&c);
  CHECK(next() == Plain{{3, 5}});
  CHECK(next() == Plain{{1, 1}, {2, 1}, {3, 1}});
}

TEST_CASE("prompts apart: a prompt that finds no blocks does not stop those that decode", "[engine]") {
  BlockManager blocks(2, 4);
  Scheduler scheduler({.max_batch_tokens = 8, .max_sequences = 2, .prefill_chunk = 4, .prompts_apart = true}, blocks);
  Sequence a = sequence(1, 4), b = sequence(2, 4);
  for (Sequence* s : {&a, &b}) scheduler.add(s);
  advance(scheduler.schedule());
  // Both want a second block: b is preempted, its prompt of now 5 tokens waits until a is done.
  for (int i = 0; i < 4; ++i) {
    const auto step = scheduler.schedule();
    CHECK(plain(step) == Plain{{1, 1}});
    advance(step);
  }
  CHECK(scheduler.preemptions() == 1);
  scheduler.remove(&a);
  CHECK(plain(scheduler.schedule()) == Plain{{2, 4}});
}
