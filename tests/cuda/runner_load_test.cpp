// What a CUDA runner says and does before its first step: memory, damaged files, shapes and options that it cannot
// take, made-up weights.

#include <cmath>
#include <regex>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/runner_models.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::test;
using Catch::Matchers::Contains;
using runner::WeightFormat;

namespace {

Rows a_few_steps(runner::Runner& runner, std::int32_t vocab) {
  const Ids ids = random_ids(330, vocab, 1), table = blocks_from(0, 330);
  Rows rows = run_step(runner, {{&ids, &table, 0, 300}});
  for (auto& row : run_step(runner, {{&ids, &table, 300, 320}})) rows.push_back(std::move(row));
  for (std::int32_t i = 320; i < 330; ++i) rows.push_back(run_step(runner, {{&ids, &table, i, i + 1}})[0]);
  return rows;
}

// Rows and columns that end inside tiles and blocks.
model::Config uneven_config(bool tied) {
  return model::parse_config(tiny_config("qwen3", {{"head_dim", 48},
                                                   {"num_attention_heads", 6},
                                                   {"num_key_value_heads", 3},
                                                   {"hidden_size", 328},
                                                   {"intermediate_size", 712},
                                                   {"vocab_size", 1001},
                                                   {"max_position_embeddings", 1024},
                                                   {"tie_word_embeddings", tied}})
                                 .dump(),
                             "config.json of a test");
}

std::unique_ptr<runner::Runner> load_random(const model::Config& config, std::uint64_t seed, const GpuSetup& setup) {
  auto runner = gpu_runner(setup);
  Progress silent;
  runner->load_random(config, seed, silent);
  return runner;
}

}  // namespace

TEST_CASE("random weights are the same model in every format", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const bool tied : {false, true}) {
    INFO((tied ? "tied" : "a head of its own"));
    const model::Config config = uneven_config(tied);
    const auto plain = load_random(config, 5, {.weights = WeightFormat::Bf16});
    const auto packed = load_random(config, 5, {.weights = WeightFormat::Packed});
    CHECK(packed->bytes_per_step() < plain->bytes_per_step() * 9 / 10);
    const Rows rows = a_few_steps(*plain, 1001);
    CHECK(difference(a_few_steps(*packed, 1001), rows) == "");
    CHECK(difference(a_few_steps(*load_random(config, 5, {.weights = WeightFormat::Bf16}), 1001), rows) == "");
    CHECK(difference(a_few_steps(*load_random(config, 6, {.weights = WeightFormat::Bf16}), 1001), rows) != "");
  }
}

TEST_CASE("what is taken of the GPU's memory is what was planned", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const model::Config config = model::load_config(shipped_model("qwen3-0.6b"));
  std::uint64_t plain_weights = 0;
  for (const WeightFormat weights : {WeightFormat::Bf16, WeightFormat::Packed}) {
    INFO((weights == WeightFormat::Packed ? "packed" : "plain"));
    const auto runner = gpu_runner({.weights = weights, .kv_blocks = 2048, .context = 4096});
    const runner::MemoryPlan plan = runner->plan_random(config);
    CHECK(plan.kv_blocks == 2048);
    CHECK(plan.kv_cache == std::uint64_t{2048} * 16 * 28 * 2 * 8 * 128 * 2);
    CHECK(plan.total() <= plan.available);
    Progress silent;
    runner->load_random(config, 1, silent);
    CHECK(runner->kv_blocks() == plan.kv_blocks);
    CHECK(runner->weight_bytes() <= plan.weights);
    CHECK(runner->weight_bytes() > plan.weights / 50 * 49);
    a_few_steps(*runner, 4096);  // takes what is taken at first use
    const double planned = static_cast<double>(plan.total()), used = static_cast<double>(runner->memory_used());
    CHECK(std::abs(used - planned) < 0.02 * planned + 64e6);
    if (weights == WeightFormat::Bf16) plain_weights = runner->weight_bytes();
    if (weights == WeightFormat::Packed) CHECK(runner->weight_bytes() < plain_weights * 7 / 10);
    CHECK_FALSE(runner->load_stages().empty());
  }
}

