// What a CUDA runner promises to the bit: packed weights give what plain ones give, a sequence gives the same alone and
// among others, a graph what the kernels give one by one.

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "cuda/device.h"
#include "cuda/runner_models.h"
#include "engine/engine.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::test;
using runner::WeightFormat;

namespace {

constexpr std::int32_t kVocab = 4096;

// A sequence that is run piece by piece.
struct Track {
  Ids ids, table;
  std::vector<std::int32_t> pieces;  // tokens of each step; they add up to the ids, or to less
  std::size_t next_piece = 0;
  std::int32_t done = 0;
  Rows rows = {};  // of the tokens that have run

  bool ended() const { return next_piece == pieces.size(); }
};

// A step of the next piece of each.
void step(runner::Runner& runner, const std::vector<Track*>& tracks) {
  std::vector<Part> parts;
  for (Track* t : tracks) {
    parts.push_back({&t->ids, &t->table, t->done, t->done + t->pieces[t->next_piece]});
    t->done += t->pieces[t->next_piece++];
  }
  Rows rows = run_step(runner, parts);
  auto row = rows.begin();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::int32_t token = parts[i].begin; token < parts[i].end; ++token)
      tracks[i]->rows.push_back(std::move(*row++));
  }
}

// All that have a piece left, in every step, each time in another order. Returns the most tokens of a step.
std::int32_t run_together(runner::Runner& runner, std::vector<Track>& tracks) {
  std::mt19937 random(7);
  std::int32_t most = 0;
  for (;;) {
    std::vector<Track*> running;
    std::int32_t tokens = 0;
    for (Track& t : tracks) {
      if (t.ended()) continue;
      running.push_back(&t);
      tokens += t.pieces[t.next_piece];
    }
    if (running.empty()) return most;
    most = std::max(most, tokens);
    std::shuffle(running.begin(), running.end(), random);
    step(runner, running);
  }
}

// The same sequence in the same pieces with nothing beside it, in blocks that others used before.
Rows run_alone(runner::Runner& runner, const Track& track) {
  Track t{track.ids, blocks_from(0, std::ssize(track.ids)), track.pieces};
  while (!t.ended()) step(runner, {&t});
  return t.rows;
}

// Scatters the tracks' tokens over the blocks from 64 on.
void give_blocks(std::vector<Track>& tracks) {
  Ids blocks(448);
  std::iota(blocks.begin(), blocks.end(), 64);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
  for (Track& t : tracks) {
    const std::size_t needed = blocks_from(0, std::ssize(t.ids)).size();
    REQUIRE(blocks.size() >= needed);
    t.table.assign(blocks.end() - static_cast<std::ptrdiff_t>(needed), blocks.end());
    blocks.resize(blocks.size() - needed);
  }
}

// `prompt` tokens in one piece, then single ones.
std::vector<std::int32_t> prompt_and_singles(std::int32_t prompt, std::int32_t singles) {
  std::vector<std::int32_t> pieces(static_cast<std::size_t>(singles) + 1, 1);
  pieces[0] = prompt;
  return pieces;
}

Track random_track(unsigned seed, std::vector<std::int32_t> pieces, std::int32_t vocab = kVocab) {
  const auto n = static_cast<std::size_t>(std::accumulate(pieces.begin(), pieces.end(), 0));
  return {random_ids(n, vocab, seed), {}, std::move(pieces)};
}

// Some of everything that a runner does; a row for each token.
Rows run_everything(runner::Runner& runner, std::int32_t vocab = kVocab) {
  Rows rows;
  unsigned seed = 0;
  const auto run = [&](const std::vector<std::vector<std::int32_t>>& pieces) {
    std::vector<Track> tracks;
    for (const auto& p : pieces) tracks.push_back(random_track(++seed, p, vocab));
    give_blocks(tracks);
    run_together(runner, tracks);
    for (Track& t : tracks) std::move(t.rows.begin(), t.rows.end(), std::back_inserter(rows));
  };
  for (const std::int32_t prompt : {1, 2, 17, 64, 127, 128}) run({{prompt}});  // own kernels
  for (const std::int32_t prompt : {129, 300, 900}) run({{prompt}});           // cuBLAS
  run({{70, 70, 60}});
  run({prompt_and_singles(17, 12)});
  run(std::vector(33, prompt_and_singles(3, 6)));
  run({prompt_and_singles(5, 8), prompt_and_singles(9, 8), {14, 1, 40, 1, 1}, {14, 1, 300, 1}});
  return rows;
}

void check_same_bits(const Rows& rows, const Rows& expected) { CHECK(difference(rows, expected) == ""); }

