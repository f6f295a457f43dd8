// Parts of packed matrices read from a file: they hold the weights of the whole one, in units that were only copied;
// from many threads, in any pieces; damage is named.
#include "codec/packed_part.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "base/error.h"
#include "codec/matrices.h"
#include "codec/unpack.h"
#include "support/errors.h"
#include "support/fixtures.h"

namespace glyd::codec {
namespace {

using Catch::Matchers::Contains;

// A packed matrix in a file of its own, behind some other tensor.
class Stored {
 public:
  explicit Stored(const std::vector<std::byte>& packed) {
    const std::string bytes(reinterpret_cast<const char*>(packed.data()), packed.size());
    test::write_file(path(),
                     test::safetensors_bytes({{"before", "U8", {3}, "abc"}, {"m.glyd", "U8", {bytes.size()}, bytes}}));
    file_ = std::make_unique<io::Safetensors>(io::Safetensors::open(path()));
    tensor_ = std::make_unique<PackedTensor>(*file_, *file_->find("m.glyd"));
  }
  std::filesystem::path path() const { return dir_.path() / "model.safetensors"; }
  const PackedTensor& tensor() const { return *tensor_; }
  std::optional<PackedPart> part(const std::vector<Range>& rows, Range cols) const {
    return PackedPart::of(*tensor_, rows, cols);
  }

 private:
  test::TempDir dir_;
  std::unique_ptr<io::Safetensors> file_;
  std::unique_ptr<PackedTensor> tensor_;
};

std::string refusal(const std::function<void()>& body) {
  const std::string said = test::error_of(Code::Model, body);
  if (!said.empty()) CHECK_THAT(said, Contains("model.safetensors") && Contains("'m.glyd'"));
  return said;
}

std::vector<std::byte> packed_matrix(const UnitGrid& grid, std::uint64_t seed) {
  return test::pack_always(grid, test::heavy_tails(grid.rows * grid.cols, 0.02f, seed));
}

// Any rows and columns, most of them on the borders of units.
std::pair<std::vector<Range>, Range> random_cut(const UnitGrid& grid, std::mt19937& random) {
  const auto range = [&](std::uint64_t n, std::uint64_t block) {
    const std::uint64_t blocks = (n + block - 1) / block, begin = random() % blocks;
    const std::uint64_t end = begin + 1 + random() % (blocks - begin);
    Range r{begin * block, std::min(n, end * block)};
    if (random() % 16 == 0) r.begin = std::min(r.begin + 1 + random() % 7, r.end - 1);
    return r;
  };
  std::vector<Range> rows;
  for (std::uint64_t n = 1 + random() % 3; n > 0; --n) rows.push_back(range(grid.rows, kTileRows));
  return {rows, random() % 3 == 0 ? Range{0, grid.cols} : range(grid.cols, kBlockCols)};
}

struct Cut {
  std::vector<Range> rows;
  Range cols;
};

TEST_CASE("parts hold the weights of their rows and columns", "[codec][packed_part]") {
  const std::vector<Cut> cuts{
      {{{0, 75}}, {0, 600}},  // everything
      {{{0, 16}}, {0, 600}},
      {{{16, 64}}, {0, 600}},
      {{{16, 24}, {24, 48}}, {0, 600}},           // which is no cut inside a tile
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
    const Stored stored(packed);
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      INFO("matrix " << m << ", cut " << i);
      const auto part = stored.part(cuts[i].rows, cuts[i].cols);
      REQUIRE(part);
      const std::vector<std::byte> bytes = part->read();
      const test::Weights want = test::part_of(grid, matrices[m], cuts[i].rows, cuts[i].cols);
      CHECK((test::reference_unpack(bytes) == want));  // in brackets, as printing all of it takes minutes
      ThreadPool pool(1);
      test::Weights got(want.size());
      Unpacker(bytes, "part").unpack(got, pool);
      CHECK((got == want));
      if (i == 0) CHECK((bytes == packed));
    }
  }
}

TEST_CASE("parts have copies of the whole matrix's units", "[codec][packed_part]") {
  const auto [rows, cols] =
      GENERATE(table<std::uint64_t, std::uint64_t>({{1, 1}, {16, 256}, {75, 600}, {48, 2048}, {530, 1100}, {33, 40}}));
  const UnitGrid grid{rows, cols};
  const std::vector<std::byte> packed = packed_matrix(grid, rows);
  const Stored stored(packed);
  std::mt19937 random(static_cast<std::uint32_t>(rows));
  int parts = 0, left = 0;
  for (int i = 0; i < 200; ++i) {
    const auto [part_rows, part_cols] = random_cut(grid, random);
    INFO(rows << " x " << cols << ", cut " << i);
    const auto part = stored.part(part_rows, part_cols);
    REQUIRE(part.has_value() == test::is_of_units(grid, part_rows, part_cols));
    ++(part ? parts : left);
    if (!part) continue;
    const std::vector<std::byte> want = test::reference_cut(packed, part_rows, part_cols);
    CHECK(part->bytes() == want.size());
    CHECK(part->grid().cols == part_cols.size());
    CHECK(part->longest_word() == stored.tensor().longest_word());
    CHECK((part->read() == want));
    for (int j = 0; j < 10; ++j) {  // in pieces, as a loader takes them
      const std::uint64_t at = random() % (want.size() + 1), bytes = random() % (want.size() - at + 1);
      std::vector<std::byte> piece(bytes);
      part->read(at, piece);
      CHECK(std::equal(piece.begin(), piece.end(), want.begin() + static_cast<std::ptrdiff_t>(at)));
    }
    std::vector<std::byte> more(2);
    CHECK_THROWS_AS(part->read(part->bytes() - 1, more), Error);
    CHECK_THROWS_AS(part->read(~std::uint64_t{0}, more), Error);
  }
  CHECK(parts > 20);
  CHECK(left > 0);
}

TEST_CASE("the part that is everything is the file's bytes", "[codec][packed_part]") {
  const UnitGrid grid{75, 600};
  std::vector<std::byte> packed = packed_matrix(grid, 1);
  const SectionOffsets at = section_offsets(grid, Unpacker(packed, "m").matrix().code_bytes, 0);
  REQUIRE(at.tile_sizes + 4 * grid.row_tiles() < at.sign_mantissa);
  packed[at.sign_mantissa - 1] = std::byte{7};  // between two sections, where nothing is used
  const Stored stored(packed);
  const auto part = stored.part({{0, 75}}, {0, 600});
  REQUIRE(part);
  CHECK(part->bytes() == stored.tensor().bytes());
  CHECK(part->read() == packed);
  CHECK(part->what() == stored.tensor().what());
}

TEST_CASE("parts that cut a unit are nothing", "[codec][packed_part]") {
  const UnitGrid grid{75, 600};
  const Stored stored(packed_matrix(grid, 1));
  const Range all{0, 600};
  const std::vector<Cut> cuts{
      {{}, all},
      {{{16, 16}}, all},
      {{{8, 32}}, all},
      {{{0, 24}}, all},
      {{{64, 75}, {0, 16}}, all},  // rows would follow on a short tile
      {{{64, 80}}, all},
      {{{0, 75}}, {0, 128}},
      {{{0, 75}}, {128, 600}},
      {{{0, 75}}, {256, 256}},
      {{{0, 75}}, {512, 768}},
  };
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    INFO("cut " << i);
    CHECK_FALSE(test::is_of_units(grid, cuts[i].rows, cuts[i].cols));
    CHECK_FALSE(stored.part(cuts[i].rows, cuts[i].cols));
  }
}

