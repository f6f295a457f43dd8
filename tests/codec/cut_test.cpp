// Parts of packed matrices hold the weights of the whole one, in units that were only copied.
#include "codec/cut.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "codec/matrices.h"

namespace glyd::codec {
namespace {

test::Weights part_of(const UnitGrid& grid, const test::Weights& weights, const std::vector<Range>& rows, Range cols) {
  test::Weights part;
  for (const Range& range : rows)
    for (std::uint64_t r = range.begin; r < range.end; ++r)
      for (std::uint64_t c = cols.begin; c < cols.end; ++c) part.push_back(weights[r * grid.cols + c]);
  return part;
}

TEST_CASE("units are cut out of a packed matrix", "[codec]") {
  struct Cut {
    std::vector<Range> rows;
    Range cols;
  };
  const std::vector<Cut> cuts{
      {{{0, 75}}, {0, 600}},  // everything
      {{{0, 16}}, {0, 600}},
      {{{16, 64}}, {0, 600}},
      {{{64, 75}}, {0, 600}},                     // the short tile
      {{{0, 16}, {32, 48}, {48, 75}}, {0, 600}},  // several, as of q, k and v
      {{{48, 64}, {0, 16}}, {0, 600}},            // in any order
      {{{0, 75}}, {0, 256}},
      {{{0, 75}}, {256, 512}},
      {{{0, 75}}, {512, 600}},  // the narrow block
      {{{16, 32}, {64, 75}}, {256, 600}},
  };
  const UnitGrid grid{75, 600};
  const std::vector<test::Weights> matrices{test::gaussian(75 * 600, 0.02f, 1), test::heavy_tails(75 * 600, 0.1f, 2),
                                            test::constant(75 * 600, 0x3f80), test::random_bits(75 * 600, 3)};
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const std::vector<std::byte> packed = test::pack_always(grid, matrices[m]);
    const Unpacker whole(packed, "whole");
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      INFO("matrix " << m << ", cut " << i);
      const auto part = cut_units(whole, cuts[i].rows, cuts[i].cols);
      REQUIRE(part);
      const test::Weights want = part_of(grid, matrices[m], cuts[i].rows, cuts[i].cols);
      CHECK(test::reference_unpack(*part) == want);
      ThreadPool pool(1);
      test::Weights got(want.size());
      Unpacker(*part, "part").unpack(got, pool);
      CHECK(got == want);
      if (i == 0) CHECK(*part == packed);
    }
  }
}

TEST_CASE("a cut through units, or of nothing, is left to others", "[codec]") {
  const UnitGrid grid{75, 600};
  const std::vector<std::byte> packed = test::pack_always(grid, test::gaussian(75 * 600, 0.02f, 1));
  const Unpacker whole(packed, "whole");
  const Range all{0, 600};
  const auto cut = [&](std::vector<Range> rows, Range cols) { return cut_units(whole, rows, cols); };
  CHECK_FALSE(cut({}, all));
  CHECK_FALSE(cut({{16, 16}}, all));
  CHECK_FALSE(cut({{8, 32}}, all));
  CHECK_FALSE(cut({{0, 24}}, all));
  CHECK_FALSE(cut({{64, 75}, {0, 16}}, all));  // rows would follow on a short tile
  CHECK_FALSE(cut({{64, 80}}, all));
  CHECK_FALSE(cut({{0, 75}}, {0, 128}));
  CHECK_FALSE(cut({{0, 75}}, {128, 600}));
  CHECK_FALSE(cut({{0, 75}}, {256, 256}));
  CHECK_FALSE(cut({{0, 75}}, {512, 768}));
}

TEST_CASE("a damaged tile is refused where it is cut", "[codec]") {
  const UnitGrid grid{32, 512};
  std::vector<std::byte> packed = test::pack_always(grid, test::gaussian(32 * 512, 0.02f, 1));
  const std::size_t streams = static_cast<std::size_t>(Unpacker(packed, "m").matrix().streams -
                                                       reinterpret_cast<const std::uint8_t*>(packed.data()));
  packed[streams] ^= std::byte{0xFF};  // words of the first unit
  packed[streams + 1] ^= std::byte{0x03};
  const Unpacker damaged(packed, "the matrix");
  const std::vector<Range> first{{0, 16}}, second{{16, 32}};
  CHECK_THROWS_WITH(cut_units(damaged, first, {0, 256}), Catch::Contains("the matrix"));
  CHECK(cut_units(damaged, second, {0, 256}));
}

}  // namespace
}  // namespace glyd::codec