void check_alone_is_together(runner::Runner& runner, std::vector<Track>& tracks) {
  for (const Track& t : tracks) {
    INFO("sequence " << &t - tracks.data());
    check_same_bits(t.rows, run_alone(runner, t));
  }
}

}  // namespace

TEST_CASE("packed weights give the bits of plain ones", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    const auto plain = load_gpu(shipped_model(model), {.weights = WeightFormat::Bf16});
    const auto at_load = load_gpu(shipped_model(model), {.weights = WeightFormat::Packed});
    const auto stored = load_gpu(packed_copy(model));
    const auto decoded = load_gpu(packed_copy(model), {.weights = WeightFormat::Bf16});
    // Two thirds, but for what fills up pages (cuda/packing/resident.h), much for matrices as small as these.
    CHECK(stored->bytes_per_step() < plain->bytes_per_step() * 9 / 10);
    CHECK(at_load->bytes_per_step() == stored->bytes_per_step());
    CHECK(decoded->bytes_per_step() == plain->bytes_per_step());
    INFO(model);
    const Rows expected = run_everything(*plain);
    check_same_bits(run_everything(*at_load), expected);
    check_same_bits(run_everything(*stored), expected);
    check_same_bits(run_everything(*decoded), expected);
  }
}

TEST_CASE("the generic kernels give the bits of the chip's own", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const Rows expected = run_everything(*load_gpu(packed_copy(model)));
    const KernelsFromEnvironment environment("generic");
    check_same_bits(run_everything(*load_gpu(packed_copy(model))), expected);
    check_same_bits(run_everything(*load_gpu(shipped_model(model), {.weights = WeightFormat::Bf16})), expected);
  }
}

TEST_CASE("packed weights give the bits of plain ones when prompts are batch-invariant", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const auto plain = load_gpu(shipped_model(model), {.weights = WeightFormat::Bf16, .batch_invariant = true});
    const auto stored = load_gpu(packed_copy(model), {.batch_invariant = true});
    check_same_bits(run_everything(*stored), run_everything(*plain));
  }
}

TEST_CASE("a sequence decodes the same alone and among 31 others", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const auto runner = load_gpu(packed_copy(model));
    std::vector<Track> tracks;
    for (std::int32_t s = 0; s < 32; ++s)
      tracks.push_back(random_track(static_cast<unsigned>(s), prompt_and_singles(1 + 7 * s, 8)));
    give_blocks(tracks);
    for (Track& t : tracks) step(*runner, {&t});  // the prompts apart
    run_together(*runner, tracks);
    check_alone_is_together(*runner, tracks);
  }
}

// Whatever is in the step: pieces of up to 128 tokens never depend on it. Longer ones go through cuBLAS, whose sums
// may.
TEST_CASE("short pieces beside long prompts are what each is alone", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const auto runner = load_gpu(packed_copy(model));
    std::vector<Track> tracks;
    for (std::int32_t s = 0; s < 32; ++s) {
      std::vector<std::int32_t> pieces;
      for (std::int32_t i = 0; i < 2 + s / 4; ++i) pieces.push_back(s % 4 == 0 ? 1 : 1 + (s + i) % 25);
      tracks.push_back(random_track(100 + static_cast<unsigned>(s), pieces));
    }
    tracks.push_back(random_track(98, {128, 127, 1}));
    tracks.push_back(random_track(99, {128, 100}));
    const std::size_t short_ones = tracks.size();
    tracks.push_back(random_track(97, {300, 200, 1, 1}));
    tracks.push_back(random_track(96, {150, 1, 129}));
    give_blocks(tracks);
    CHECK(run_together(*runner, tracks) > 800);
    for (std::size_t i = short_ones; i < tracks.size(); ++i) {
      const Distance apart = distance(tracks[i].rows, run_alone(*runner, tracks[i]));
      CHECK(apart.largest < kReordered.largest);
      CHECK(apart.rms < kReordered.rms);
    }
    tracks.resize(short_ones);
    check_alone_is_together(*runner, tracks);
  }
}

TEST_CASE("a prompt cut into pieces of 2 to 128 tokens gives the same bits however it is cut", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const auto runner = load_gpu(packed_copy(model));
    const Track whole = random_track(350, {128, 128, 128, 16});
    const Rows expected = run_alone(*runner, whole);
    for (const std::vector<std::int32_t>& pieces :
         {std::vector{100, 100, 100, 100}, {2, 3, 64, 59, 17, 128, 127}, std::vector(200, 2)}) {
      INFO(pieces.size() << " pieces");
      check_same_bits(run_alone(*runner, {whole.ids, {}, pieces}), expected);
    }
  }
}

