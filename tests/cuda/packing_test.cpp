// Packing on the GPU against packing on the CPU: the same bytes from weights, the same weights from bytes.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "codec/pack.h"
#include "codec/unpack.h"
#include "cuda/device.h"
#include "cuda/packing/gather_reference.h"
#include "cuda/packing/packing.h"
#include "cuda/resident.h"
#include "runner/cuda/packer.h"

using namespace glyd;
using namespace glyd::test;
using codec::UnitGrid;

namespace {

// The file's four sign+mantissa bytes of a woven word (cuda/packing/resident.h).
std::uint32_t unweave(std::uint32_t word) {
  const std::uint32_t turned = word >> 8 | word << 24;
  const auto two_bytes = [](std::uint32_t pair) {
    return (pair & 0x7F) | (pair >> 8 & 0x80) | (pair >> 8 & 0x7F00) | (pair >> 16 & 0x8000);
  };
  return two_bytes(word) | two_bytes(turned) << 16;
}

// The file's bytes of a resident matrix, and on the way all that the layout says of it.
Bytes file_bytes_of(const Resident& r, const UnitGrid& grid) {
  const std::uint64_t groups = (grid.rows + cuda::kGroupRows - 1) / cuda::kGroupRows;
  const std::uint8_t* const offsets = r.on_host(r.matrix.block_offsets);
  Bytes streams, tile_sizes;
  std::uint32_t largest = 0;
  std::map<std::uint64_t, std::uint32_t> block_ends;  // words that a block's units reach to
  const auto append = [&streams](std::uint32_t word) {
    const auto* p = reinterpret_cast<const std::uint8_t*>(&word);
    streams.insert(streams.end(), p, p + 4);
  };
  for (std::uint64_t tile = 0; tile < grid.row_tiles(); ++tile) {
    const std::size_t tile_begin = streams.size();
    for (std::uint64_t block = 0; block < grid.col_blocks(); ++block) {
      const std::uint64_t index = tile / 4 * grid.col_blocks() + block;
      const std::uint8_t* const start =
          r.on_host(r.matrix.streams) + 16 * std::uint64_t{number_at<std::uint32_t>(offsets + 4 * index)};
      const cuda::TileWord word = cuda::decode_tile_word(number_at<std::uint32_t>(start + 4 * (tile % 4)));
      const std::uint32_t before = tile % 4 == 0 ? 4 : block_ends[index];
      REQUIRE(word.place >= before);
      const std::uint32_t exceptions = word.place - before, starts_end = word.place + word.start_words();
      REQUIRE(word.exceptions == (exceptions > 0));
      codec::UnitHeader header{word.words, word.wide, 0, 0};
      std::vector<std::uint32_t> list;
      for (std::uint32_t i = 0; i < exceptions; ++i) {
        const auto entry = number_at<std::uint32_t>(start + 4 * (word.place - 1 - i));
        REQUIRE((entry >> 16 & 1) == (i + 1 == exceptions ? 1 : 0));
        REQUIRE((entry >> 19 & 1) == 0);
        const bool leap = (entry & cuda::kResidentLeap) != 0;
        if (i > 0) {
          const auto before = number_at<std::uint32_t>(start + 4 * (word.place - i));
          const bool goes_on = before >> 29 == entry >> 29, behind_leap = (before & cuda::kResidentLeap) != 0;
          REQUIRE((before >> 17 & 1) == (goes_on || behind_leap ? 1 : 0));
          if (goes_on && behind_leap) REQUIRE(leap);
        }
        if (leap) {
          REQUIRE((entry & 0x2FFFF) == 0x20000);
          continue;
        }
        REQUIRE((entry >> 16 & 3) != 3);
        ++header.exceptions;
        list.push_back(codec::exception_entry(entry >> 20, static_cast<std::uint16_t>(entry)));
        header.group_mask |= 1u << (entry >> 29);
      }
      block_ends[index] = word.end();
      append(codec::encode_unit_header(header));
      streams.insert(streams.end(), start + 4 * word.place, start + 4 * starts_end);
      for (const std::uint32_t entry : list) append(entry);
      streams.insert(streams.end(), start + 4 * starts_end, start + 4 * word.end());
    }
    const auto words = static_cast<std::uint32_t>((streams.size() - tile_begin) / 4);
    const auto* p = reinterpret_cast<const std::uint8_t*>(&words);
    tile_sizes.insert(tile_sizes.end(), p, p + 4);
  }
  for (std::uint64_t index = 0; index < groups * grid.col_blocks(); ++index) {
    const std::uint32_t begin = number_at<std::uint32_t>(offsets + 4 * index);
    const std::uint32_t end = number_at<std::uint32_t>(offsets + 4 * index + 4);
    const std::uint8_t* const start = r.on_host(r.matrix.streams) + 16 * std::uint64_t{begin};
    const std::uint64_t tiles = std::min<std::uint64_t>(4, grid.row_tiles() - index / grid.col_blocks() * 4);
    for (std::uint64_t i = tiles; i < 4; ++i)
      REQUIRE(number_at<std::uint32_t>(start + 4 * i) == number_at<std::uint32_t>(start));
    const std::uint32_t padding = (end - begin) * 16 - 4 * block_ends[index];
    const std::uint32_t behind = index + 1 == groups * grid.col_blocks() ? 16 : 0;
    REQUIRE(padding >= behind);
    REQUIRE(padding < behind + 16);
    for (std::uint32_t i = 0; i < padding; ++i) REQUIRE(start[4 * block_ends[index] + i] == 0);
    largest = std::max(largest, (end - begin) * 16);
  }
  REQUIRE(number_at<std::uint32_t>(offsets) == 0);
  REQUIRE(16 * std::uint64_t{number_at<std::uint32_t>(offsets + 4 * groups * grid.col_blocks())} == r.bytes.streams);
  REQUIRE(r.matrix.max_block_bytes == largest);

  const auto at = codec::section_offsets(grid, static_cast<std::uint32_t>(r.code.size()), streams.size());
  Bytes file(at.end);
  codec::PackedHeader header{};
  std::memcpy(header.magic, codec::kMagic, sizeof(header.magic));
  header.version = codec::kVersion;
  header.code_bytes = static_cast<std::uint32_t>(r.code.size());
  header.rows = grid.rows;
  header.cols = grid.cols;
  header.stream_bytes = streams.size();
  std::memcpy(file.data(), &header, sizeof(header));
  std::copy(r.code.begin(), r.code.end(), file.begin() + static_cast<std::ptrdiff_t>(at.code));
  std::copy(tile_sizes.begin(), tile_sizes.end(), file.begin() + static_cast<std::ptrdiff_t>(at.tile_sizes));
  std::copy(streams.begin(), streams.end(), file.begin() + static_cast<std::ptrdiff_t>(at.streams));
  for (std::uint64_t tile = 0; tile < groups * 4; ++tile) {
    for (std::uint64_t group = 0; group < grid.groups(); ++group) {
      const std::uint8_t* from =
          r.on_host(r.matrix.sign_mantissa) +
          r.matrix.slab_offset(reinterpret_cast<std::uint64_t>(r.matrix.sign_mantissa), tile / 4, group) +
          tile % 4 * codec::kGroupBytes;
      if (tile < grid.row_tiles()) {
        for (std::uint32_t i = 0; i < codec::kGroupBytes; i += 4) {
          const std::uint32_t bytes = unweave(number_at<std::uint32_t>(from + i));
          std::memcpy(&file[at.sign_mantissa + (tile * grid.groups() + group) * codec::kGroupBytes + i], &bytes, 4);
        }
      } else {
        for (std::uint32_t i = 0; i < codec::kGroupBytes; ++i) REQUIRE(from[i] == 0);
      }
    }
  }
  return file;
}

void check_embedded(const std::vector<std::uint16_t>& out, const std::vector<std::int32_t>& ids, std::uint64_t cols,
                    std::size_t stride, const Weights& weights) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t col = 0; col < stride; ++col) {
      const bool real = col < cols && ids[i] >= 0;
      const std::uint16_t expected = real ? weights[static_cast<std::size_t>(ids[i]) * cols + col].bits : 0;
      wrong += out[i * stride + col] != expected;
    }
  }
  CHECK(wrong == 0);
}

