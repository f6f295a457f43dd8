// The specification's tiny models, whose weights come from a formula and whose outputs were computed in fp64.
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using test::Ids;
using test::Rows;

struct Golden {
  std::string name, model_type;
  io::Json changes;
  std::vector<std::size_t> arg_max;  // per position
  std::vector<double> last;          // logits[0..5] of the last position
  double sum, max;                   // over the last position's logits
  std::vector<double> first;         // logits[0..1] of the first position
};

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all = {
      {"T1 Qwen2",
       "qwen2",
       {{"tie_word_embeddings", true}},
       {11, 23, 26, 2, 11, 0, 23, 11},
       {-0.298191710, 0.437902906, -0.083005180, -0.883915753, 0.691877248, 0.551304684},
       6.028173192,
       1.518149961,
       {0.243632493, 0.978588998}},
      {"T2 Qwen3",
       "qwen3",
       {{"head_dim", 8}},
       {18, 24, 24, 10, 19, 19, 19, 19},
       {-0.905501029, -0.031425700, 0.378608824, 0.892721440, 0.458318873, -0.541007153},
       -1.869972954,
       1.754115043,
       {0.181225505, -0.252783447}},
      {"T6 Qwen2 with YaRN",
       "qwen2",
       {{"head_dim", 16},
        {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}}}},
       {20, 20, 12, 20, 20, 5, 20, 12},
       {-1.025291021, 0.575285634, -0.729294803, -0.671172332, -0.360774030, 1.117469058},
       5.036458987,
       1.220645540,
       {-1.596203609, 0.623571852}},
      {"T7 Llama",
       "llama",
       io::Json::object(),
       {29, 15, 3, 3, 26, 27, 15, 15},
       {-0.422835336, -0.758117354, 0.173327389, 0.433445932, -0.853305845, -0.400302168},
       -0.552363705,
       1.585323996,
       {-1.048735655, -0.542033539}},
      {"T8 Llama with llama3 scaling",
       "llama",
       {{"head_dim", 16},
        {"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}}}},
       {20, 12, 12, 27, 12, 5, 22, 12},
       {-1.298652919, 0.330783512, -0.517993612, -0.368130522, -0.284484128, 1.042327171},
       4.190691525,
       1.274249945,
       {-1.812535219, 0.518198076}},
  };
  return all;
}

const Ids kIds{1, 5, 9, 2, 31, 0, 17, 8};

Rows run(const Golden& golden, runner::Activations activations, const runner::cpu::Kernels& kernels) {
  const test::TempDir dir;
  test::write_formula_model(dir.path(), test::tiny_config(golden.model_type, golden.changes));
  const auto runner = test::load_runner(dir.path(), {.activations = activations, .kernels = &kernels});
  return test::run_chunks(*runner, kIds, test::blocks_from(0, 8), 8);
}

TEST_CASE("golden outputs in fp32", "[runner]") {
  for (const runner::cpu::Kernels& kernels : runner::cpu::supported_kernels()) {
    for (const Golden& golden : goldens()) {
      INFO(golden.name << ", " << kernels.name);
      const Rows rows = run(golden, runner::Activations::Fp32, kernels);
      REQUIRE(rows.size() == 8);
      for (std::size_t p = 0; p < rows.size(); ++p) CHECK(test::arg_max(rows[p]) == golden.arg_max[p]);
      const std::vector<float>& last = rows.back();
      for (std::size_t i = 0; i < golden.last.size(); ++i)
        CHECK(static_cast<double>(last[i]) == Approx(golden.last[i]).margin(1e-5));
      CHECK(std::accumulate(last.begin(), last.end(), 0.0) == Approx(golden.sum).margin(1e-5));
      CHECK(static_cast<double>(last[test::arg_max(last)]) == Approx(golden.max).margin(1e-5));
      for (std::size_t i = 0; i < golden.first.size(); ++i)
        CHECK(static_cast<double>(rows.front()[i]) == Approx(golden.first[i]).margin(1e-5));
    }
  }
}

TEST_CASE("golden outputs with bf16 activations are within two percent of the logits' range", "[runner]") {
  for (const Golden& golden : goldens()) {
    INFO(golden.name);
    const Rows exact = run(golden, runner::Activations::Fp32, runner::cpu::best_kernels());
    const Rows rounded = run(golden, runner::Activations::Bf16, runner::cpu::best_kernels());
    double worst = 0;
    for (std::size_t p = 0; p < exact.size(); ++p) {
      const auto [low, high] = std::minmax_element(exact[p].begin(), exact[p].end());
      for (std::size_t i = 0; i < exact[p].size(); ++i)
        worst = std::max(
            worst, std::abs(static_cast<double>(rounded[p][i] - exact[p][i]) / static_cast<double>(*high - *low)));
    }
    CHECK(worst < 0.02);
    CHECK(worst > 1e-5);  // it does round
  }
}

}  // namespace
}  // namespace glyd
