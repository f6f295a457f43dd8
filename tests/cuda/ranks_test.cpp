// Models over several ranks on GPUs: ranks that share one, and ranks on GPUs of their own where there are two. Their
// numbers against the CPU's, and to the bit: packed = plain, alone = in a batch, stages = one, and one way of carrying
// sums = another.

#include <dlfcn.h>

#include <cstdlib>

#include "cuda/device.h"
#include "cuda/runner_models.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using namespace glyd::test;
using runner::Activations;
using runner::WeightFormat;

namespace {

bool has_two_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count >= 2;
}

// What can carry sums between the first two GPUs.
std::vector<const char*> transports() {
  std::vector<const char*> all;
  int reaches = 0, back = 0;
  CUDA_REQUIRE(cudaDeviceCanAccessPeer(&reaches, 0, 1));
  CUDA_REQUIRE(cudaDeviceCanAccessPeer(&back, 1, 0));
  if (reaches != 0 && back != 0) {
    all.push_back("peer");
  } else {
    WARN("skipped: peer memory, which these GPUs do not have");
  }
  if (dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    all.push_back("nccl");
  } else {
    WARN("skipped: NCCL, which is not on this machine");
  }
  return all;
}

// First line of a test that wants ranks on GPUs of their own.
#define GLYD_NEEDS_TWO_GPUS()                       \
  do {                                              \
    if (!has_two_gpus()) {                          \
      WARN("skipped: no two GPUs on this machine"); \
      return;                                       \
    }                                               \
  } while (false)

struct Ranks {
  int tp, pp;
};

GpuSetup with_ranks(const Ranks& ranks, WeightFormat weights = WeightFormat::AsStored) {
  GpuSetup setup;
  setup.weights = weights;
  setup.tensor_parallel = ranks.tp;
  setup.pipeline_parallel = ranks.pp;
  return setup;
}

// A row for each token: the first `prompt` tokens in one step, the others in a step each.
Rows run_and_decode(runner::Runner& runner, const Ids& ids, std::int32_t prompt) {
  const Ids table = blocks_from(0, std::ssize(ids));
  Rows rows = run_step(runner, {{&ids, &table, 0, prompt}});
  for (std::int32_t i = prompt; i < std::ssize(ids); ++i)
    rows.push_back(run_step(runner, {{&ids, &table, i, i + 1}})[0]);
  return rows;
}

Ids some_ids(std::int32_t n, unsigned seed = 1) { return random_ids(static_cast<std::size_t>(n), 4096, seed); }

// Prompts of these lengths and a token more of each: the same bits alone and together, in other blocks.
void check_alone_is_together(runner::Runner& runner, const std::vector<std::int32_t>& prompts) {
  std::vector<Ids> ids, tables;
  std::vector<Rows> alone, together(prompts.size());
  std::int32_t blocks = 0;
  for (const std::int32_t prompt : prompts) {
    ids.push_back(some_ids(prompt + 1, static_cast<unsigned>(ids.size())));
    tables.push_back(blocks_from(blocks, prompt + 1));
    blocks += static_cast<std::int32_t>(tables.back().size());
    alone.push_back(run_and_decode(runner, ids.back(), prompt));
  }
  for (const bool decode : {false, true}) {
    std::vector<Part> parts;
    for (std::size_t s = 0; s < prompts.size(); ++s)
      parts.push_back({&ids[s], &tables[s], decode ? prompts[s] : 0, prompts[s] + (decode ? 1 : 0)});
    const Rows rows = run_step(runner, parts);
    auto row = rows.begin();
    for (std::size_t s = 0; s < prompts.size(); ++s)
      for (std::int32_t i = parts[s].begin; i < parts[s].end; ++i) together[s].push_back(*row++);
  }
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    INFO("sequence " << s << " of " << prompts.size() << ", a prompt of " << prompts[s]);
    CHECK(difference(together[s], alone[s]) == "");
  }
}

// Sets GLYD_ALL_REDUCE while it lives.
class SumsBy {
 public:
  explicit SumsBy(const char* transport) { ::setenv("GLYD_ALL_REDUCE", transport, 1); }
  ~SumsBy() { ::unsetenv("GLYD_ALL_REDUCE"); }
  SumsBy(const SumsBy&) = delete;
  SumsBy& operator=(const SumsBy&) = delete;
};

// Short prompts go through the own kernels, long ones through cuBLAS; the longest in several pieces of sums.
constexpr std::int32_t kPrompts[] = {40, 200, 700};