// Rows in any order, some twice, and padding.
std::vector<std::int32_t> some_ids(std::uint64_t rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> ids{-1};
  for (std::uint64_t i = 0; i < rows + 3; ++i) ids.push_back(static_cast<std::int32_t>(random() % rows));
  ids.push_back(-1);
  ids.push_back(static_cast<std::int32_t>(rows - 1));
  return ids;
}

void check_embedding(const Resident& r, PlainOnDevice& plain, const UnitGrid& grid, const Weights& weights,
                     std::size_t stride) {
  const std::vector<std::int32_t> ids = some_ids(grid.rows, stride);
  DeviceBuffer<std::int32_t> on_device(ids);
  const auto tokens = static_cast<int>(ids.size());
  DeviceBuffer<std::uint16_t> from_packed(ids.size() * stride), from_plain(ids.size() * stride);
  CUDA_REQUIRE(cuda::embed_packed(r.matrix, on_device.data(), tokens, from_packed.data(),
                                  static_cast<std::int64_t>(stride), nullptr));
  CUDA_REQUIRE(cuda::embed_plain(plain.data(), plain.stride(), on_device.data(), tokens, static_cast<int>(grid.cols),
                                 from_plain.data(), static_cast<std::int64_t>(stride), nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  check_embedded(from_packed.to_host(), ids, grid.cols, stride, weights);
  check_embedded(from_plain.to_host(), ids, grid.cols, stride, weights);
}

// Everything that can be asked of one matrix.
void check_matrix(const UnitGrid& grid, const Weights& weights) {
  INFO(grid.rows << " x " << grid.cols);
  PlainOnDevice plain(grid, weights);
  const std::optional<Bytes> file = pack_on_cpu(grid, weights, kPackAny);
  REQUIRE(file.has_value());
  const std::optional<Resident> packed = pack_on_gpu(grid, plain, kPackAny);
  REQUIRE(packed.has_value());
  CHECK((file_bytes_of(*packed, grid) == *file));
  const cuda::HostResident expected = cuda::gather_reference(std::as_bytes(std::span(*file)));
  CHECK(packed->streams() == Bytes(expected.streams.begin(), expected.streams.end()));

  const std::optional<Resident> gathered = gather_on_gpu(grid, *file);
  REQUIRE(gathered.has_value());
  CHECK(gathered->sign_mantissa() == packed->sign_mantissa());
  CHECK(gathered->streams() == packed->streams());
  CHECK(gathered->offsets() == packed->offsets());
  CHECK(gathered->table() == packed->table());
  CHECK(gathered->code == packed->code);
  CHECK(gathered->matrix.max_block_bytes == packed->matrix.max_block_bytes);

  const auto rows = static_cast<std::int64_t>(grid.rows), cols = static_cast<std::int64_t>(grid.cols);
  CHECK(packed->bytes.total <= runner::resident_bytes_upper_bound(rows, cols, file->size()));
  check_unpacked(*packed, grid, weights, 0, rows, plain.stride());
  check_unpacked(*packed, grid, weights, 0, (rows + 1) / 2, plain.stride() + 88);
  if (rows > 64) check_unpacked(*packed, grid, weights, 64, rows - 64, plain.stride() + 8);
  check_embedding(*packed, plain, grid, weights, static_cast<std::size_t>(plain.stride()));
  check_embedding(*packed, plain, grid, weights, static_cast<std::size_t>(plain.stride()) + 328);
}

}  // namespace

TEST_CASE("packing on the GPU gives the CPU's bytes, and its own weights back, at every edge", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const std::uint64_t seed = fresh_seed();
  INFO("--rng-seed " << seed);
  for (const std::uint64_t rows : {1, 15, 16, 17, 63, 64, 65, 100}) {
    for (const std::uint64_t cols : {1, 8, 31, 32, 33, 255, 256, 257, 1000}) {
      check_matrix({rows, cols}, gaussian(rows * cols, 0.02f, seed + rows));
      check_matrix({rows, cols}, even_exponents(rows * cols, seed + rows));
      check_matrix({rows, cols}, heavy_tails(rows * cols, seed + cols));
    }
  }
}

TEST_CASE("pairs of exponents are counted on the GPU as on the CPU", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const std::uint64_t seed = fresh_seed();
  INFO("--rng-seed " << seed);
  for (const UnitGrid grid : {UnitGrid{1, 1}, UnitGrid{37, 1025}, UnitGrid{300, 512}, UnitGrid{5, 7}}) {
    using Maker = Weights (*)(std::uint64_t, std::uint64_t);
    const Maker makers[] = {[](std::uint64_t count, std::uint64_t s) { return gaussian(count, 0.02f, s); }, heavy_tails,
                            even_exponents, random_bits};
    for (const auto make : makers) {
      const Weights weights = make(grid.rows * grid.cols, seed);
      codec::PairHistogram expected;
      for (std::uint64_t row = 0; row < grid.rows; ++row)
        expected.add_row(std::span(weights).subspan(row * grid.cols, grid.cols));
      PlainOnDevice plain(grid, weights);
      DeviceBuffer<std::uint64_t> counts(cuda::kPairCounts + cuda::kLoneCounts);
      const cuda::PlainSource source{plain.data(), static_cast<std::int64_t>(grid.rows),
                                     static_cast<std::int64_t>(grid.cols), plain.stride()};
      CUDA_REQUIRE(cuda::count_pairs(source, counts.data(), nullptr));
      const std::vector<std::uint64_t> host = counts.to_host();
      std::size_t wrong = 0;
      for (std::uint32_t i = 0; i < cuda::kPairCounts; ++i) wrong += host[i] != expected.count(i);
      for (std::uint32_t i = 0; i < cuda::kLoneCounts; ++i) wrong += host[cuda::kPairCounts + i] != expected.lone(i);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("every bit pattern survives packing on the GPU", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  Weights all(65536);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  check_matrix({256, 256}, all);
  std::shuffle(all.begin(), all.end(), std::mt19937_64(fresh_seed()));
  check_matrix({64, 1024}, all);
  for (const UnitGrid grid : {UnitGrid{1, 1}, UnitGrid{17, 33}, UnitGrid{65, 257}})
    check_matrix(grid, random_bits(grid.rows * grid.cols, fresh_seed()));
}

TEST_CASE("matrices of one value pack on the GPU", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  for (const int bits : {0x0000, 0x8000, 0x3F80, 0x0001, 0x7F80, 0xFFC1}) {
    for (const UnitGrid grid : {UnitGrid{1, 1}, UnitGrid{16, 256}, UnitGrid{65, 259}})
      check_matrix(grid, Weights(grid.rows * grid.cols, Bf16{static_cast<std::uint16_t>(bits)}));
  }
}

TEST_CASE("a matrix of 5120 x 5120 is packed, gathered and unpacked on the GPU", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const UnitGrid grid{5120, 5120};
  DeviceBuffer<std::uint16_t> made(grid.rows * grid.cols);
  CUDA_REQUIRE(cuda::random_weights(fresh_seed(), 0.02f, {0, 5120, 0, 5120, 5120}, made.data(), 5120, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  const std::vector<std::uint16_t> bits = made.to_host();
  Weights weights(bits.size());
  std::memcpy(static_cast<void*>(weights.data()), bits.data(), 2 * bits.size());
  check_matrix(grid, weights);

  PlainOnDevice plain(grid, weights);
  const std::optional<Resident> packed = pack_on_gpu(grid, plain, {});
  REQUIRE(packed.has_value());
  const auto estimate = static_cast<double>(runner::resident_bytes_estimate(5120, 5120));
  CHECK(static_cast<double>(packed->bytes.total) < estimate);
  CHECK(static_cast<double>(packed->bytes.total) > 0.98 * estimate);
}

TEST_CASE("the GPU leaves plain what the CPU leaves plain", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const std::uint64_t seed = fresh_seed();
  INFO("--rng-seed " << seed);
  const auto agree = [&](const UnitGrid& grid, const Weights& weights, const codec::PackOptions& options) {
    INFO(grid.rows << " x " << grid.cols << ", saving " << options.min_saving);
    PlainOnDevice plain(grid, weights);
    const std::optional<Bytes> file = pack_on_cpu(grid, weights, options);
    const std::optional<Resident> packed = pack_on_gpu(grid, plain, options);
    REQUIRE(packed.has_value() == file.has_value());
    if (packed) CHECK((file_bytes_of(*packed, grid) == *file));
    return packed.has_value();
  };
  CHECK_FALSE(agree({64, 512}, random_bits(64 * 512, seed), {}));
  CHECK_FALSE(agree({1, 40}, gaussian(40, 0.02f, seed), {}));
  CHECK(agree({64, 512}, gaussian(64 * 512, 0.02f, seed), {}));
  // Around the limit, where the choice hangs on single bytes.
  const UnitGrid grid{100, 700};
  const Weights weights = heavy_tails(grid.rows * grid.cols, seed);
  const auto bytes = static_cast<double>(pack_on_cpu(grid, weights, kPackAny)->size());
  const double saving = 1 - bytes / (2.0 * static_cast<double>(grid.rows * grid.cols));
  CHECK(agree(grid, weights, {codec::kCodeBits, saving - 1e-5}));
  CHECK_FALSE(agree(grid, weights, {codec::kCodeBits, saving + 1e-5}));
  CHECK(agree(grid, weights, {6, -1e9}));
}

TEST_CASE("a file's code with longer words than the kernels take is told apart", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const UnitGrid grid{64, 1024};
  const Weights weights = heavy_tails(grid.rows * grid.cols, 5);
  const std::optional<Bytes> file = pack_on_cpu(grid, weights, {codec::kMaxCodeBits, -1e9});
  REQUIRE(codec::Unpacker(std::as_bytes(std::span(*file)), "x").code().bits() > codec::kCodeBits);
  CHECK_FALSE(gather_on_gpu(grid, *file).has_value());
}
