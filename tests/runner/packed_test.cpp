// Weights that stay packed in memory give the same bits as plain ones, wherever they were packed.
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/pack.h"
#include "io/json.h"
#include "model/packing.h"
#include "runner/cpu/packed_rows.h"
#include "runner/sequences.h"
#include "support/fixtures.h"

namespace glyd {
namespace {

using runner::WeightFormat;

bool bit_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("packed, packed at load and plain give bit-equal logits for all golden prompts", "[runner]") {
  for (const std::string model : {"tiny-austen", "tiny-austen-qwen2"}) {
    const test::TempDir dir;
    const auto packed_dir = dir.path() / "packed";
    {
      ThreadPool pool(2);
      Progress silent;
      const auto checkpoint = model::Checkpoint::open(test::shipped_model(model));
      const auto report = model::pack_model(checkpoint, packed_dir, {}, pool, silent);
      REQUIRE(report.total().packed > 0);  // or there is nothing to compare
    }
    const auto plain = test::load_runner(test::shipped_model(model), {.threads = 2, .weights = WeightFormat::Bf16});
    const auto at_load = test::load_runner(test::shipped_model(model), {.threads = 2, .weights = WeightFormat::Packed});
    const auto stored = test::load_runner(packed_dir, {.threads = 1});
    const auto decoded = test::load_runner(packed_dir, {.threads = 2, .weights = WeightFormat::Bf16});
    CHECK(stored->bytes_per_step() < plain->bytes_per_step() * 3 / 4);
    CHECK(at_load->bytes_per_step() == stored->bytes_per_step());
    CHECK(decoded->bytes_per_step() == plain->bytes_per_step());

    const auto path = test::tests_dir() / "data" / "goldens" / (model + ".json");
    const io::Json goldens = io::parse_json(test::read_file(path), path.string());
    for (const io::Json& prompt : goldens["prompts"]) {
      INFO(model << ", " << prompt["name"]);
      const test::Ids ids = prompt["ids"];
      const test::Ids blocks = test::blocks_from(0, static_cast<std::int64_t>(ids.size()));
      const std::vector<float> want = test::run_chunks(*plain, ids, blocks, 512).back();
      CHECK(bit_equal(test::run_chunks(*at_load, ids, blocks, 512).back(), want));
      CHECK(bit_equal(test::run_chunks(*stored, ids, blocks, 512).back(), want));
      CHECK(bit_equal(test::run_chunks(*stored, ids, blocks, 1).back(), want));
      CHECK(bit_equal(test::run_chunks(*decoded, ids, blocks, 512).back(), want));
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