// kReordered, of sums in as many more pieces as there are ranks. Measured with four on an H200: 0.0153 and 0.0046.
constexpr Distance kOverRanks{0.02, 0.006};

}  // namespace

TEST_CASE("ranks on a GPU give what the CPU gives", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    const auto cpu =
        load_runner(shipped_model(model), {.threads = 0, .activations = Activations::Bf16, .max_batch_tokens = 1024});
    for (const Ranks ranks : {Ranks{2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}}) {
      INFO(model << ", -tp " << ranks.tp << " -pp " << ranks.pp);
      const auto gpu = load_gpu(shipped_model(model), with_ranks(ranks));
      for (const std::int32_t prompt : kPrompts) {
        INFO(prompt << " tokens");
        const Ids ids = some_ids(prompt + 3);
        const Distance apart = distance(run_and_decode(*gpu, ids, prompt), run_and_decode(*cpu, ids, prompt));
        CHECK(apart.largest < kOverRanks.largest);
        CHECK(apart.rms < kOverRanks.rms);
      }
    }
  }
}

// On two GPUs where there are two. The logits within 2 % of their range, and the greedy ids where they are clear.
TEST_CASE("ranks give the recorded prompts' logits and ids", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  constexpr double kMargin = 0.1;
  for (const std::string& model : kShippedModels) {
    for (const WeightFormat weights : {WeightFormat::Bf16, WeightFormat::Packed}) {
      GpuSetup setup = with_ranks({2, 1}, weights);
      if (has_two_gpus()) setup.device = "cuda";
      const auto ranks = load_gpu(shipped_model(model), setup);
      const io::Json prompts = recorded(model)["prompts"];
      REQUIRE(prompts.size() >= 10);
      int compared = 0;
      for (const io::Json& prompt : prompts) {
        INFO(model << ", " << prompt["name"] << (weights == WeightFormat::Packed ? ", packed" : ""));
        Ids ids = prompt["ids"];
        const auto length = static_cast<std::int32_t>(ids.size());
        const Ids greedy = prompt["greedy_ids"];
        ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
        Rows rows = run_and_decode(*ranks, ids, length);
        REQUIRE(rows.size() == ids.size());
        rows.erase(rows.begin(), rows.begin() + length - 1);
        const auto [low, high] = std::minmax_element(rows[0].begin(), rows[0].end());
        for (const io::Json& entry : prompt["top5_fp32"]) {
          const double logit = static_cast<double>(rows[0].at(entry[0].get<std::size_t>()));
          CHECK(std::abs(logit - entry[1].get<double>()) < 0.02 * static_cast<double>(*high - *low));
        }
        for (std::size_t i = 0; i < greedy.size(); ++i) {
          if (prompt["greedy_margins"][i].get<double>() <= kMargin) continue;
          const auto largest = std::max_element(rows[i].begin(), rows[i].end());
          CHECK(largest - rows[i].begin() == greedy[i]);
          ++compared;
        }
      }
      CHECK(compared > 400);
    }
  }
}

TEST_CASE("packed weights over ranks give what plain ones give, to the bit", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    for (const Ranks ranks : {Ranks{2, 1}, {3, 1}, {2, 2}}) {
      INFO(model << ", -tp " << ranks.tp << " -pp " << ranks.pp);
      const auto plain = load_gpu(shipped_model(model), with_ranks(ranks, WeightFormat::Bf16));
      const auto packed_at_load = load_gpu(shipped_model(model), with_ranks(ranks, WeightFormat::Packed));
      const auto packed_before = load_gpu(packed_copy(model), with_ranks(ranks));
      for (const std::int32_t prompt : kPrompts) {
        const Ids ids = some_ids(prompt + 3);
        const Rows rows = run_and_decode(*plain, ids, prompt);
        CHECK(difference(run_and_decode(*packed_at_load, ids, prompt), rows).empty());
        CHECK(difference(run_and_decode(*packed_before, ids, prompt), rows).empty());
      }
    }
  }
}