TEST_CASE("a memory limit is kept, and what does not fit is refused with the numbers", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const auto checkpoint = model::Checkpoint::open(shipped_model("tiny-austen"));
  const auto plan_of = [&](std::int64_t context, std::uint64_t limit) {
    return gpu_runner({.max_sequences = 1, .kv_blocks = 0, .context = context, .memory_limit = limit})
        ->plan(checkpoint);
  };
  constexpr std::int64_t kFits = 65536, kWanted = 262144;
  const std::uint64_t limit = plan_of(kFits, 0).total();
  CHECK(plan_of(kFits, limit).total() <= limit);

  const std::string message = error_of(Code::Memory, [&] { plan_of(kWanted, limit); });
  INFO(message);
  CHECK_THAT(message, Contains("weights") && Contains("KV cache") && Contains("available"));
  CHECK_THAT(message, Contains(fmt::format("{:.2f} GB", static_cast<double>(limit) * 1e-9)));
  std::smatch hint;
  REQUIRE(std::regex_search(message, hint, std::regex("-c ([0-9]+)")));
  const std::int64_t would_fit = std::stoll(hint[1]);
  CHECK(would_fit > kFits / 2);
  CHECK(would_fit < kWanted);
  CHECK(plan_of(would_fit, limit).total() <= limit);
  const auto runner = gpu_runner({.max_sequences = 1, .kv_blocks = 0, .context = would_fit, .memory_limit = limit});
  Progress silent;
  runner->load(checkpoint, silent);
  CHECK(runner->kv_blocks() * 16 >= would_fit);

  CHECK_THAT(error_of(Code::Memory, [&] { plan_of(1024, 1000000); }),
             Contains("weights") && Contains("available") && Contains("no context fits"));
  // load() plans too.
  const auto small = gpu_runner({.memory_limit = 1000000});
  CHECK_FALSE(error_of(Code::Memory, [&] { small->load(checkpoint, silent); }).empty());
  CHECK(small->weight_bytes() == 0);
}

TEST_CASE("a damaged packed directory is refused by the matrix's name", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    const TempDir dir;
    const auto path = dir.path() / model;
    copy_model(packed_copy(model), path);
    // Inside the bits of the last unit.
    overwrite_tensor(path, "layers.1.down.glyd", -400, std::string(64, '\x5A'));
    const auto runner = gpu_runner();
    Progress silent;
    const std::string message = error_of(Code::Model, [&] { runner->load(model::Checkpoint::open(path), silent); });
    INFO(message);
    CHECK_THAT(message, Contains("layers.1.down") && Contains("damaged"));

    // The runner can still take a good one.
    runner->load(model::Checkpoint::open(packed_copy(model)), silent);
    CHECK(difference(a_few_steps(*runner, 4096), a_few_steps(*load_gpu(shipped_model(model)), 4096)) == "");
  }
}

TEST_CASE("a loaded model takes another's place", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const auto runner = load_gpu(shipped_model("tiny-austen"));
  const Rows first = a_few_steps(*runner, 4096);
  Progress silent;
  runner->load(model::Checkpoint::open(shipped_model("tiny-austen-qwen2")), silent);
  const Rows second = a_few_steps(*runner, 4096);
  CHECK(difference(second, a_few_steps(*load_gpu(shipped_model("tiny-austen-qwen2")), 4096)) == "");
  runner->load(model::Checkpoint::open(shipped_model("tiny-austen")), silent);
  CHECK(difference(a_few_steps(*runner, 4096), first) == "");
}

TEST_CASE("options and models that a GPU cannot take are refused by name", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  Progress silent;
  const auto cublas = [&](const std::filesystem::path& model, WeightFormat weights) {
    return error_of(Code::Usage, [&] { load_gpu(model, {.weights = weights, .gemm = runner::Gemm::Cublas}); });
  };
  CHECK_THAT(cublas(shipped_model("tiny-austen"), WeightFormat::Packed), Contains("--gemm cublas"));
  CHECK_THAT(cublas(packed_copy("tiny-austen"), WeightFormat::AsStored), Contains("--gemm cublas"));
  CHECK_THAT(cublas(packed_copy("tiny-austen"), WeightFormat::Packed), Contains("--gemm cublas"));

  const TempDir dir;
  write_formula_model(dir.path(), tiny_config("qwen3", {{"head_dim", 10}}));
  CHECK_THAT(error_of(Code::Model, [&] { load_gpu(dir.path(), {.context = 256}); }), Contains("head_dim is 10"));

  const KernelsFromEnvironment environment("fastest");
  CHECK_THAT(error_of(Code::Usage, [&] { load_gpu(shipped_model("tiny-austen")); }),
             Contains("GLYD_KERNELS") && Contains("fastest"));
}

TEST_CASE("a runner without a model, and bad batches, are errors", "[cuda][gpu][runner]") {
  GLYD_NEEDS_GPU();
  const Ids ids = random_ids(20, 4096, 1), table = blocks_from(0, 20);
  const runner::Batch good = make_batch({{&ids, &table, 0, 20}});
  CHECK_FALSE(error_of(Code::Runtime, [&] { gpu_runner()->step(good); }).empty());

  const auto runner = load_gpu(shipped_model("tiny-austen-qwen2"), {.kv_blocks = 8});
  runner::Batch batch = good;
  batch.token_ids[3] = 4096;
  CHECK_THAT(error_of(Code::Usage, [&] { runner->step(batch); }), Contains("4096"));
  batch = good;
  batch.block_tables[1] = 8;
  CHECK_FALSE(error_of(Code::Runtime, [&] { runner->step(batch); }).empty());
  runner->step(good);
}