TEST_CASE("columns of a packed tensor are those of the matrix", "[codec][packed_part]") {
  const UnitGrid grid{530, 1100};
  const test::Weights weights = test::heavy_tails(grid.rows * grid.cols, 0.02f, 3);
  const Stored stored(test::pack_always(grid, weights));
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const std::uint64_t first = random() % grid.rows, rows = random() % (grid.rows - first + 1);
    const std::uint64_t begin = random() % grid.cols;
    const Range cols{begin, begin + random() % (grid.cols - begin + 1)};
    INFO("rows [" << first << ", +" << rows << "), columns [" << cols.begin << ", " << cols.end << ")");
    test::Weights got(rows * cols.size());
    stored.tensor().read_columns(first, rows, cols, got);
    CHECK((got == test::part_of(grid, weights, {{first, first + rows}}, cols)));
  }
  test::Weights row(grid.cols);
  CHECK_THROWS_AS(stored.tensor().read_columns(0, 1, {1, grid.cols + 1}, row), Error);
  CHECK_THROWS_AS(stored.tensor().read_columns(0, 1, {1, grid.cols}, row), Error);
  CHECK_THROWS_AS(stored.tensor().read_columns(0, 1, {2, 1}, row), Error);
}

TEST_CASE("parts are read from many threads at once", "[codec][packed_part]") {
  const UnitGrid grid{200, 3000};
  const std::vector<std::byte> packed = packed_matrix(grid, 1);
  const Stored stored(packed);
  const std::vector<Range> rows{{0, 200}};
  const auto cols = [](std::size_t t) { return Range{t * 256, (t + 4) * 256}; };
  std::vector<std::thread> threads;
  std::vector<int> same(8);
  std::vector<std::vector<std::byte>> want;
  for (std::size_t t = 0; t < same.size(); ++t) want.push_back(test::reference_cut(packed, rows, cols(t)));
  for (std::size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {  // the first one to come finds the units, for all
      const auto part = stored.part(rows, cols(t));
      std::vector<std::byte> got(part->bytes());
      for (std::size_t at = 0; at < got.size(); at += 10'000)
        part->read(at, std::span(got).subspan(at, std::min<std::size_t>(10'000, got.size() - at)));
      same[t] = got == want[t];
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(same == std::vector<int>(same.size(), 1));
}

TEST_CASE("sizes of units and tiles that lie are refused by name", "[codec][packed_part]") {
  const UnitGrid grid{48, 768};
  const std::vector<std::byte> good = packed_matrix(grid, 1);
  const Unpacker whole(good, "m");
  const auto* base = reinterpret_cast<const std::uint8_t*>(good.data());
  const auto place = [&](const std::uint8_t* p) { return static_cast<std::size_t>(p - base); };
  const auto columns = [&](const std::vector<std::byte>& packed) {
    return refusal([&] { Stored(packed).part({{0, 48}}, {256, 768}); });
  };
  REQUIRE(columns(good).empty());
  for (std::uint64_t tile = 0; tile < 3; ++tile) {
    for (const std::span<const std::uint8_t> unit : whole.tile_units(tile)) {
      std::vector<std::byte> packed = good;
      packed[place(unit.data())] ^= std::byte{1};  // a word more or less
      CHECK_THAT(columns(packed), Contains("row tile " + std::to_string(tile)));
      packed[place(unit.data()) + 2] = std::byte{0xFF};  // thousands of exceptions
      CHECK_THAT(columns(packed), Contains("row tile " + std::to_string(tile) + " ends inside a unit"));
    }
  }
  const auto sizes = [&](std::uint32_t first, std::uint32_t second) {  // of the first two tiles, changed by these
    std::vector<std::byte> packed = good;
    std::uint32_t words[2];
    const std::size_t at = place(whole.matrix().tile_sizes);
    std::memcpy(words, &packed[at], 8);
    words[0] += first;
    words[1] += second;
    std::memcpy(&packed[at], words, 8);
    return packed;
  };
  CHECK_THAT(columns(sizes(1, 0)), Contains("add up"));
  CHECK_THAT(columns(sizes(~0u, ~0u)), Contains("add up"));
  CHECK_THAT(columns(sizes(1, ~0u)), Contains("row tile 0 is longer than its units"));
  CHECK_THAT(columns(sizes(~0u, 1)), Contains("row tile 0 ends inside a unit"));
  // Where only rows are cut, the one who decodes the part finds it.
  CHECK_THAT(refusal([&] {
               const Stored stored(sizes(1, ~0u));
               const auto part = stored.part({{0, 16}}, {0, 768});
               const std::vector<std::byte> bytes = part->read();
               test::Weights tile(16 * 768);
               Unpacker(bytes, part->what()).unpack_tile(0, tile);
             }),
             Contains("row tile 0 is longer than its units"));
}

TEST_CASE("a file that is cut short after it was opened is an error that names it", "[codec][packed_part]") {
  const UnitGrid grid{320, 1024};
  const std::vector<std::byte> packed = packed_matrix(grid, 1);
  const Stored looked_at(packed), fresh(packed);
  const auto rows = looked_at.part({{160, 320}}, {0, 1024}), cols = looked_at.part({{0, 320}}, {512, 1024});
  for (const Stored* stored : {&looked_at, &fresh})
    std::filesystem::resize_file(stored->path(), std::filesystem::file_size(stored->path()) - 100);
  CHECK_THAT(refusal([&] { rows->read(); }), Contains("cut short"));
  CHECK_THAT(refusal([&] { cols->read(); }), Contains("cut short"));
  CHECK_THAT(refusal([&] { fresh.part({{0, 320}}, {512, 1024}); }), Contains("cut short"));
  CHECK(looked_at.part({{0, 160}}, {0, 1024})->read().size() > 0);  // what is there can be read
  CHECK_THAT(refusal([&] { Stored{std::vector<std::byte>(packed.begin(), packed.end() - 4)}; }),
             Contains("disagrees with its"));
}

TEST_CASE("2,000 random corruptions: parts are refused by name or read", "[codec][packed_part]") {
  const UnitGrid grid{40, 600};
  const std::vector<std::byte> good = packed_matrix(grid, 1);
  const SectionOffsets at = section_offsets(grid, Unpacker(good, "m").matrix().code_bytes, 0);
  std::mt19937_64 random(1);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    INFO("round " << round);
    std::vector<std::byte> packed = good;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {  // mostly in the header, the sizes and the streams
      const std::size_t place = random() % 2 == 0   ? at.streams + random() % (packed.size() - at.streams)
                                : random() % 2 == 0 ? random() % sizeof(PackedHeader)
                                                    : at.tile_sizes + random() % 16;
      packed[place] ^= static_cast<std::byte>(1 + random() % 255);
    }
    const std::string said = refusal([&] {
      const Stored stored(packed);
      const UnitGrid& found = stored.tensor().grid();
      REQUIRE((found.rows <= packed.size() && found.cols <= packed.size()));
      const Range rows{0, found.rows}, cols{0, std::min<std::uint64_t>(found.cols, kBlockCols)};
      const auto part = PackedPart::of(stored.tensor(), {&rows, 1}, cols);
      REQUIRE(part);
      REQUIRE(part->bytes() <= packed.size());
      const std::vector<std::byte> bytes = part->read();
      const Unpacker unpacker(bytes, part->what());
      for (std::uint64_t tile = 0; tile < part->grid().row_tiles(); ++tile) {
        test::Weights weights(part->grid().tile_rows(tile) * part->grid().cols);
        unpacker.unpack_tile(tile, weights);
      }
    });
    refused += !said.empty();
  }
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace glyd::codec
