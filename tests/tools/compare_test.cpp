// glyd-run --check as a function: two runners side by side, one of them damaged.
#include "compare.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "runner/cpu/cpu_runner.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

using runner::cpu::CpuRunner;
using tools::compare_runners;

// A CPU runner whose trace, or logits, are not what it computed.
class Damaged : public CpuRunner {
 public:
  using CpuRunner::CpuRunner;
  int layer = -2;         // whose values are scaled
  float scale = 1;        // what by
  std::int64_t from = 0;  // the first position that is
  bool silent = false;    // shows no layers
  float first_logit = 0;  // added to the first logit

  void set_trace(runner::Trace trace) override {
    if (silent || !trace) return CpuRunner::set_trace({});
    CpuRunner::set_trace([this, trace](int at, std::span<const float> hidden) {
      std::vector<float> values(hidden.begin(), hidden.end());
      const std::int64_t width = std::ssize(values) / tokens_;
      for (std::int64_t t = 0; at == layer && t < tokens_; ++t) {
        for (std::int64_t i = 0; first_ + t >= from && i < width; ++i)
          values[static_cast<std::size_t>(t * width + i)] *= scale;
      }
      trace(at, values);
    });
  }
  runner::StepResult step(const runner::Batch& batch) override {
    tokens_ = batch.tokens();
    first_ = batch.positions.front();
    runner::StepResult result = CpuRunner::step(batch);
    result.logits[0] += first_logit;
    return result;
  }

 private:
  std::int64_t tokens_ = 0, first_ = 0;
};

struct Setup {
  explicit Setup(runner::Activations activations = runner::Activations::Bf16) {
    write_formula_model(dir.path(), tiny_config("qwen3"));
    const auto checkpoint = model::Checkpoint::open(dir.path());
    runner::Options options;
    options.kv_blocks = 4;
    options.threads = 1;
    options.activations = runner::Activations::Bf16;
    reference = std::make_unique<CpuRunner>(options);
    options.activations = activations;
    device = std::make_unique<Damaged>(options);
    Progress silent;
    reference->load(checkpoint, silent);
    device->load(checkpoint, silent);
  }
  tools::ComparisonReport compare(std::int64_t tokens = 5, std::int64_t context = 64) {
    return compare_runners(*device, *reference, {{1, 5, 9, 2, 7}, tokens, 3, context, 16, std::vector<bool>(32, true)});
  }

  TempDir dir;
  std::unique_ptr<CpuRunner> reference;
  std::unique_ptr<Damaged> device;
};

TEST_CASE("equal runners agree to the last bit, in chunks and steps", "[tools]") {
  const auto report = Setup().compare();
  CHECK(report.agrees);
  CHECK_THAT(report.text, Catch::Contains("embedding      0.000000   0.000000") &&
                              Catch::Contains("layer 1        0.000000   0.000000") &&
                              Catch::Contains("logits         0.000000   0.000000") &&
                              Catch::Contains("5 prompt tokens, 5 made, 7 of 7 choices equal"));
}

TEST_CASE("fp32 and bf16 activations differ, within the tolerance", "[tools]") {
  const auto report = Setup(runner::Activations::Fp32).compare();
  CHECK(report.agrees);
  CHECK_THAT(report.text, !Catch::Contains("layer 1        0.000000"));
}

TEST_CASE("the context ends a comparison", "[tools]") {
  CHECK_THAT(Setup().compare(1000, 9).text, Catch::Contains("5 prompt tokens, 4 made"));
}

TEST_CASE("the first layer that is wrong is named, though it is wrong in one late step alone", "[tools]") {
  Setup setup;
  setup.device->layer = 1;
  setup.device->scale = 1.1f;
  setup.device->from = 9;
  const auto report = setup.compare();
  CHECK_FALSE(report.agrees);
  CHECK_THAT(report.text, Catch::Contains("\nlayer 1 is the first that differs"));
  setup.device->from = 11;  // never run
  CHECK(setup.compare().agrees);
  setup.device->from = 0;
  setup.device->layer = -1;
  CHECK_THAT(setup.compare().text, Catch::Contains("\nembedding is the first that differs"));
  setup.device->scale = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(setup.compare().text, Catch::Contains("\nembedding is the first that differs"));
}

TEST_CASE("wrong logits are named, and no numbers are an error", "[tools]") {
  Setup setup;
  setup.device->first_logit = 100;
  CHECK_THAT(setup.compare().text, Catch::Contains("\nlogits is the first that differs"));
  CHECK_FALSE(setup.compare().agrees);
  setup.device->first_logit = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH(setup.compare(), Catch::Contains("no finite numbers"));
  setup.device->first_logit = 0;
  setup.device->silent = true;
  CHECK_THROWS_WITH(setup.compare(), Catch::Contains("shows no layers"));
}

}  // namespace
}  // namespace glyd::test
