// The engine on the CPU runner with the shipped models, against outputs recorded from the reference implementation.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "base/progress.h"
#include "engine/engine.h"
#include "engine/fake_runner.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "runner/runner.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::engine;
using namespace glyd::test;

namespace {

// Where the reference's two likeliest tokens are closer than this, another order of sums may choose the other one.
constexpr double kSafeMargin = 0.02;

constexpr std::int64_t kContext = 1024;

struct Model {
  explicit Model(const std::string& name)
      : goldens(io::Json::parse(read_file(tests_dir() / "data/goldens" / (name + ".json")))),
        checkpoint(model::Checkpoint::open(shipped_model(name))) {}

  std::unique_ptr<runner::Runner> runner(std::int64_t kv_blocks, std::int64_t max_batch_tokens = 512) const {
    auto result = runner::make_runner({.device = "cpu",
                                       .max_batch_tokens = max_batch_tokens,
                                       .max_sequences = 32,
                                       .context = kContext,
                                       .kv_blocks = kv_blocks});
    Progress silent;
    result->load(checkpoint, silent);
    return result;
  }

  EngineOptions options(std::int64_t prefill_chunk = 128) const {
    return {.scheduler = {.max_batch_tokens = 512, .max_sequences = 32, .prefill_chunk = prefill_chunk},
            .context = kContext,
            .allowed = std::vector<bool>(static_cast<std::size_t>(checkpoint.config().vocab_size), true)};
  }

  io::Json goldens;
  model::Checkpoint checkpoint;
};

std::vector<text::TokenId> ids(const io::Json& json) { return json.get<std::vector<text::TokenId>>(); }

// 32 requests on pieces of the passage, of different lengths; every second one sampled with its own seed.
std::vector<Request> mixed_requests(const Model& model) {
  const auto passage = ids(model.goldens["passage"]["ids"]);
  std::vector<Request> requests;
  for (std::ptrdiff_t i = 0; i < 32; ++i) {
    Request request;
    request.prompt.assign(passage.begin() + 20 * i, passage.begin() + 20 * i + 1 + 2 * i);
    request.max_tokens = 20 - i / 4;
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
    request.sampling.top_k = 40;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    requests.push_back(request);
  }
  return requests;
}

std::vector<Ending> run_all(Engine& engine, const std::vector<Request>& requests) {
  std::vector<SequenceId> order;
  for (const Request& request : requests) order.push_back(engine.add(request));
  auto endings = run_to_end(engine);
  std::vector<Ending> result;
  for (const SequenceId id : order) result.push_back(endings.at(id));
  return result;
}

}  // namespace

TEST_CASE("greedy ids of the recorded prompts, all in one batch", "[engine][model]") {
  const Model model(GENERATE("tiny-austen", "tiny-austen-qwen2"));
  const auto runner = model.runner(2000);
  Engine engine(*runner, model.options());
  std::vector<Request> requests;
  for (const auto& prompt : model.goldens["prompts"]) {
    requests.push_back(
        {.prompt = ids(prompt["ids"]), .max_tokens = std::ssize(prompt["greedy_ids"]), .sampling = {}, .stop_ids = {}});
    requests.back().sampling.temperature = 0;
  }
  const auto endings = run_all(engine, requests);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& prompt = model.goldens["prompts"][i];
    CAPTURE(prompt["name"].get<std::string>());
    const auto expected = ids(prompt["greedy_ids"]);
    const auto margins = prompt["greedy_margins"].get<std::vector<double>>();
    const auto& tokens = endings[i].tokens;
    REQUIRE(tokens.size() == expected.size());
    for (std::size_t at = 0; at < expected.size() && margins[at] >= kSafeMargin; ++at, ++compared) {
      CAPTURE(at);
      REQUIRE(tokens[at] == expected[at]);
    }

    // With the model's stop ids, it ends where the recording has the first of them.
    Request with_stop = requests[i];
    with_stop.stop_ids = {4095, 4093};
    const auto stopped = run_all(engine, {with_stop})[0];
    const auto first_stop =
        std::find_if(tokens.begin(), tokens.end(), [](auto id) { return id == 4095 || id == 4093; });
    CHECK(stopped.tokens == std::vector(tokens.begin(), first_stop));
    CHECK(stopped.finish == (first_stop == tokens.end() ? FinishReason::Length : FinishReason::Stop));
    if (!prompt["stop_at"].is_null()) {
      const auto stop_at = prompt["stop_at"].get<std::size_t>();
      const bool safe = std::all_of(margins.begin(), margins.begin() + static_cast<std::ptrdiff_t>(stop_at) + 1,
                                    [](double m) { return m >= kSafeMargin; });
      if (safe) CHECK(stopped.tokens.size() == stop_at);
    }
  }
  CHECK(compared > requests.size() * 48 / 2);
}

