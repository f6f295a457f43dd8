// Packing on the GPU against packing on the CPU: the same bytes from weights, the same weights from bytes, the same
// damage refused.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "codec/pack.h"
#include "codec/unpack.h"
#include "cuda/device.h"
#include "cuda/packing/gather_reference.h"
#include "cuda/packing/packing.h"
#include "runner/cuda/packer.h"

using namespace glyd;
using codec::UnitGrid;
using test::DeviceBuffer;

namespace {

using Weights = std::vector<Bf16>;
using Bytes = std::vector<std::uint8_t>;

constexpr codec::PackOptions kPackAny{codec::kCodeBits, -1e9};

std::uint64_t fresh_seed() { return Catch::rngSeed() != 0 ? Catch::rngSeed() : std::random_device{}(); }

Weights gaussian(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Weights out(count);
  for (Bf16& x : out) x = to_bf16(normal(random));
  return out;
}

// Student's t with 1.5 degrees of freedom, with some infinities and zeros.
Weights heavy_tails(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::student_t_distribution<float> tails(1.5f);
  Weights out(count);
  for (Bf16& x : out) x = to_bf16(0.02f * tails(random));
  for (std::uint64_t i = 0; i < count; i += 1 + random() % 600)
    out[i].bits = random() % 2 ? 0x7F80 : static_cast<std::uint16_t>(random() % 2 << 15);
  return out;
}

// 22 exponents, each as often as the others: code words are long, and many groups are leaps (cuda/packing/resident.h).
Weights even_exponents(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights out(count);
  for (Bf16& x : out)
    x.bits = static_cast<std::uint16_t>((random() % 2 << 15) | ((100 + random() % 22) << 7) | random() % 128);
  for (std::uint64_t i = 0; i < count; i += 1 + random() % 300) out[i].bits = 0x7F80;
  return out;
}

Weights random_bits(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights out(count);
  for (Bf16& x : out) x.bits = static_cast<std::uint16_t>(random());
  return out;
}

std::optional<Bytes> pack_on_cpu(const UnitGrid& grid, const Weights& weights, const codec::PackOptions& options) {
  ThreadPool threads(std::min(available_threads(), 16));
  const auto packed = codec::pack(grid, weights, options, threads);
  if (!packed) return std::nullopt;
  const auto* begin = reinterpret_cast<const std::uint8_t*>(packed->data());
  return Bytes(begin, begin + packed->size());
}

// Weights with rows `stride` apart, what is between them left as DeviceBuffer made it.
class PlainOnDevice {
 public:
  PlainOnDevice(const UnitGrid& grid, const Weights& weights)
      : stride_((static_cast<std::int64_t>(grid.cols) + 7) / 8 * 8),
        buffer_(grid.rows * static_cast<std::uint64_t>(stride_)) {
    CUDA_REQUIRE(cudaMemcpy2D(buffer_.data(), 2 * static_cast<std::size_t>(stride_), weights.data(), 2 * grid.cols,
                              2 * grid.cols, grid.rows, cudaMemcpyHostToDevice));
  }
  std::int64_t stride() const { return stride_; }
  const std::uint16_t* data() { return buffer_.data(); }

 private:
  std::int64_t stride_;
  DeviceBuffer<std::uint16_t> buffer_;
};

// A matrix in the resident layout, and a copy of all of its bytes on the host.
struct Resident {
  std::unique_ptr<DeviceBuffer<std::uint8_t>> memory;
  cuda::ResidentMatrix matrix;
  runner::ResidentBytes bytes;
  Bytes code;
  Bytes host;

