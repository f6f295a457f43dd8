// Weights that stay packed in memory give the same bits as plain ones, wherever they were packed.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "codec/pack.h"
#include "io/json.h"
#include "model/packing.h"
#include "runner/cpu/packed_rows.h"
#include "runner/cpu/weights.h"
#include "runner/numbers.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using runner::WeightFormat;

TEST_CASE("packed, packed at load and plain give bit-equal logits for all golden prompts", "[runner]") {
  for (const std::string& model : test::kShippedModels) {
    const auto plain = test::load_runner(test::shipped_model(model), {.threads = 2, .weights = WeightFormat::Bf16});
    const auto at_load = test::load_runner(test::shipped_model(model), {.threads = 2, .weights = WeightFormat::Packed});
    const auto stored = test::load_runner(test::packed_copy(model), {.threads = 1});
    const auto decoded = test::load_runner(test::packed_copy(model), {.threads = 2, .weights = WeightFormat::Bf16});
    CHECK(stored->bytes_per_step() < plain->bytes_per_step() * 3 / 4);
    CHECK(at_load->bytes_per_step() == stored->bytes_per_step());
    CHECK(decoded->bytes_per_step() == plain->bytes_per_step());

    const io::Json goldens = test::recorded(model);
    for (const io::Json& prompt : goldens["prompts"]) {
      INFO(model << ", " << prompt["name"]);
      const test::Ids ids = prompt["ids"];
      const test::Ids blocks = test::blocks_from(0, static_cast<std::int64_t>(ids.size()));
      const std::vector<float> want = test::run_chunks(*plain, ids, blocks, 512).back();
      CHECK(test::bits_equal(test::run_chunks(*at_load, ids, blocks, 512).back(), want));
      CHECK(test::bits_equal(test::run_chunks(*stored, ids, blocks, 512).back(), want));
      CHECK(test::bits_equal(test::run_chunks(*stored, ids, blocks, 1).back(), want));
      CHECK(test::bits_equal(test::run_chunks(*decoded, ids, blocks, 512).back(), want));
    }
  }
}

TEST_CASE("a part of a packed model counts as what it takes packed", "[runner]") {
  using runner::cpu::Weights;
  const test::TempDir dir;
  const auto plain_dir = dir.path() / "plain", packed_dir = dir.path() / "packed";
  std::filesystem::create_directory(plain_dir);
  test::write_formula_model(plain_dir, test::tiny_config("qwen3", {{"vocab_size", 300},
                                                                   {"hidden_size", 64},
                                                                   {"num_attention_heads", 16},
                                                                   {"num_key_value_heads", 4},
                                                                   {"head_dim", 64},
                                                                   {"intermediate_size", 1104}}));
  ThreadPool pool(2);
  Progress silent;
  model::pack_model(model::Checkpoint::open(plain_dir), packed_dir, {}, pool, silent);
  const auto checkpoint = model::Checkpoint::open(packed_dir);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      INFO("rank " << rank << " of " << ranks);
      const model::Shard shard = model::make_shard(checkpoint.config(), rank, ranks);
      const std::uint64_t planned = Weights::bytes(checkpoint, shard, WeightFormat::AsStored);
      const Weights loaded = Weights::load(checkpoint, shard, WeightFormat::AsStored, pool, silent);
      CHECK(loaded.bytes() <= planned);
      // 2 and 4 ranks cut no unit; of 3 and 8 the heads of some do, and those pack o again.
      if (ranks != 3 && ranks != 8) CHECK(loaded.bytes() == planned);
      CHECK(planned < Weights::bytes(checkpoint.spec(), shard) * 9 / 10);
    }
  }
}

TEST_CASE("packed rows are the plain rows, padded with zeros", "[runner]") {
  ThreadPool pool(2);
  constexpr std::size_t kRows = 37, kCols = 75;  // no multiple of tiles, lanes or groups
  std::vector<Bf16> weights(kRows * kCols);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = to_bf16(static_cast<float>(i % 97) * 0.01f - 0.4f);
  auto bytes = codec::pack({kRows, kCols}, weights, {.min_saving = -10}, pool);
  REQUIRE(bytes);
  const runner::cpu::PackedRows rows(*bytes, "test", pool);
  REQUIRE(rows.rows() == kRows);
  REQUIRE(rows.cols() == kCols);
  std::vector<Bf16> scratch(runner::cpu::kRowTile * rows.stride(), to_bf16(7.0f));
  for (std::size_t r = 0; r < kRows; ++r) {
    const Bf16* row = rows.fetch(r, 1, scratch.data());
    for (std::size_t c = 0; c < rows.stride(); ++c) REQUIRE(row[c] == (c < kCols ? weights[r * kCols + c] : Bf16{}));
  }
}

TEST_CASE("a damaged packed matrix is refused when it is loaded, by name", "[runner]") {
  ThreadPool pool(1);
  std::vector<Bf16> weights(64 * 512);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = to_bf16(static_cast<float>(i * 7919 % 1000) * 0.001f - 0.5f);
  auto bytes = codec::pack({64, 512}, weights, {}, pool);
  REQUIRE(bytes);
  bytes->back() ^= std::byte{0xFF};  // the last word of the last unit
  bytes->resize(bytes->size() - 4);  // and the stream is cut short
  CHECK_THROWS_WITH(runner::cpu::PackedRows(*bytes, "layers.0.down of model.safetensors", pool),
                    Catch::Matchers::Contains("layers.0.down of model.safetensors"));
}

}  // namespace
}  // namespace glyd