TEST_CASE("stages on a GPU give what one GPU gives, to the bit", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  for (const std::string& model : kShippedModels) {
    for (const auto& [ranks, as] : {std::pair{Ranks{1, 2}, Ranks{1, 1}}, {{1, 3}, {1, 1}}, {{2, 2}, {2, 1}}}) {
      INFO(model << ", -tp " << ranks.tp << " -pp " << ranks.pp);
      const auto stages = load_gpu(shipped_model(model), with_ranks(ranks));
      const auto one = load_gpu(shipped_model(model), with_ranks(as));
      for (const std::int32_t prompt : kPrompts) {
        const Ids ids = some_ids(prompt + 3);
        CHECK(difference(run_and_decode(*stages, ids, prompt), run_and_decode(*one, ids, prompt)).empty());
      }
    }
  }
}

TEST_CASE("a sequence over ranks gives the same alone and in a batch", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  const auto runner = load_gpu(shipped_model("tiny-austen"), with_ranks({2, 2}));
  check_alone_is_together(*runner, std::vector<std::int32_t>(20, 5));
}

TEST_CASE("ids that ranks choose are those of the largest logits", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  const auto runner = load_gpu(shipped_model("tiny-austen"), with_ranks({3, 1}));
  const Ids ids = some_ids(60), table = blocks_from(0, 60);
  const std::vector<Part> parts{{&ids, &table, 0, 60}};
  const Rows rows = run_step(*runner, parts);
  runner::Batch batch = make_batch(parts);
  batch.greedy.assign(batch.logits_rows.size(), 1);
  const runner::StepResult result = runner->step(batch);
  REQUIRE(result.ids.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(result.ids[i] == static_cast<std::int32_t>(arg_max(rows[i])));
}

TEST_CASE("random weights over ranks are the whole model's", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  model::Config config = model::load_config(std::filesystem::path(GLYD_SOURCE_DIR) / "models/qwen3-0.6b");
  config.layers = 2;
  Progress silent;
  const Ids ids = random_ids(20, 100'000, 1);
  Rows one;
  for (const Ranks ranks : {Ranks{1, 1}, {2, 1}, {1, 2}}) {
    for (const WeightFormat format : {WeightFormat::Bf16, WeightFormat::Packed}) {
      const auto runner = gpu_runner(with_ranks(ranks, format));
      runner->load_random(config, 7, silent);
      const Rows rows = run_and_decode(*runner, ids, 17);
      if (one.empty()) one = rows;
      const Distance apart = distance(rows, one);
      CHECK(apart.largest < kReordered.largest);
      CHECK(apart.rms < kReordered.rms);
    }
  }
}

TEST_CASE("ranks without rows of the head take part", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  model::Config config = model::load_config(std::filesystem::path(GLYD_SOURCE_DIR) / "models/qwen3-0.6b");
  config.layers = 2;
  config.vocab_size = 72;  // two groups of 64 rows for four ranks
  Progress silent;
  const Ids ids = random_ids(20, 72, 1);
  for (const bool tied : {true, false}) {
    config.tied_head = tied;
    const auto one = gpu_runner(with_ranks({1, 1})), four = gpu_runner(with_ranks({4, 1}));
    one->load_random(config, 7, silent);
    four->load_random(config, 7, silent);
    const Distance apart = distance(run_and_decode(*four, ids, 17), run_and_decode(*one, ids, 17));
    CHECK(apart.largest < kReordered.largest);
    CHECK(apart.rms < kReordered.rms);
  }
}

TEST_CASE("batch-invariant: long prompts over ranks too are what each is alone", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  const auto reference = load_gpu(shipped_model("tiny-austen"), with_ranks({2, 1}));
  const Ids ids = some_ids(303);
  for (const Ranks ranks : {Ranks{2, 1}, {2, 2}}) {
    INFO("-tp " << ranks.tp << " -pp " << ranks.pp);
    GpuSetup setup = with_ranks(ranks);
    setup.batch_invariant = true;
    const auto runner = load_gpu(shipped_model("tiny-austen"), setup);
    check_alone_is_together(*runner, {300, 150, 5, 420, 1, 129});
    CHECK(distance(run_and_decode(*runner, ids, 300), run_and_decode(*reference, ids, 300)).largest <
          kReordered.largest);
  }
}

TEST_CASE("ranks take cuBLAS for everything", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  const auto reference = load_gpu(shipped_model("tiny-austen"), with_ranks({2, 1}));
  GpuSetup setup = with_ranks({2, 1}, WeightFormat::Bf16);
  setup.gemm = runner::Gemm::Cublas;
  const auto runner = load_gpu(shipped_model("tiny-austen"), setup);
  const Ids ids = some_ids(303);
  CHECK(distance(run_and_decode(*runner, ids, 300), run_and_decode(*reference, ids, 300)).largest < kReordered.largest);
}

TEST_CASE("ranks load again, and measure their steps", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  GpuSetup setup = with_ranks({2, 1});
  if (has_two_gpus()) setup.device = "cuda";
  const auto runner = load_gpu(shipped_model("tiny-austen"), setup);
  const Ids ids = some_ids(20);
  const Rows first = run_and_decode(*runner, ids, 15);
  CHECK(runner->read_bandwidth() > 0);
  const auto profile = runner->step_profile();
  if (has_two_gpus()) {  // ranks that share a GPU have no graphs to measure
    REQUIRE_FALSE(profile.empty());
    CHECK(profile.front().first == "step");
    CHECK(profile.front().second > 0);
  }
  CHECK(difference(run_and_decode(*runner, ids, 15), first).empty());
  Progress silent;
  runner->load(model::Checkpoint::open(shipped_model("tiny-austen-qwen2")), silent);
  run_and_decode(*runner, ids, 15);
  runner->load(model::Checkpoint::open(shipped_model("tiny-austen")), silent);
  CHECK(difference(run_and_decode(*runner, ids, 15), first).empty());
}

TEST_CASE("a rank that fails ends the step on all, and the next one runs", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  std::vector<GpuSetup> setups{with_ranks({2, 1}), with_ranks({2, 2})};
  if (has_two_gpus()) {
    setups.push_back(with_ranks({2, 1}));
    setups.back().device = "cuda";
  }
  for (const GpuSetup& setup : setups) {
    INFO(setup.device << " -tp " << setup.tensor_parallel << " -pp " << setup.pipeline_parallel);
    const auto runner = load_gpu(shipped_model("tiny-austen"), setup);
    const Ids ids = some_ids(12);
    const Rows before = run_and_decode(*runner, ids, 9);
    for (const int failing : {0, 2, 7}) {  // 7: in the last stage
      runner->set_trace([&](int layer, std::span<const float>) {
        if (layer == failing) throw std::runtime_error("on purpose");
      });
      CHECK_THROWS_WITH(run_and_decode(*runner, ids, 9), Catch::Contains("on purpose"));
      runner->set_trace({});
      CHECK(difference(run_and_decode(*runner, ids, 9), before).empty());
    }
  }
}

TEST_CASE("GPUs for ranks are asked for by name", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_GPU();
  const auto refusal = [](const std::string& device, const Ranks& ranks) {
    GpuSetup setup = with_ranks(ranks);
    setup.device = device;
    return error_of(Code::Usage, [&] { gpu_runner(setup); });
  };
  CHECK_THAT(refusal("cuda", {16, 4}), Catch::Contains("ask for 64 GPUs"));
  CHECK_THAT(refusal("cuda:0,cuda:0", {3, 1}), Catch::Contains("that is 2 GPUs, and -tp and -pp ask for 3"));
  CHECK_THAT(refusal("cuda:0,cuda:99", {2, 1}), Catch::Contains("cuda:99"));
  CHECK_THAT(refusal("cuda:0,", {2, 1}), Catch::Contains("--device"));
  const SumsBy wrong("tree");
  CHECK_THAT(refusal("cuda:0,cuda:0", {2, 1}), Catch::Contains("GLYD_ALL_REDUCE=tree: expected peer or nccl"));
}

TEST_CASE("two GPUs give what two ranks on one give, to the bit, whatever carries the sums", "[cuda][gpu][ranks]") {
  GLYD_NEEDS_TWO_GPUS();
  for (const std::string& model : kShippedModels) {
    for (const Ranks ranks : {Ranks{2, 1}, {1, 2}}) {
      const auto shared = load_gpu(shipped_model(model), with_ranks(ranks));
      for (const char* transport : transports()) {
        const SumsBy sums(transport);
        for (const bool eager : {false, true}) {
          INFO(model << ", -tp " << ranks.tp << " -pp " << ranks.pp << ", " << transport << (eager ? ", eager" : ""));
          GpuSetup setup = with_ranks(ranks);
          setup.device = "cuda";
          setup.eager = eager;
          const auto apart = load_gpu(shipped_model(model), setup);
          for (const std::int32_t prompt : kPrompts) {
            const Ids ids = some_ids(prompt + 20);
            CHECK(difference(run_and_decode(*apart, ids, prompt), run_and_decode(*shared, ids, prompt)).empty());
          }
        }
      }
    }
  }
}
