// Rows that a CUDA runner samples: the ids that the host's sampler draws from the same runner's logits. A row whose
// answer hangs on the last bits of exp() may differ between the two; the seeds here are fixed, and none does.

#include <algorithm>
#include <map>
#include <optional>

#include "cuda/device.h"
#include "cuda/runner_models.h"
#include "engine/engine.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::test;
using engine::SamplingParams;

namespace {

constexpr std::int32_t kVocab = 4096;
constexpr std::int32_t kNanToken = 7;

const std::vector<SamplingParams> kWays{
    {.temperature = 0.8, .top_k = 20, .top_p = 0.95},
    {.temperature = 0.8, .top_k = 20, .top_p = 0.95, .repetition_penalty = 1.1},
    {.temperature = 1.0},
    {.temperature = 0},
    {.temperature = 0.7, .top_p = 0.8, .frequency_penalty = 0.3, .presence_penalty = 0.2},
    {.temperature = 0, .repetition_penalty = 1.3, .frequency_penalty = -0.1},
    {.temperature = 1.2, .min_p = 0.05, .presence_penalty = -0.5},
    {.temperature = 1.5, .top_k = 50, .repetition_penalty = 0.9},
    {.temperature = 0.9, .top_k = 3000},  // more than the kernel holds: left to the host
};

struct Tokens {
  std::map<engine::SequenceId, Ids> of;
  std::map<engine::SequenceId, std::string> errors;
  int requests = 0;  // rows that the runner was to sample
};

// `on_host`: the runner is asked for logits.
Tokens generate(runner::Runner& runner, const std::vector<engine::Request>& requests, bool on_host) {
  Tokens tokens;
  engine::EngineOptions options{.scheduler = {.max_batch_tokens = 512, .max_sequences = 64, .prefill_chunk = 256},
                                .context = 1024,
                                .allowed = std::vector<bool>(kVocab, true)};
  if (on_host) options.on_logits = [](engine::SequenceId, std::span<const float>) {};
  options.on_batch = [&](const runner::Batch& batch) {
    for (const auto& row : batch.sampling) tokens.requests += row.has_value();
  };
  engine::Engine engine(runner, options);
  for (const engine::Request& request : requests) engine.add(request);
  while (!engine.idle()) {
    for (const engine::Output& output : engine.step()) {
      if (output.token) tokens.of[output.id].push_back(*output.token);
      if (!output.error.empty()) tokens.errors[output.id] = output.error;
    }
  }
  return tokens;
}

std::vector<engine::Request> requests_for(std::size_t sequences, std::uint64_t seed) {
  std::vector<engine::Request> requests;
  for (std::size_t i = 0; i < sequences; ++i) {
    engine::Request request;
    request.prompt = random_ids(3 + 37 * i, kVocab, static_cast<unsigned>(i));  // the longest by cuBLAS
    request.max_tokens = 60 - static_cast<std::int64_t>(4 * i);
    request.sampling = kWays[(i + seed) % kWays.size()];
    request.sampling.seed = seed * 100 + i % 2;
    requests.push_back(request);
  }
  return requests;
}

// A request as the engine makes it, for a row without a text.
runner::RowSampling request_of(const SamplingParams& p, std::uint64_t step) {
  runner::RowSampling row;
  row.temperature = p.temperature, row.top_k = p.top_k, row.top_p = p.top_p, row.min_p = p.min_p;
  row.random = engine::random_bits(p.seed, step);
  return row;
}

// Its head is large enough that sums of its rows are cut.
model::Config wide_config() {
  return model::parse_config(tiny_config("qwen3", {{"head_dim", 64},
                                                   {"hidden_size", 1024},
                                                   {"intermediate_size", 256},
                                                   {"vocab_size", 8192},
                                                   {"max_position_embeddings", 1024}})
                                 .dump(),
                             "config.json of a test");
}

std::unique_ptr<runner::Runner> load_wide(bool eager) {
  auto runner = gpu_runner({.eager = eager});
  Progress silent;
  runner->load_random(wide_config(), 3, silent);
  return runner;
}

}  // namespace

TEST_CASE("tokens sampled on the GPU are those of the host's sampler", "[cuda][gpu][runner][runner-sampling]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    for (const bool eager : {false, true}) {
      const auto runner = load_gpu(shipped_model(model), {.eager = eager});
      REQUIRE(runner->samples());
      for (const std::size_t sequences : {1, 9}) {
        for (std::uint64_t seed = 0; seed < (sequences == 1 ? 3 : 2); ++seed) {
          INFO(model << (eager ? ", eager, " : ", graphs, ") << sequences << " sequences, seed " << seed);
          const auto requests = requests_for(sequences, seed);
          const Tokens sampled = generate(*runner, requests, false), expected = generate(*runner, requests, true);
          CHECK(sampled.of == expected.of);
          CHECK(sampled.errors.empty());
          CHECK(sampled.requests >= (sequences == 1 ? 60 : 8 * 28));
          CHECK(expected.requests == 0);
          for (std::size_t i = 0; i < sequences; ++i)
            CHECK(std::ssize(sampled.of.at(static_cast<engine::SequenceId>(i) + 1)) == requests[i].max_tokens);
        }
      }
    }
  }
}

