// A rank that fails ends the step, or the load, of all ranks of all stages.
#include <catch2/catch.hpp>

#include "model/sharding.h"
#include "runner/numbers.h"
#include "runner/rank_models.h"
#include "runner/sequences.h"
#include "support/errors.h"

namespace glyd {
namespace {

using test::error_of;
using test::Ids;
using test::Rows;
using test::TinyModel;

struct Degrees {
  int ranks, stages;
};

TEST_CASE("a rank that fails ends the step on all ranks, under its name", "[runner][parallel]") {
  const TinyModel model("qwen3", test::with(test::sizes(8, 1, 8, 25, 32), {{"num_hidden_layers", 6}}));
  const auto checkpoint = model::Checkpoint::open(model.path());
  const Ids ids = model.ids(12), table = test::blocks_from(0, 12);
  for (const Degrees degrees : {Degrees{3, 1}, {2, 3}}) {
    INFO(degrees.stages << " stages of " << degrees.ranks);
    const int count = degrees.ranks * degrees.stages;
    int failing = -1;  // rank, behind every layer of its stage in turn
    int failing_at = 0;
    const auto runner = test::make_ranks(degrees.ranks, degrees.stages, {}, [&](int rank, runner::Runner& r) {
      r.set_trace([&, rank](int layer, std::span<const float>) {
        if (rank == failing && layer == failing_at) fail(Code::Memory, "out of something");
      });
    });
    Progress silent;
    runner->load(checkpoint, silent);
    const Rows want = test::run_chunks(*runner, ids, table, 512);
    for (failing = 0; failing < count; ++failing) {
      const Range layers = model::make_shard(checkpoint.config(), failing, degrees.ranks, degrees.stages).layers;
      for (std::uint64_t layer = layers.begin; layer < layers.end; ++layer) {
        failing_at = static_cast<int>(layer);
        CHECK(error_of(Code::Memory, [&] { test::run_chunks(*runner, ids, table, 512); }) ==
              fmt::format("rank {} of {}: out of something", failing, count));
      }
    }
    failing = -1;  // and nothing is left of it
    CHECK(test::same_bits(test::run_chunks(*runner, ids, table, 512), want));

    runner::Batch bad = test::make_batch({{&ids, &table, 0, 12}});
    bad.token_ids[3] = 32;
    CHECK_THAT(error_of(Code::Usage, [&] { runner->step(bad); }), Catch::StartsWith("token id 32"));
  }
}

TEST_CASE("a rank that cannot load ends the load of all", "[runner][parallel]") {
  const TinyModel model("qwen3", test::sizes(8, 1, 8, 25, 32));
  const auto checkpoint = model::Checkpoint::open(model.path());
  for (const Degrees degrees : {Degrees{3, 1}, {2, 2}}) {
    for (int failing = 0; failing < degrees.ranks * degrees.stages; ++failing) {
      INFO("rank " << failing << ", " << degrees.stages << " stages of " << degrees.ranks);
      const auto runner = test::make_ranks(degrees.ranks, degrees.stages, [&](int rank, runner::Options& o) {
        if (rank == failing) o.allowed.resize(31);  // not the model's vocabulary: noticed when memory is allocated
      });
      Progress silent;
      CHECK_THAT(error_of(Code::Usage, [&] { runner->load(checkpoint, silent); }),
                 Catch::Contains("allowed out of 31"));
    }
  }
}

}  // namespace
}  // namespace glyd
