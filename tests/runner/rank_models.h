#pragma once
// Small models, and runners of one rank or several, for the tests of ranks.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "runner/parallel/parallel_runner.h"
#include "runner/runner.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd::test {

// `ranks` ranks of one thread each.
runner::Options options_for(int ranks, runner::WeightFormat weights = runner::WeightFormat::AsStored,
                            runner::Activations activations = runner::Activations::Fp32);

// A runner that has loaded `model`.
std::unique_ptr<runner::Runner> load(const std::filesystem::path& model, const runner::Options& options);

// `ids` and the eight that follow, each the largest logit's.
Ids greedy_ids(runner::Runner& runner, Ids ids, const Ids& block_table);

// A model directory with weights from a formula.
class TinyModel {
 public:
  TinyModel(const std::string& type, const io::Json& changes);
  const std::filesystem::path& path() const { return dir_.path(); }
  Ids ids(std::size_t n) const { return random_ids(n, config_["vocab_size"], 5); }

 private:
  TempDir dir_;
  io::Json config_;
};

struct Shape {
  const char* type;
  io::Json changes;
};

io::Json sizes(int heads, int kv_heads, int head_dim, int inner, int vocab);
io::Json with(io::Json changes, const io::Json& more);

// Shapes that all degrees up to 8 serve: kv heads shared by ranks, uneven heads, odd inner sizes, ranks without rows of
// the head, every kind of bias, tied heads.
const std::vector<Shape>& shapes();

// CPU ranks of a test's own making, to look into them: `options_of` may change those of each rank, options_for(1), and
// `prepare` the rank that was made with them. Both are given its number among those of all stages.
std::unique_ptr<runner::ParallelRunner> make_ranks(int ranks, int stages = 1,
                                                   const std::function<void(int, runner::Options&)>& options_of = {},
                                                   const std::function<void(int, runner::Runner&)>& prepare = {});

}  // namespace glyd::test