TEST_CASE("each row of a step gets what it asked for", "[cuda][gpu][runner][runner-sampling]") {
  GLYD_NEEDS_GPU();
  const auto runner = load_gpu(shipped_model("tiny-austen"));
  const engine::Sampler sampler(std::vector<bool>(kVocab, true));
  std::vector<Ids> sequences, tables;
  for (std::int32_t s = 0; s < 100; ++s) {
    sequences.push_back(random_ids(4, kVocab, static_cast<unsigned>(s)));
    tables.push_back({s});
  }
  for (const std::size_t size : {1, 33, 100}) {  // in pieces of 32
    for (const std::int32_t begin : {0, 3}) {    // prompts, then a token of each
      INFO(size << " sequences from token " << begin);
      std::vector<Part> parts;
      for (std::size_t s = 0; s < size; ++s) parts.push_back({&sequences[s], &tables[s], begin, begin == 0 ? 3 : 4});
      const Rows rows = run_step(*runner, parts);
      runner::Batch batch = make_batch(parts);
      batch.greedy.assign(rows.size(), 0);
      batch.sampling.resize(rows.size());
      Rows wanted;  // where no id is expected
      Ids expected;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::vector<float> logits = rows[i];
        SamplingParams params{.temperature = 0.9, .top_k = 40, .top_p = 0.9, .seed = i};
        const std::size_t way = size == 1 ? 0 : i % 4;
        if (way == 1) params = {.temperature = 0}, batch.greedy[i] = 1;
        if (way == 3) params.top_k = 3000, params.top_p = 1;
        if (way == 0 || way == 3) batch.sampling[i] = request_of(params, 5);
        const bool gets_id = way == 0 || way == 1;
        expected.push_back(gets_id ? sampler.sample(logits, params, {}, {}, 5) : runner::kNoId);
        if (!gets_id) wanted.push_back(rows[i]);
      }
      const runner::StepResult result = runner->step(batch);
      CHECK(result.ids == expected);
      REQUIRE(result.logits.size() == wanted.size() * kVocab);
      Rows given;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto at = result.logits.begin() + static_cast<std::ptrdiff_t>(i) * kVocab;
        given.emplace_back(at, at + kVocab);
      }
      CHECK(difference(given, wanted) == "");
    }
  }
}

TEST_CASE("a sampled row that is not finite ends its sequence alone", "[cuda][gpu][runner][runner-sampling]") {
  GLYD_NEEDS_GPU();
  const TempDir dir;
  const auto path = dir.path() / "nan";
  copy_model(shipped_model("tiny-austen-qwen2"), path);  // its head is another matrix
  const std::int64_t width = model::load_config(path).hidden_size;
  std::string row;
  for (std::int64_t i = 0; i < width; ++i) row += "\xC0\x7F";  // 0x7FC0
  overwrite_tensor(path, "model.embed_tokens.weight", kNanToken * width * 2, row);
  const auto runner = load_gpu(path);
  std::vector<engine::Request> requests(3);
  for (std::size_t i = 0; i < 3; ++i) {
    requests[i].prompt = random_ids(10, kNanToken, static_cast<unsigned>(i));
    requests[i].max_tokens = 3;
    requests[i].sampling = {.temperature = 0.8, .top_k = 20, .repetition_penalty = 1.1, .seed = i};
  }
  requests[1].prompt[4] = kNanToken;
  const Tokens sampled = generate(*runner, requests, false), expected = generate(*runner, requests, true);
  CHECK(sampled.requests > 0);
  CHECK(sampled.of == expected.of);
  REQUIRE(sampled.errors.count(2) == 1);
  CHECK(sampled.errors.size() == expected.errors.size());
  CHECK(sampled.errors.at(2).find("step 0: a logit is NaN") == 0);
}

TEST_CASE("a captured step's logits and samples are right whatever ran since", "[cuda][gpu][runner][runner-sampling]") {
  GLYD_NEEDS_GPU();
  const auto graphs = load_wide(false), eager = load_wide(true);
  std::vector<Ids> sequences, tables;
  for (std::int32_t s = 0; s < 9; ++s) {
    sequences.push_back(random_ids(4, 8192, static_cast<unsigned>(s)));
    tables.push_back({s});
  }
  const auto step = [&](std::size_t size, std::int32_t begin, std::int32_t end) {
    std::vector<Part> parts;
    for (std::size_t s = 0; s < size; ++s) parts.push_back({&sequences[s], &tables[s], begin, end});
    INFO(size << " sequences from token " << begin);
    const Rows rows = run_step(*graphs, parts), expected = run_step(*eager, parts);
    CHECK(difference(rows, expected) == "");
    runner::Batch batch = make_batch(parts);
    for (std::size_t i = 0; i < rows.size(); ++i)
      batch.sampling.emplace_back(request_of({.temperature = 0.7, .top_k = 100, .seed = i}, 1));
    const Ids ids = graphs->step(batch).ids;
    CHECK(ids == eager->step(batch).ids);
    CHECK(*std::min_element(ids.begin(), ids.end()) >= 0);
  };
  step(9, 0, 3);
  for (const std::size_t size : {9, 1, 2, 9, 1, 8, 9}) step(size, 3, 4);
  step(1, 0, 3);  // a prompt's few rows
  for (const std::size_t size : {9, 2}) step(size, 3, 4);
}