TEST_CASE("32 sequences at once, any chunk, and a pool that forces preemption: the ids of each alone",
          "[engine][model]") {
  const Model model("tiny-austen");
  const auto requests = mixed_requests(model);
  std::vector<Ending> alone;
  {
    const auto runner = model.runner(64);
    Engine engine(*runner, model.options());
    for (const Request& request : requests) alone.push_back(run_all(engine, {request})[0]);
  }
  for (const auto& [blocks, chunk] : {std::pair{400, 128}, std::pair{12, 16}, std::pair{40, 7}}) {
    CAPTURE(blocks, chunk);
    const auto runner = model.runner(blocks);
    Engine engine(*runner, model.options(chunk));
    const auto together = run_all(engine, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      CHECK(together[i] == alone[i]);
    }
    CHECK(engine.free_blocks() == blocks);
    if (blocks == 12) CHECK(engine.stats().preemptions > 0);
    if (blocks == 400) CHECK(engine.stats().preemptions == 0);
  }
}

TEST_CASE("the logits behind a prompt do not depend on how it was cut", "[engine][model]") {
  const Model model("tiny-austen-qwen2");
  const auto passage = ids(model.goldens["passage"]["ids"]);
  const std::span prompt(passage.data(), 100);
  const auto runner = model.runner(64);
  const auto whole = Engine(*runner, model.options(128)).next_logits(prompt);
  for (const std::int64_t chunk : {1, 7, 16}) CHECK(Engine(*runner, model.options(chunk)).next_logits(prompt) == whole);
}

TEST_CASE("the loss of the recorded passage, all log-probabilities from batches", "[engine][model]") {
  const Model model(GENERATE("tiny-austen", "tiny-austen-qwen2"));
  const auto passage = ids(model.goldens["passage"]["ids"]);
  const auto vocab = static_cast<std::size_t>(model.checkpoint.config().vocab_size);
  const std::int32_t blocks = static_cast<std::int32_t>(passage.size()) / runner::kBlockSize + 1;
  const auto runner = model.runner(blocks, 300);
  double loss = 0;
  for (std::size_t begin = 0; begin < passage.size(); begin += 300) {
    const std::size_t end = std::min(passage.size(), begin + 300);
    runner::Batch batch;
    for (std::size_t i = begin; i < end; ++i) {
      batch.token_ids.push_back(passage[i]);
      batch.positions.push_back(static_cast<std::int32_t>(i));
      batch.slot_mapping.push_back(static_cast<std::int32_t>(i));
      batch.logits_rows.push_back(static_cast<std::int32_t>(i - begin));
    }
    batch.query_start = {0, batch.tokens()};
    batch.context_lengths = {static_cast<std::int32_t>(end)};
    batch.max_blocks = blocks;
    for (std::int32_t b = 0; b < blocks; ++b) batch.block_tables.push_back(b);
    const auto logits = runner->step(batch).logits;
    REQUIRE(logits.size() == (end - begin) * vocab);
    for (std::size_t i = begin; i < end && i + 1 < passage.size(); ++i) {
      const float* row = logits.data() + (i - begin) * vocab;
      const double largest = *std::max_element(row, row + vocab);
      double sum = 0;
      for (std::size_t id = 0; id < vocab; ++id) sum += std::exp(row[id] - largest);
      loss += largest + std::log(sum) - row[passage[i + 1]];
    }
  }
  loss /= static_cast<double>(passage.size() - 1);
  CHECK(loss == Approx(model.goldens["passage"]["nll_fp32"].get<double>()).epsilon(0).margin(1e-4));
}