TEST_CASE("batch-invariant: long prompts too are what each is alone", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const auto runner = load_gpu(packed_copy(model), {.batch_invariant = true});
    std::vector<Track> tracks;
    for (std::int32_t s = 0; s < 32; ++s) {
      std::vector<std::int32_t> pieces;
      for (std::int32_t i = 0, left = 10 + 6 * s; left > 0; ++i) {
        pieces.push_back(std::min(left, s % 5 == 0 ? 1 : 1 + (7 * s + 13 * i) % 50));
        left -= pieces.back();
      }
      tracks.push_back(random_track(200 + static_cast<unsigned>(s), pieces));
    }
    give_blocks(tracks);
    CHECK(run_together(*runner, tracks) > 256);
    check_alone_is_together(*runner, tracks);

    std::vector<Track> long_ones{random_track(300, {300}), random_track(301, {250, 100, 1, 1}),
                                 random_track(302, {400}), random_track(303, {1, 1, 1})};
    give_blocks(long_ones);
    run_together(*runner, long_ones);
    check_alone_is_together(*runner, long_ones);
  }
}

TEST_CASE("batch-invariant: the engine's outputs are each request's own", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const std::string model = "tiny-austen";
  const auto runner = load_gpu(shipped_model(model), {.batch_invariant = true});
  engine::EngineOptions options;
  options.scheduler = {.max_batch_tokens = 512, .max_sequences = 32, .prefill_chunk = 256};
  options.context = 1024;
  options.allowed.assign(kVocab, true);
  engine::Engine engine(*runner, options);

  const Ids passage = recorded(model)["passage"]["ids"];
  std::vector<engine::Request> requests;
  for (std::ptrdiff_t i = 0; i < 32; ++i) {  // prompts of 1 to 280 tokens, every second one sampled
    engine::Request request;
    request.prompt.assign(passage.begin() + 15 * i, passage.begin() + 15 * i + 1 + 9 * i);
    request.max_tokens = 20 - i / 4;
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    requests.push_back(request);
  }
  const auto run = [&](const std::vector<engine::Request>& together) {
    std::map<engine::SequenceId, Ids> made;
    for (const engine::Request& request : together) made[engine.add(request)] = {};
    while (!engine.idle()) {
      for (const engine::Output& output : engine.step()) {
        CHECK(output.error == "");
        if (output.token) made[output.id].push_back(*output.token);
      }
    }
    std::vector<Ids> ids;
    for (auto& [id, tokens] : made) ids.push_back(std::move(tokens));
    return ids;
  };
  const std::vector<Ids> together = run(requests);
  CHECK(engine.stats().preemptions == 0);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    REQUIRE(std::ssize(together[i]) == requests[i].max_tokens);
    CHECK(run({requests[i]})[0] == together[i]);
  }
}

TEST_CASE("the same steps in other blocks give the same bits", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    INFO(model);
    const auto runner = load_gpu(shipped_model(model));
    Track track = random_track(400, {30, 200, 1, 1, 1, 50, 1, 1});
    track.table = blocks_from(100, std::ssize(track.ids));
    std::reverse(track.table.begin(), track.table.end());
    const Rows first = run_alone(*runner, track);
    while (!track.ended()) step(*runner, {&track});
    check_same_bits(track.rows, first);
  }
}

TEST_CASE("graphs give the bits of kernels started one by one", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    for (const WeightFormat weights : {WeightFormat::Bf16, WeightFormat::Packed}) {
      INFO(model << (weights == WeightFormat::Packed ? ", packed" : ", plain"));
      const auto graphs = load_gpu(shipped_model(model), {.weights = weights});
      const auto eager = load_gpu(shipped_model(model), {.weights = weights, .eager = true});
      check_same_bits(run_everything(*graphs), run_everything(*eager));

      // Of 33 sequences of different lengths the first few decode a token each.
      std::vector<Track> tracks;
      for (std::int32_t s = 0; s < 33; ++s)
        tracks.push_back(random_track(500 + static_cast<unsigned>(s), prompt_and_singles(3 + 5 * s, 40)));
      give_blocks(tracks);
      std::vector<Track> twins = tracks;
      for (std::size_t s = 0; s < tracks.size(); ++s) {
        step(*graphs, {&tracks[s]});
        step(*eager, {&twins[s]});
      }
      for (const std::size_t size : {1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 33, 8, 1, 1, 2}) {
        std::vector<Track*> few, few_twins;
        for (std::size_t s = 0; s < size; ++s) {
          few.push_back(&tracks[s]);
          few_twins.push_back(&twins[s]);
        }
        step(*graphs, few);
        step(*eager, few_twins);
        INFO(size << " sequences");
        for (std::size_t s = 0; s < size; ++s) check_same_bits({tracks[s].rows.back()}, {twins[s].rows.back()});
      }
    }
  }
}
