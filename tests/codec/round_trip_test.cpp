// What is packed comes back bit for bit: by the decoder, and by a second one that follows docs/format.md alone.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "codec/matrices.h"
#include "codec/pack.h"
#include "codec/unpack.h"

using namespace glyd;
using codec::UnitGrid;

namespace {

void check_round_trip(const UnitGrid& grid, const test::Weights& weights, bool by_reference = true) {
  const std::vector<std::byte> packed = test::pack_always(grid, weights);
  const codec::Unpacker unpacker(packed, "test");
  CHECK(unpacker.grid().rows == grid.rows);
  CHECK(unpacker.grid().cols == grid.cols);
  test::Weights back(weights.size());
  ThreadPool one(1);
  unpacker.unpack(back, one);
  CHECK((back == weights));
  if (by_reference) CHECK((test::reference_unpack(packed) == weights));
  const codec::PackStats s = unpacker.stats();
  CHECK(s.weights == weights.size());
  CHECK(s.total_bytes == packed.size());
  CHECK(s.sign_mantissa_bytes + s.exponent_bytes + s.offset_bytes + s.table_bytes + 4 * s.exceptions == packed.size());
}

test::Weights all_patterns() {
  test::Weights w(65536);
  for (std::uint32_t i = 0; i < w.size(); ++i) w[i].bits = static_cast<std::uint16_t>(i);
  return w;
}

}  // namespace

TEST_CASE("positions and places are each other's inverse and fill a unit", "[codec]") {
  std::vector<bool> seen(codec::kUnitWeights);
  for (std::uint32_t row = 0; row < 16; ++row) {
    for (std::uint32_t col = 0; col < 256; ++col) {
      const std::uint32_t p = codec::position_of(row, col);
      REQUIRE(p < codec::kUnitWeights);
      CHECK_FALSE(seen[p]);
      seen[p] = true;
      CHECK(codec::row_of(p) == row);
      CHECK(codec::col_of(p) == col);
    }
  }
  // Lane 5 = (g 1, q 1), second group, its bytes in order: two columns of row 1, the same of row 9, the next two ...
  const std::uint32_t lane5 = 512 + 5 * 16;
  CHECK(codec::position_of(1, 32 + 8) == lane5);
  CHECK(codec::position_of(1, 32 + 9) == lane5 + 1);
  CHECK(codec::position_of(9, 32 + 8) == lane5 + 2);
  CHECK(codec::position_of(1, 32 + 10) == lane5 + 4);
  CHECK(codec::position_of(9, 32 + 15) == lane5 + 15);
}

TEST_CASE("all 65,536 patterns come back", "[codec]") {
  test::Weights weights = all_patterns();
  SECTION("in order") { check_round_trip({256, 256}, weights); }
  SECTION("in order, long rows") { check_round_trip({16, 4096}, weights); }
  SECTION("in disorder") {
    std::shuffle(weights.begin(), weights.end(), std::mt19937_64(3));
    check_round_trip({128, 512}, weights);
  }
  SECTION("among Gaussian weights, so that most of them are exceptions") {
    const test::Weights patterns = weights;
    weights = test::gaussian(1 << 20, 0.02f, 4);
    for (std::size_t i = 0; i < patterns.size(); ++i) weights[i * 16 + i % 16] = patterns[i];
    check_round_trip({1024, 1024}, weights);
  }
}

TEST_CASE("random bits come back, and are left plain unless asked for", "[codec]") {
  const test::Weights weights = test::random_bits(128 * 512, 9);
  check_round_trip({128, 512}, weights);
  ThreadPool one(1);
  CHECK_FALSE(codec::pack({128, 512}, weights, {}, one).has_value());
}

TEST_CASE("constant matrices come back and take no exponent bits", "[codec]") {
  const std::uint16_t bits = GENERATE(0x0000, 0x8000, 0x3F80, 0xBF80, 0x0001, 0x807F, 0x7F7F, 0xFF7F);
  const test::Weights weights = test::constant(64 * 512, bits);
  check_round_trip({64, 512}, weights);
  const std::vector<std::byte> packed = test::pack_always({64, 512}, weights);
  const codec::PackStats s = codec::Unpacker(packed, "test").stats();
  CHECK(s.exponent_bytes == 0);
  CHECK(s.exceptions == 0);
}

TEST_CASE("matrices of infinities and NaNs come back", "[codec]") {
  const std::uint16_t bits = GENERATE(0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF);
  check_round_trip({32, 300}, test::constant(32 * 300, bits));
}

