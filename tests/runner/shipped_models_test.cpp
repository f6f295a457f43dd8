// The models in the repository against logits of a reference implementation in fp32.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "io/json.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using test::Ids;
using test::Rows;

TEST_CASE("the shipped models' next-token logits", "[runner]") {
  for (const std::string& model : test::kShippedModels) {
    const auto runner = test::load_runner(test::shipped_model(model), {.threads = 2});
    const io::Json all = test::recorded(model);
    REQUIRE(all["prompts"].size() >= 10);
    for (const io::Json& prompt : all["prompts"]) {
      INFO(model << ", " << prompt["name"]);
      const Ids ids = prompt["ids"];
      const Rows rows =
          test::run_chunks(*runner, ids, test::blocks_from(0, static_cast<std::int64_t>(ids.size())), 512);
      REQUIRE(prompt["top5_fp32"].size() == 5);
      for (const io::Json& entry : prompt["top5_fp32"])
        CHECK(static_cast<double>(rows.back().at(entry[0].get<std::size_t>())) ==
              Approx(entry[1].get<double>()).margin(2e-3));
      CHECK(test::arg_max(rows.back()) == prompt["top5_fp32"][0][0].get<std::size_t>());
    }
  }
}

TEST_CASE("the shipped models' loss on a passage", "[runner]") {
  for (const std::string& model : test::kShippedModels) {
    const auto runner = test::load_runner(test::shipped_model(model), {.threads = 2});
    const io::Json passage = test::recorded(model)["passage"];
    const Ids ids = passage["ids"];
    REQUIRE(ids.size() > 500);
    const Rows rows = test::run_chunks(*runner, ids, test::blocks_from(0, static_cast<std::int64_t>(ids.size())), 512);
    double loss = 0;
    for (std::size_t p = 0; p + 1 < ids.size(); ++p) {
      const double highest = static_cast<double>(rows[p][test::arg_max(rows[p])]);
      double total = 0;
      for (const float x : rows[p]) total += std::exp(static_cast<double>(x) - highest);
      loss += highest + std::log(total) - static_cast<double>(rows[p][static_cast<std::size_t>(ids[p + 1])]);
    }
    INFO(model);
    CHECK(loss / static_cast<double>(ids.size() - 1) == Approx(passage["nll_fp32"].get<double>()).margin(1e-4));
  }
}

TEST_CASE("a shipped model with bf16 activations stays within two percent of the logits' range", "[runner]") {
  for (const std::string& model : test::kShippedModels) {
    const auto exact = test::load_runner(test::shipped_model(model), {.threads = 2});
    const auto rounded =
        test::load_runner(test::shipped_model(model), {.threads = 2, .activations = runner::Activations::Bf16});
    const io::Json all = test::recorded(model);
    for (const io::Json& prompt : all["prompts"]) {
      const Ids ids = prompt["ids"], table = test::blocks_from(0, static_cast<std::int64_t>(ids.size()));
      const std::vector<float> a = test::run_chunks(*exact, ids, table, 512).back();
      const std::vector<float> b = test::run_chunks(*rounded, ids, table, 512).back();
      double worst = 0;
      for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(a[i] - b[i])));
      const auto [low, high] = std::minmax_element(a.begin(), a.end());
      INFO(model << ", " << prompt["name"]);
      CHECK(worst < 0.02 * static_cast<double>(*high - *low));
    }
  }
}

}  // namespace
}  // namespace glyd
