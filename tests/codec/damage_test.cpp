// Damaged packed matrices: each is refused as a bad model or decodes to some weights; none crashes or reads outside.

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>

#include "codec/matrices.h"
#include "codec/pack.h"
#include "codec/unpack.h"
#include "support/errors.h"

using namespace glyd;
using codec::UnitGrid;
using Packed = std::vector<std::byte>;

namespace {

constexpr UnitGrid kGrid{40, 600};

const Packed& good() {
  static const Packed packed = [] {
    test::Weights weights = test::heavy_tails(kGrid.rows * kGrid.cols, 0.02f, 1);
    for (const std::size_t i : {3, 100, 250, 1300}) weights[i].bits = 0x7F80;  // exceptions in any code
    return test::pack_always(kGrid, weights);
  }();
  return packed;
}

// Empty when everything decodes, else the message. The copy is exact in size, so that a sanitizer sees reads behind it.
std::string problem_with(const Packed& packed) {
  const std::unique_ptr<std::byte[]> copy(new std::byte[packed.size()]);
  std::copy(packed.begin(), packed.end(), copy.get());
  const std::string said = test::error_of(Code::Model, [&] {
    const codec::Unpacker unpacker({copy.get(), packed.size()}, "tensor 'x'");
    const UnitGrid& grid = unpacker.grid();
    REQUIRE(grid.rows <= packed.size());
    for (std::uint64_t tile = 0; tile < grid.row_tiles(); ++tile) {
      test::Weights rows(grid.tile_rows(tile) * grid.cols);
      unpacker.unpack_tile(tile, rows);
    }
    unpacker.stats();
  });
  CHECK((said.empty() || said.starts_with("tensor 'x': ")));
  return said;
}

std::uint32_t get32(const Packed& p, std::size_t at) {
  std::uint32_t x;
  std::memcpy(&x, &p.at(at), 4);
  return x;
}
void set(Packed& p, std::size_t at, std::uint64_t value, std::size_t bytes) {
  REQUIRE(at + bytes <= p.size());
  std::memcpy(&p[at], &value, bytes);
}

// Where the first unit's stream part begins.
std::size_t first_unit(const Packed& p) { return codec::section_offsets(kGrid, get32(p, 12), 0).streams; }

std::string after(const std::function<void(Packed&)>& damage) {
  Packed packed = good();
  damage(packed);
  return problem_with(packed);
}

}  // namespace

TEST_CASE("the undamaged matrix decodes", "[codec]") { CHECK(problem_with(good()).empty()); }

TEST_CASE("damaged headers are refused", "[codec]") {
  const auto refused = [](std::size_t at, std::uint64_t value, std::size_t bytes) {
    return !after([&](Packed& p) { set(p, at, value, bytes); }).empty();
  };
  CHECK(refused(0, 'X', 1));
  CHECK(refused(8, 2, 4));
  CHECK(refused(12, 0, 4));
  CHECK(refused(12, 0xFFFFFFFF, 4));
  for (const std::uint64_t n : {0ull, 1ull, 32ull, 49ull, 1ull << 32, 1ull << 60, ~0ull, ~0ull - 14, ~0ull - 30}) {
    CHECK(refused(16, n, 8));
    CHECK(refused(24, n, 8));
    CHECK(refused(32, n, 8));
  }
  CHECK(refused(40, 1, 8));
  CHECK(refused(56, 1, 8));
  CHECK_THAT(after([](Packed& p) { set(p, 8, 7, 4); }), Catch::Contains("version 7"));
  CHECK_THAT(after([](Packed& p) { p.resize(63); }), Catch::Contains("63 bytes"));
  CHECK(!problem_with({}).empty());
}

TEST_CASE("a matrix cut short or with more behind it is refused", "[codec]") {
  for (std::size_t n = 0; n < good().size(); n += 1 + n / 50) {
    CHECK_FALSE(problem_with(Packed(good().begin(), good().begin() + static_cast<std::ptrdiff_t>(n))).empty());
  }
  CHECK_FALSE(after([](Packed& p) { p.push_back({}); }).empty());
}

