// What the plan counts, what it says when it does not fit, and where the machine's limits are read.
#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "base/error.h"
#include "runner/cpu/available_memory.h"
#include "runner/cpu/kv_cache.h"
#include "runner/cpu/memory_plan.h"
#include "runner/cpu/weights.h"
#include "runner/sequences.h"
#include "support/errors.h"
#include "support/fixtures.h"

namespace glyd::runner::cpu {
namespace {

constexpr std::uint64_t kGb = 1'000'000'000;

// Qwen3-0.6B: 596,049,920 parameters; 2 * 28 layers * 8 heads * 128 values a token in the cache.
model::Config config_0_6b() {
  return model::parse_config(R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
      "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 40960,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true})",
                             "config.json");
}

MemoryPlan plan(const Options& options, std::uint64_t available) {
  const model::Config config = config_0_6b();
  return plan_memory(config, Weights::bytes(model::model_spec(config), model::make_shard(config, 0, 1)), options, 2,
                     available);
}

std::string memory_error(const Options& options, std::uint64_t available) {
  return test::error_of(Code::Memory, [&] { plan(options, available); });
}

TEST_CASE("the plan counts weights and KV blocks", "[runner]") {
  Options options;
  options.context = 1000;
  options.max_sequences = 4;
  const MemoryPlan p = plan(options, 100 * kGb);
  const std::uint64_t vectors = 28 * (2 * 1024 + 2 * 128) + 1024;  // kept in fp32, two bytes more than in the file
  CHECK(p.weights == 1'192'099'840 + 2 * vectors);
  CHECK(p.kv_blocks == 4 * 63);
  CHECK(p.kv_cache == std::uint64_t{4 * 63 * 16} * 2 * 28 * 8 * 128 * 4);
  CHECK(p.available == 100 * kGb);
  CHECK(p.workspace > std::uint64_t{2048} * 4 * (3 * 1024 + 3 * 3072));
  CHECK(p.workspace < kGb);

  options.activations = Activations::Bf16;
  CHECK(plan(options, 100 * kGb).kv_cache == p.kv_cache / 2);
  options.kv_blocks = 7;
  CHECK(plan(options, 100 * kGb).kv_blocks == 7);
}

TEST_CASE("as many KV blocks as fit, at least one whole sequence", "[runner]") {
  Options options;
  options.context = 4096;
  options.max_sequences = 1000;
  const MemoryPlan p = plan(options, 8 * kGb);
  CHECK(p.kv_blocks >= 256);
  CHECK(p.kv_blocks < 256'000);
  CHECK(p.total() <= 8 * kGb - 8 * kGb / 16);
  CHECK(p.total() > 7 * kGb);

  const MemoryPlan tight =
      plan(options, p.weights + p.workspace + 256 * p.kv_cache / static_cast<std::uint64_t>(p.kv_blocks));
  CHECK(tight.kv_blocks == 256);
  CHECK(tight.total() == tight.available);
}

TEST_CASE("what does not fit is refused with the numbers and what would fit", "[runner]") {
  Options options;  // context of the model: 40960 tokens of 229,376 bytes
  options.max_sequences = 1;
  const std::uint64_t fixed = plan(options, 100 * kGb).weights + plan(options, 100 * kGb).workspace;
  const std::string message = memory_error(options, fixed + 1000 * 229'376);
  CHECK_THAT(message, Catch::Contains("weights 1.19 GB, KV cache 9.40 GB (40960 tokens)"));
  CHECK_THAT(message, Catch::Contains("a context of 992 tokens would fit (-c 992)"));  // whole blocks of 16
  options.context = 992;
  CHECK(plan(options, fixed + 1000 * 229'376).kv_blocks == 62);

  CHECK_THAT(memory_error(options, fixed), Catch::Contains("no context fits"));
  CHECK_THAT(memory_error(options, 0), Catch::Contains("no context fits"));
}

TEST_CASE("weights that are packed while loading are counted as before, and the error says so", "[runner]") {
  const model::Config config = config_0_6b();
  const std::string message = test::error_of(Code::Memory, [&] { plan_memory(config, kGb, {}, 2, kGb, 1, true); });
  CHECK_THAT(message, Catch::Contains("weights 1.00 GB (counted as bf16; a model that glyd-pack has packed"));
}

TEST_CASE("absurd sizes neither overflow nor pass", "[runner]") {
  model::Config config = config_0_6b();
  config.layers = 1024;
  config.kv_heads = config.heads = 4096;
  config.head_dim = 1024;
  Options options;
  options.context = std::numeric_limits<std::int32_t>::max() - kBlockSize;
  options.max_sequences = 1 << 20;
  CHECK(KvCache::block_bytes(config, Activations::Fp32) == std::uint64_t{1024} * 2 * 16 * 4096 * 1024 * 4);
  CHECK_THROWS_AS(plan_memory(config, Weights::bytes(model::model_spec(config), model::make_shard(config, 0, 1)),
                              options, 2, 100 * kGb),
                  Error);

  for (const std::int64_t bad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    Options o;
    o.context = bad;
    CHECK_THROWS_WITH(plan(o, kGb), Catch::Contains("context"));
    o = {};
    o.kv_blocks = bad;
    CHECK_THROWS_WITH(plan(o, kGb), Catch::Contains("kv_blocks"));
    o = {};
    o.max_batch_tokens = bad;
    CHECK_THROWS_WITH(plan(o, kGb), Catch::Contains("max_batch_tokens"));
    o = {};
    o.max_sequences = bad;
    CHECK_THROWS_WITH(plan(o, kGb), Catch::Contains("max_sequences"));
  }
}

TEST_CASE("the runner's plan and what it loads agree", "[runner]") {
  const auto checkpoint = model::Checkpoint::open(test::shipped_model("tiny-austen"));
  Options options;
  options.context = 256;
  options.max_sequences = 2;
  options.max_batch_tokens = 64;
  CpuRunner runner(options);
  const MemoryPlan p = runner.plan(checkpoint);
  CHECK(p.kv_blocks == 32);
  CHECK(p.available == Approx(static_cast<double>(available_memory())).epsilon(0.5));
  CHECK(runner.kv_blocks() == 0);
  Progress silent;
  runner.load(checkpoint, silent);
  CHECK(runner.kv_blocks() == 32);
}

TEST_CASE("available memory is the least of the machine's and the control groups'", "[runner]") {
  const test::TempDir dir;
  const auto write = [&](const char* name, const std::string& text) {
    std::filesystem::create_directories((dir.path() / name).parent_path());
    test::write_file(dir.path() / name, text);
  };
  CHECK(available_memory(dir.path()) > 1'000'000 * kGb);  // nothing is known

  write("proc/meminfo", "MemTotal:       24000000 kB\nMemFree:  5 kB\nMemAvailable:   2000000 kB\n");
  CHECK(available_memory(dir.path()) == 2'048'000'000);

  SECTION("version 2: the group and those above it") {
    write("proc/self/cgroup", "0::/a/b\n");
    write("sys/fs/cgroup/a/b/memory.max", "max\n");
    write("sys/fs/cgroup/a/b/memory.current", "100\n");
    CHECK(available_memory(dir.path()) == 2'048'000'000);
    write("sys/fs/cgroup/a/memory.max", "1000000000\n");
    write("sys/fs/cgroup/a/memory.current", "300000000\n");
    CHECK(available_memory(dir.path()) == 700'000'000);
    write("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 100000000\nactive_file 50000000\n");
    CHECK(available_memory(dir.path()) == 850'000'000);
    write("sys/fs/cgroup/memory.max", "400000000\n");  // a container sees its own limit at the root
    write("sys/fs/cgroup/memory.current", "500000000\n");
    CHECK(available_memory(dir.path()) == 0);
  }
  SECTION("version 1") {
    write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n");
    write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n");
    write("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "100\n");
    CHECK(available_memory(dir.path()) == 2'048'000'000);
    write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "500000100\n");
    CHECK(available_memory(dir.path()) == 500'000'000);
  }
}

}  // namespace
}  // namespace glyd::runner::cpu
