#pragma once
// Small models, and runners of one rank or several, for the tests of ranks.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "runner/runner.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd::test {

// `ranks` ranks of one thread each.
runner::Options options_for(int ranks, runner::WeightFormat weights = runner::WeightFormat::AsStored,
                            runner::Activations activations = runner::Activations::Fp32);

// A runner that has loaded `model`.
std::unique_ptr<runner::Runner> load(const std::filesystem::path& model, const runner::Options& options);

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

// The message of the error that `body` throws: one line, with this code.
std::string error_of(const std::function<void()>& body, Code code);

}  // namespace glyd::test