TEST_CASE("damaged units are refused, and the message says where", "[codec]") {
  const std::size_t unit = first_unit(good());
  const std::uint32_t word = get32(good(), unit);
  const codec::UnitHeader header = codec::decode_unit_header(word);
  REQUIRE(header.exceptions > 2);
  const auto with_header = [&](const std::function<void(codec::UnitHeader&)>& change) {
    return after([&](Packed& p) {
      codec::UnitHeader h = header;
      change(h);
      set(p, unit, codec::encode_unit_header(h), 4);
    });
  };
  CHECK_FALSE(with_header([](auto& h) { h.words += 1; }).empty());
  CHECK_FALSE(with_header([](auto& h) { h.words = 1023; }).empty());
  CHECK_FALSE(with_header([](auto& h) { h.words = 0; }).empty());
  CHECK_FALSE(with_header([](auto& h) { h.exceptions = 8191; }).empty());
  CHECK_FALSE(with_header([](auto& h) { h.exceptions -= 1; }).empty());
  CHECK_FALSE(with_header([](auto& h) { h.wide = !h.wide; }).empty());
  // The same size, one exception less and one word more.
  CHECK_FALSE(with_header([](auto& h) { h.exceptions -= 1, h.words += 1; }).empty());
  CHECK_THAT(with_header([](auto& h) { h.group_mask ^= 1; }), Catch::Contains("row tile 0, column block 0"));

  // A lane that starts one bit off, at the first place, in the middle and at the last.
  for (const std::size_t lane : {0, 13, 31}) {
    const std::string message = after([&](Packed& p) { p.at(unit + 4 + lane) ^= std::byte{1}; });
    CHECK_THAT(message, Catch::Contains("row tile 0, column block 0"));
  }

  const std::size_t list = unit + codec::exceptions_offset(header);
  const std::uint32_t first = get32(good(), list), second = get32(good(), list + 4);
  const auto with_list = [&](std::uint32_t a, std::uint32_t b) {
    return after([&](Packed& p) { set(p, list, a, 4), set(p, list + 4, b, 4); });
  };
  CHECK(with_list(first, second).empty());
  CHECK(with_list(first ^ 0x1234, second).empty());  // another value at the same place is for checksums to find
  CHECK_THAT(with_list(second, first), Catch::Contains("out of order"));
  CHECK_THAT(with_list(first, first), Catch::Contains("out of order"));
  CHECK_THAT(with_list(first, second | 0x10000000), Catch::Contains("outside the matrix"));
  // A place between the two, where the stream has a weight.
  REQUIRE((second >> 16) - (first >> 16) > 1);
  CHECK_THAT(with_list(first, first + 0x10000), Catch::Contains("stream has a weight"));

  const std::size_t tile_sizes = codec::section_offsets(kGrid, get32(good(), 12), 0).tile_sizes;
  CHECK_FALSE(after([&](Packed& p) { set(p, tile_sizes, 0xFFFFFFFF, 4); }).empty());
  CHECK_FALSE(after([&](Packed& p) {  // the sum is right, the parts are not
                set(p, tile_sizes, get32(p, tile_sizes) + 1, 4);
                set(p, tile_sizes + 4, get32(p, tile_sizes + 4) - 1, 4);
              })
                  .empty());
}

TEST_CASE("an exception in the padding of an edge is refused", "[codec]") {
  const UnitGrid grid{3, 40};
  test::Weights weights = test::gaussian(120, 0.02f, 3);
  weights[0].bits = 0x7F80;
  Packed packed = test::pack_always(grid, weights);
  const std::size_t unit = codec::section_offsets(grid, get32(packed, 12), 0).streams;
  const std::size_t list = unit + codec::exceptions_offset(codec::decode_unit_header(get32(packed, unit)));
  REQUIRE(get32(packed, list) >> 16 == 0);
  for (const std::uint32_t position : {codec::position_of(3, 0), codec::position_of(0, 40)}) {
    set(packed, list, codec::exception_entry(position, 0x7F80), 4);
    CHECK_THAT(problem_with(packed), Catch::Contains("outside the matrix"));
  }
}

TEST_CASE("2,000 random corruptions are refused or decode to something", "[codec]") {
  const std::uint64_t seed = Catch::rngSeed() != 0 ? Catch::rngSeed() : std::random_device{}();
  INFO("--rng-seed " << seed);
  std::mt19937_64 random(seed);
  const std::size_t streams = first_unit(good());
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    INFO("round " << round);
    Packed packed = good();
    // Three of four in the header, code, sizes and streams; the sign+mantissa bytes are most of the file, and any value
    // is good there.
    const auto place = [&] {
      if (random() % 4 == 0) return random() % packed.size();
      return random() % 2 == 0 ? streams + random() % (packed.size() - streams) : random() % 600;
    };
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = place();
      switch (random() % 4) {
        case 0:
          packed[at] ^= static_cast<std::byte>(1u << random() % 8);
          break;
        case 1:
          packed[at] = static_cast<std::byte>(random());
          break;
        case 2:
          for (std::size_t i = at; i < std::min(packed.size(), at + 8); ++i)
            packed[i] = static_cast<std::byte>(random() % 2 ? 255 : 0);
          break;
        default:
          std::swap_ranges(packed.begin() + static_cast<std::ptrdiff_t>(at),
                           packed.begin() + static_cast<std::ptrdiff_t>(at + (packed.size() - at) / 2),
                           packed.begin() + static_cast<std::ptrdiff_t>(at + (packed.size() - at) / 2));
      }
    }
    refused += !problem_with(packed).empty();
  }
  CHECK(refused > 1000);  // structure is most of what was hit
}