TEST_CASE("shapes just off every multiple come back", "[codec]") {
  const std::uint64_t rows = GENERATE(1, 2, 7, 8, 9, 15, 16, 17, 31, 33);
  const std::uint64_t cols = GENERATE(1, 2, 3, 31, 32, 33, 64, 65, 255, 256, 257, 511, 513);
  INFO(rows << " x " << cols);
  const UnitGrid grid{rows, cols};
  check_round_trip(grid, test::gaussian(rows * cols, 0.02f, rows * 1000 + cols));
  check_round_trip(grid, test::random_bits(rows * cols, rows * 1000 + cols));
}

TEST_CASE("edges cost little", "[codec]") {
  const auto bytes_of = [](std::uint64_t rows, std::uint64_t cols) {
    return test::pack_always({rows, cols}, test::gaussian(rows * cols, 0.02f, 1)).size();
  };
  // A column more brings a group of 32 columns for every row tile: 512 bytes and the shortest words; not a whole unit.
  CHECK(bytes_of(256, 1025) < bytes_of(256, 1024) + 16 * (512 + 36 + 16 * 16 * 3 / 8 + 100));
  // And a row more brings a row tile: its bytes, and padding at the price of the shortest word.
  CHECK(bytes_of(257, 1024) < bytes_of(256, 1024) + 16 * 1024 + 4 * 36 + 16 * 1024 / 2 * 4 / 8);
}

TEST_CASE("shapes that cannot be packed well are left plain", "[codec]") {
  ThreadPool one(1);
  const auto is_packed = [&](std::uint64_t rows, std::uint64_t cols) {
    return codec::pack({rows, cols}, test::gaussian(rows * cols, 0.02f, 1), {}, one).has_value();
  };
  CHECK_FALSE(is_packed(0, 0));
  CHECK_FALSE(is_packed(0, 100));
  CHECK_FALSE(is_packed(100, 0));
  CHECK_FALSE(is_packed(1, 1));
  CHECK_FALSE(is_packed(1, 4096));
  CHECK_FALSE(is_packed(4096, 1));
  CHECK_FALSE(is_packed(8, 4096));
  CHECK(is_packed(64, 1024));
  CHECK(is_packed(1000, 1000));
}

TEST_CASE("Gaussians of any scale pack to 10.8 bits and come back", "[codec]") {
  const float sigma = GENERATE(1e-3f, 0.0174f, 0.02f, 0.023f, 0.7f, 1000.0f);
  const UnitGrid grid{512, 2048};
  const test::Weights weights = test::gaussian(grid.rows * grid.cols, sigma, 17);
  check_round_trip(grid, weights, false);
  const std::vector<std::byte> packed = test::pack_always(grid, weights);
  CHECK(codec::Unpacker(packed, "test").stats().bits_a_weight() < 10.8);
}

TEST_CASE("a Gaussian 5120 x 5120 takes at most 10.75 bits a weight", "[codec]") {
  const UnitGrid grid{5120, 5120};
  const test::Weights weights = test::gaussian(grid.rows * grid.cols, 0.02f, 18);
  ThreadPool pool;
  const auto packed = codec::pack(grid, weights, {}, pool);
  REQUIRE(packed.has_value());
  const codec::Unpacker unpacker(*packed, "test");
  CHECK(unpacker.stats().bits_a_weight() <= 10.75);
  test::Weights back(weights.size());
  unpacker.unpack(back, pool);
  CHECK((back == weights));
}

TEST_CASE("scales that differ from row to row and heavy tails come back", "[codec]") {
  const UnitGrid grid{80, 777};
  test::Weights weights = test::heavy_tails(grid.rows * grid.cols, 0.02f, 5);
  check_round_trip(grid, weights);
  weights = test::gaussian(grid.rows * grid.cols, 1.0f, 6);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    // Rows of one value beside rows of 40 binades: lane starts far from their average, so wide units.
    const std::size_t row = i / grid.cols;
    weights[i] =
        row % 8 < 4 ? to_bf16(1.5f) : to_bf16(to_float(weights[i]) * std::ldexp(1.0f, static_cast<int>(i * 7919 % 40)));
  }
  check_round_trip(grid, weights);
  const std::vector<std::byte> packed = test::pack_always(grid, weights);
  CHECK(codec::Unpacker(packed, "test").stats().wide_units > 0);
}

TEST_CASE("random matrices come back", "[codec]") {
  const std::uint64_t seed = Catch::rngSeed() != 0 ? Catch::rngSeed() : std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const UnitGrid grid{1 + random() % 70, 1 + random() % 600};
    const std::uint64_t count = grid.rows * grid.cols, kind = random() % 4, inner = random();
    INFO("--rng-seed " << seed << " round " << round << ": " << grid.rows << " x " << grid.cols << " kind " << kind);
    test::Weights weights = kind == 0   ? test::gaussian(count, 0.02f, inner)
                            : kind == 1 ? test::random_bits(count, inner)
                            : kind == 2 ? test::heavy_tails(count, 1.0f, inner)
                                        : test::constant(count, static_cast<std::uint16_t>(inner));
    for (std::uint64_t changes = random() % 50; changes > 0; --changes) {
      weights[random() % count].bits = static_cast<std::uint16_t>(random());
    }
    check_round_trip(grid, weights);
  }
}