  const std::uint8_t* on_host(const void* device) const {
    return host.data() + (static_cast<const std::uint8_t*>(device) - memory->data());
  }
  Bytes section(const void* device, std::uint64_t size) const {
    const std::uint8_t* p = on_host(device);
    return Bytes(p, p + size);
  }
  Bytes sign_mantissa() const { return section(matrix.sign_mantissa, bytes.sign_mantissa); }
  Bytes streams() const { return section(matrix.streams, bytes.streams); }
  Bytes offsets() const { return section(matrix.block_offsets, bytes.offsets); }
  Bytes table() const { return section(matrix.table, bytes.table); }
};

Resident finish(runner::Packer& packer, const runner::ResidentBytes& bytes) {
  Resident r;
  r.memory = std::make_unique<DeviceBuffer<std::uint8_t>>(bytes.total);
  r.bytes = bytes;
  r.matrix = packer.finish(r.memory->data(), nullptr);
  CUDA_REQUIRE(cudaDeviceSynchronize());
  r.code = packer.code_bytes();
  r.host = r.memory->to_host();
  return r;
}

std::optional<Resident> pack_on_gpu(const UnitGrid& grid, PlainOnDevice& weights, const codec::PackOptions& options) {
  const auto rows = static_cast<std::int64_t>(grid.rows), cols = static_cast<std::int64_t>(grid.cols);
  const std::uint64_t scratch_bytes = runner::Packer::scratch_bytes(rows, cols);
  DeviceBuffer<std::uint8_t> scratch(scratch_bytes);
  runner::Packer packer(scratch.data(), scratch_bytes);
  const auto bytes = packer.prepare_from_bf16(weights.data(), rows, cols, weights.stride(), nullptr, options);
  if (!bytes) return std::nullopt;
  return finish(packer, *bytes);
}

std::optional<Resident> gather_on_gpu(const UnitGrid& grid, const Bytes& file) {
  const std::uint64_t scratch_bytes =
      runner::Packer::scratch_bytes(static_cast<std::int64_t>(grid.rows), static_cast<std::int64_t>(grid.cols));
  DeviceBuffer<std::uint8_t> scratch(scratch_bytes), on_device(file);
  runner::Packer packer(scratch.data(), scratch_bytes);
  const auto bytes = packer.prepare_from_file_bytes(on_device.data(), file.size(), "tensor 'x'", nullptr);
  if (!bytes) return std::nullopt;
  return finish(packer, *bytes);
}

template <class T>
T number_at(const std::uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

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
          r.on_host(r.matrix.sign_mantissa) + ((tile / 4 * grid.groups() + group) * 4 + tile % 4) * codec::kGroupBytes;
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

// What unpack() gives for some rows, all of [rows][stride] checked.
void check_unpacked(const Resident& r, const UnitGrid& grid, const Weights& weights, std::int64_t first,
                    std::int64_t rows, std::int64_t stride) {
  INFO("rows " << first << " + " << rows << ", stride " << stride);
  DeviceBuffer<std::uint16_t> out(static_cast<std::size_t>(rows * stride + 8));
  CUDA_REQUIRE(cuda::unpack(r.matrix, first, rows, out.data(), stride, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  const std::vector<std::uint16_t> host = out.to_host();
  std::size_t wrong = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < stride; ++col) {
      const bool real = col < static_cast<std::int64_t>(grid.cols);
      const std::uint16_t expected =
          real ? weights[static_cast<std::size_t>(first + row) * grid.cols + static_cast<std::size_t>(col)].bits : 0;
      wrong += host[static_cast<std::size_t>(row * stride + col)] != expected;
    }
  }
  CHECK(wrong == 0);
  for (std::size_t i = host.size() - 8; i < host.size(); ++i) REQUIRE(host[i] == 0xCDCD);
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
  CHECK(file_bytes_of(*packed, grid) == *file);
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
      check_matrix({rows, cols}, gaussian(rows * cols, seed + rows));
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
    for (const auto make : {gaussian, heavy_tails, even_exponents, random_bits}) {
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
    if (packed) CHECK(file_bytes_of(*packed, grid) == *file);
    return packed.has_value();
  };
  CHECK_FALSE(agree({64, 512}, random_bits(64 * 512, seed), {}));
  CHECK_FALSE(agree({1, 40}, gaussian(40, seed), {}));
  CHECK(agree({64, 512}, gaussian(64 * 512, seed), {}));
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

namespace {

constexpr UnitGrid kDamagedGrid{40, 600};

const Bytes& good() {
  static const Bytes packed = [] {
    Weights weights = heavy_tails(kDamagedGrid.rows * kDamagedGrid.cols, 1);
    for (const std::size_t i : {3, 100, 250, 1300}) weights[i].bits = 0x7F80;  // exceptions in any code
    return *pack_on_cpu(kDamagedGrid, weights, kPackAny);
  }();
  return packed;
}

// The message, or empty and the weights.
std::string cpu_verdict(const Bytes& file, Weights& weights) {
  try {
    ThreadPool one(1);
    const codec::Unpacker unpacker(std::as_bytes(std::span(file)), "tensor 'x'");
    weights.resize(unpacker.grid().rows * unpacker.grid().cols);
    unpacker.unpack(weights, one);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// Compares with the CPU's. What decodes decodes to the same; returns the message.
std::string check_verdict(const Bytes& file) {
  Weights weights;
  const std::string expected = cpu_verdict(file, weights);
  std::optional<Resident> resident;
  try {
    // Room for any shape that a file of this size can claim.
    DeviceBuffer<std::uint8_t> scratch(2 << 20), on_device(file);
    runner::Packer packer(scratch.data(), 2 << 20);
    const auto bytes = packer.prepare_from_file_bytes(on_device.data(), file.size(), "tensor 'x'", nullptr);
    if (!bytes) return "long code";
    resident = finish(packer, *bytes);
  } catch (const Error& e) {
    CHECK(e.code() == Code::Model);
    CHECK_FALSE(expected.empty());
    return e.what();
  }
  CHECK(expected.empty());
  if (!expected.empty()) return "";
  const auto rows = static_cast<std::int64_t>(resident->matrix.rows), cols = resident->matrix.cols;
  check_unpacked(*resident, resident->matrix.grid(), weights, 0, rows, (cols + 7) / 8 * 8);
  return "";
}

std::uint32_t get32(const Bytes& p, std::size_t at) { return number_at<std::uint32_t>(&p.at(at)); }
void set32(Bytes& p, std::size_t at, std::uint32_t value) {
  REQUIRE(at + 4 <= p.size());
  std::memcpy(&p[at], &value, 4);
}

// Refused with the very words of the CPU.
void check_same_message(const std::function<void(Bytes&)>& damage) {
  Bytes file = good();
  damage(file);
  Weights weights;
  const std::string expected = cpu_verdict(file, weights);
  CHECK_FALSE(expected.empty());
  CHECK(check_verdict(file) == expected);
}

}  // namespace

TEST_CASE("damaged units are refused on the GPU, in the CPU's words", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  CHECK(check_verdict(good()).empty());
  const std::uint32_t code_bytes = get32(good(), 12);
  const auto at = codec::section_offsets(kDamagedGrid, code_bytes, 0);
  const codec::UnitHeader header = codec::decode_unit_header(get32(good(), at.streams));
  REQUIRE(header.exceptions > 2);
  const auto with_header = [&](const std::function<void(codec::UnitHeader&)>& change) {
    check_same_message([&](Bytes& p) {
      codec::UnitHeader h = header;
      change(h);
      set32(p, at.streams, codec::encode_unit_header(h));
    });
  };
  with_header([](auto& h) { h.words += 1; });
  with_header([](auto& h) { h.words = 1023; });
  with_header([](auto& h) { h.words = 0; });
  with_header([](auto& h) { h.exceptions = 8191; });
  with_header([](auto& h) { h.exceptions -= 1; });
  with_header([](auto& h) { h.wide = !h.wide; });
  with_header([](auto& h) { h.exceptions -= 1, h.words += 1; });
  with_header([](auto& h) { h.exceptions += 1, h.words -= 1; });
  with_header([](auto& h) { h.group_mask ^= 1; });
  for (const std::size_t lane : {0, 13, 31}) {
    check_same_message([&](Bytes& p) { p.at(at.streams + 4 + lane) ^= 1; });
    check_same_message([&](Bytes& p) { p.at(at.streams + 4 + lane) ^= 0x80; });
  }
  const std::size_t last_word = at.streams + codec::unit_bytes(header) - 4;
  check_same_message([&](Bytes& p) { set32(p, last_word, get32(p, last_word) ^ 1u << 31); });

  check_same_message([&](Bytes& p) {  // a word more than the streams fill, and all else as it should be then
    codec::UnitHeader h = header;
    ++h.words;
    set32(p, at.streams, codec::encode_unit_header(h));
    for (std::uint32_t lane = 0; lane < codec::kLanes; ++lane) {
      std::uint8_t& start = p.at(at.streams + 4 + lane);
      const std::uint32_t moved = h.words * lane + h.words / 2 - header.words * lane - header.words / 2;
      REQUIRE(start >= moved);
      start = static_cast<std::uint8_t>(start - moved);
    }
    const std::uint8_t word[4] = {};
    p.insert(p.begin() + static_cast<std::ptrdiff_t>(last_word + 4), word, word + 4);
    set32(p, 32, get32(p, 32) + 4);  // stream_bytes
    set32(p, at.tile_sizes, get32(p, at.tile_sizes) + 1);
  });

  const std::size_t list = at.streams + codec::exceptions_offset(header);
  const std::uint32_t first = get32(good(), list), second = get32(good(), list + 4);
  REQUIRE((second >> 16) - (first >> 16) > 1);
  const auto with_list = [&](std::uint32_t a, std::uint32_t b) {
    check_same_message([&](Bytes& p) { set32(p, list, a), set32(p, list + 4, b); });
  };
  with_list(second, first);
  with_list(first, first);
  with_list(first, second | 0x10000000);
  with_list(first, first + 0x10000);
  Bytes other_value = good();
  set32(other_value, list, first ^ 0x1234);
  CHECK(check_verdict(other_value).empty());  // for checksums to find

  check_same_message([&](Bytes& p) { set32(p, at.tile_sizes, 0xFFFFFFFF); });
  check_same_message([&](Bytes& p) {  // the sum is right, the parts are not
    set32(p, at.tile_sizes, get32(p, at.tile_sizes) + 1);
    set32(p, at.tile_sizes + 4, get32(p, at.tile_sizes + 4) - 1);
  });
  check_same_message([](Bytes& p) { p[0] = 'X'; });
  check_same_message([](Bytes& p) { p[8] = 2; });
  check_same_message([](Bytes& p) { p.resize(p.size() - 4); });
  check_same_message([](Bytes& p) { p.resize(60); });
  check_same_message([](Bytes& p) { p.push_back(0); });
  check_same_message([&](Bytes& p) { p.at(at.code + 2 * 5) ^= 1; });  // number of words of 5 bits
}

TEST_CASE("an exception in the padding of an edge is refused on the GPU", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const UnitGrid grid{3, 40};
  Weights weights = gaussian(120, 3);
  weights[0].bits = 0x7F80;
  Bytes packed = *pack_on_cpu(grid, weights, kPackAny);
  const std::size_t unit = codec::section_offsets(grid, get32(packed, 12), 0).streams;
  const std::size_t list = unit + codec::exceptions_offset(codec::decode_unit_header(get32(packed, unit)));
  for (const std::uint32_t position : {codec::position_of(3, 0), codec::position_of(0, 40)}) {
    set32(packed, list, codec::exception_entry(position, 0x7F80));
    CHECK_THAT(check_verdict(packed), Catch::Contains("an exception lies outside the matrix"));
  }
}

TEST_CASE("random corruptions are refused on the GPU when the CPU refuses them", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const std::uint64_t seed = fresh_seed();
  INFO("--rng-seed " << seed);
  std::mt19937_64 random(seed);
  const std::size_t streams = codec::section_offsets(kDamagedGrid, get32(good(), 12), 0).streams;
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    INFO("round " << round);
    Bytes packed = good();
    const auto place = [&] {
      if (random() % 4 == 0) return random() % packed.size();
      return random() % 4 != 0 ? streams + random() % (packed.size() - streams) : random() % 600;
    };
    for (std::uint64_t n = 1 + random() % 2; n > 0; --n) {
      const std::size_t at = place();
      switch (random() % 4) {
        case 0:
          packed[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
          break;
        case 1:
          packed[at] = static_cast<std::uint8_t>(random());
          break;
        case 2:
          for (std::size_t i = at; i < std::min(packed.size(), at + 8); ++i) packed[i] = random() % 2 ? 255 : 0;
          break;
        default: {
          const auto half = static_cast<std::ptrdiff_t>((packed.size() - at) / 2);
          const auto from = packed.begin() + static_cast<std::ptrdiff_t>(at);
          std::swap_ranges(from, from + half, from + half);
        }
      }
    }
    refused += !check_verdict(packed).empty();
  }
  CHECK(refused > 200);
}

TEST_CASE("random weights are a function of seed and index, and Gaussian", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const auto make_window = [](std::uint64_t seed, const cuda::Window& window, std::int64_t stride, float sigma) {
    const auto count = static_cast<std::size_t>(window.rows * stride);
    DeviceBuffer<std::uint16_t> out(count + 8);
    CUDA_REQUIRE(cuda::random_weights(seed, sigma, window, out.data(), stride, nullptr));
    CUDA_REQUIRE(cudaDeviceSynchronize());
    std::vector<std::uint16_t> host = out.to_host();
    for (std::size_t i = count; i < host.size(); ++i) REQUIRE(host[i] == 0xCDCD);
    host.resize(count);
    return host;
  };
  const auto make = [&](std::uint64_t seed, std::size_t count, float sigma) {  // one row
    const auto cols = static_cast<std::int64_t>(count);
    std::vector<std::uint16_t> row = make_window(seed, {0, 1, 0, cols, cols}, (cols + 7) / 8 * 8, sigma);
    for (std::size_t i = count; i < row.size(); ++i) REQUIRE(row[i] == 0);
    row.resize(count);
    return row;
  };
  constexpr std::size_t kCount = 1 << 20;
  const std::uint64_t seed = fresh_seed();
  INFO("--rng-seed " << seed);
  const std::vector<std::uint16_t> a = make(seed, kCount, 0.02f);
  CHECK(make(seed, kCount, 0.02f) == a);
  for (const std::size_t count : {1, 7, 8, 9, 2049}) {
    CHECK(make(seed, count, 0.02f) ==
          std::vector<std::uint16_t>(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count)));
  }
  // A part of a matrix is the same wherever it is made.
  for (const cuda::Window w : {cuda::Window{0, 5, 0, 99, 99}, {3, 4, 32, 64, 1000}, {7, 2, 1, 33, 77}}) {
    const std::int64_t stride = (w.cols + 31) / 32 * 32;
    const std::vector<std::uint16_t> part = make_window(seed, w, stride, 0.02f);
    for (std::int64_t r = 0; r < w.rows; ++r) {
      for (std::int64_t c = 0; c < stride; ++c) {
        const auto in_all = static_cast<std::size_t>((w.first_row + r) * w.all_cols + w.first_col + c);
        REQUIRE(part[static_cast<std::size_t>(r * stride + c)] == (c < w.cols ? a[in_all] : 0));
      }
    }
  }
  const std::vector<std::uint16_t> b = make(seed + 1, kCount, 0.02f);
  std::size_t equal = 0, above = 0;
  double sum = 0, squares = 0, fourth = 0, neighbours = 0, others = 0;
  double before = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = to_float(Bf16{a[i]}) / 0.02, y = to_float(Bf16{b[i]}) / 0.02;
    REQUIRE(std::isfinite(x));
    equal += a[i] == b[i];
    above += std::abs(x) > 2;
    sum += x, squares += x * x, fourth += x * x * x * x, neighbours += x * before, others += x * y;
    before = x;
  }
  const double n = kCount, five_sigma = 5 / std::sqrt(n);
  CHECK(equal < kCount / 50);
  CHECK(std::abs(sum / n) < five_sigma);
  CHECK(std::abs(squares / n - 1) < five_sigma * std::sqrt(2.0) + 1e-4);  // rounding to bf16 adds little
  CHECK(std::abs(fourth / n - 3) < five_sigma * std::sqrt(96.0) + 1e-3);
  CHECK(std::abs(static_cast<double>(above) / n - 0.0455) < 0.0015);
  CHECK(std::abs(neighbours / n) < five_sigma);
  CHECK(std::abs(others / n) < five_sigma);
}