TEST_CASE("the bytes do not depend on the number of threads, nor does the decoding", "[codec]") {
  const UnitGrid grid{1500, 900};
  const test::Weights weights = test::heavy_tails(grid.rows * grid.cols, 0.02f, 7);
  const std::vector<std::byte> packed = test::pack_always(grid, weights, 1);
  for (const int threads : {2, 3, 8}) {
    CHECK((test::pack_always(grid, weights, threads) == packed));
    ThreadPool pool(threads);
    test::Weights back(weights.size());
    codec::Unpacker(packed, "test").unpack(back, pool);
    CHECK((back == weights));
  }
}

TEST_CASE("codes of other lengths come back", "[codec]") {
  const int max_bits = GENERATE(1, 2, 5, 8, 10, 12);
  const UnitGrid grid{48, 300};
  const test::Weights weights = test::heavy_tails(grid.rows * grid.cols, 0.02f, 8);
  ThreadPool one(1);
  const auto packed = codec::pack(grid, weights, {max_bits, -1e9}, one);
  REQUIRE(packed.has_value());
  CHECK(codec::Unpacker(*packed, "test").code().bits() <= max_bits);
  CHECK((test::reference_unpack(*packed) == weights));
  test::Weights back(weights.size());
  codec::Unpacker(*packed, "test").unpack(back, one);
  CHECK((back == weights));
}

TEST_CASE("row tiles are decoded alone", "[codec]") {
  const UnitGrid grid{37, 400};
  const test::Weights weights = test::gaussian(grid.rows * grid.cols, 0.02f, 10);
  const std::vector<std::byte> packed = test::pack_always(grid, weights);
  const codec::Unpacker unpacker(packed, "test");
  REQUIRE(unpacker.grid().row_tiles() == 3);
  test::Weights last(5 * grid.cols);  // rows 32 to 36
  unpacker.unpack_tile(2, last);
  CHECK(std::equal(last.begin(), last.end(), weights.end() - static_cast<std::ptrdiff_t>(last.size()), weights.end()));
  CHECK_THROWS_AS(unpacker.unpack_tile(3, last), Error);
  CHECK_THROWS_AS(unpacker.unpack_tile(0, last), Error);
}

TEST_CASE("the code never stands for an infinity, and the stream leaves zeros where exceptions are", "[codec]") {
  // What a kernel relies on: everything but the list is finite, and an exception's place adds nothing.
  const UnitGrid grid{16, 256};
  test::Weights weights = test::gaussian(4096, 0.02f, 11);
  weights[5].bits = 0x7F80;
  weights[4000].bits = 0xFFC1;
  const std::vector<std::byte> packed = test::pack_always(grid, weights);
  const codec::Unpacker unpacker(packed, "test");
  const auto unit = unpacker.tile_units(0).at(0);
  std::uint32_t word, first;
  std::memcpy(&word, unit.data(), 4);
  const codec::UnitHeader header = codec::decode_unit_header(word);
  REQUIRE(header.exceptions >= 2);
  std::memcpy(&first, unit.data() + codec::exceptions_offset(header), 4);
  for (std::uint32_t i = 0; i < header.exceptions; ++i) {
    std::uint32_t entry;
    std::memcpy(&entry, unit.data() + codec::exceptions_offset(header) + 4 * i, 4);
    CHECK(unpacker.matrix().sign_mantissa[entry >> 16] == 0);
    const std::uint32_t place = codec::row_of(entry >> 16) * 256 + codec::col_of(entry >> 16);
    CHECK(weights[place].bits == (entry & 0xFFFF));
  }
  for (const codec::CodedPair& p : unpacker.code().pairs()) {
    CHECK(p.first < 255);
    CHECK(p.second < 255);
  }
}

TEST_CASE("a source that changes between its two readings is refused", "[codec]") {
  const UnitGrid grid{64, 256};
  ThreadPool one(1);
  Progress silent;
  int calls = 0;
  const codec::RowSource source = [&](std::uint64_t, std::uint64_t rows, std::span<Bf16> out) {
    const std::uint16_t bits = ++calls <= 4 ? 0x3F80 : 0x4000;
    std::fill_n(out.begin(), rows * grid.cols, Bf16{bits});
  };
  CHECK_THROWS_AS(codec::pack(grid, source, {}, one, silent), Error);
}
