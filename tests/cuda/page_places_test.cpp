// Pages of packed weights in places that no chip has, and in those of the device.

#include "cuda/packing/page_places.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "cuda/packing/packing.h"
#include "cuda/products/products.h"
#include "cuda/resident.h"
#include "runner/cuda/cache_sides.h"

using namespace glyd;

namespace {

// Any places: mask, parities, sides.
cuda::PagePlaces random_places(std::uint64_t address, std::mt19937_64& random) {
  cuda::PagePlaces places;
  places.mask = (1 << 13) | (static_cast<std::uint32_t>(random()) & 0x1F8000);
  places.first = static_cast<std::uint32_t>(address >> 26);
  for (std::uint32_t& word : places.odd) word = static_cast<std::uint32_t>(random());
  for (std::uint32_t& word : places.sides) word = static_cast<std::uint32_t>(random());
  return places;
}

cuda::ResidentMatrix shape(std::int64_t rows, std::int64_t cols) {
  cuda::ResidentMatrix m;
  m.rows = rows;
  m.cols = cols;
  return m;
}

int multiprocessors() {
  int count = 0;
  CUDA_REQUIRE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

// Weights, packed and plain, and what is multiplied with them.
struct Product {
  std::int64_t rows, cols;
  codec::UnitGrid grid{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)};
  test::Weights weights = test::gaussian(grid.rows * grid.cols, 0.02f, 5);
  test::PlainOnDevice plain{grid, weights};
  std::uint64_t scratch_bytes = runner::Packer::scratch_bytes(rows, cols);
  test::DeviceBuffer<std::uint8_t> scratch{scratch_bytes};
  runner::Packer packer{scratch.data(), scratch_bytes};
  cuda::Partition partition = cuda::make_partition(rows, cols, multiprocessors());
  std::uint64_t bytes = 0;

  void prepare() {
    const auto sizes = packer.prepare_from_bf16(plain.data(), rows, cols, plain.stride(), nullptr, test::kPackAny);
    REQUIRE(sizes);
    bytes = sizes->total;
  }
  template <class Matrix>
  std::vector<float> multiply(const Matrix& matrix, int tokens) const {
    return multiply(matrix, partition, tokens);
  }
  template <class Matrix>
  std::vector<float> multiply(const Matrix& matrix, const cuda::Partition& partition, int tokens) const {
    const int columns = cuda::activation_columns(tokens);
    std::vector<std::uint16_t> x(static_cast<std::size_t>((cols + 31) / 32 * 32 * columns));
    std::mt19937_64 random(9);
    for (std::uint16_t& v : x) v = static_cast<std::uint16_t>(0x3F00 + random() % 256 + (random() % 2 << 15));
    test::DeviceBuffer<std::uint16_t> device_x(x);
    test::DeviceBuffer<float> partials(
        static_cast<std::size_t>(cuda::max_splits(partition) * tokens * partition.stored_rows()));
    const auto layout = cuda::activation_layout(cuda::KernelSet::Hopper, tokens);
    CUDA_REQUIRE(cuda::multiply(cuda::KernelSet::Hopper, matrix, partition, {device_x.data(), layout, columns, 0},
                                tokens, partials.data(), nullptr));
    CUDA_REQUIRE(cudaDeviceSynchronize());
    // Of rows that only fill up the last group nothing is said; what no thread block writes holds what it held.
    const std::vector<float> all = partials.to_host();
    std::vector<float> sums;
    for (auto at = all.begin(); at != all.end(); at += partition.stored_rows())
      sums.insert(sums.end(), at, at + matrix.rows);
    return sums;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool has_hopper_kernels() {
  cudaDeviceProp properties{};
  CUDA_REQUIRE(cudaGetDeviceProperties(&properties, 0));
  return properties.major == 9;
}

}  // namespace

TEST_CASE("every slab of a matrix has a place of its own", "[cuda][packing]") {
  std::mt19937_64 random(test::fresh_seed());
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {64, 32}, {128, 256}, {192, 96}, {1000, 896}, {4000, 1700}, {20000, 2048}}) {
    INFO("rows " << rows << ", cols " << cols);
    cuda::ResidentMatrix m = shape(rows, cols);
    const std::uint64_t address = (std::uint64_t{0x7F} << 40) + random() % 100000 * (2 * cuda::kQuadBytes);
    for (const bool known : {false, true}) {
      m.places = known ? random_places(address, random) : cuda::PagePlaces{};
      m.places.first = static_cast<std::uint32_t>(address >> 26);
      std::vector<bool> taken(static_cast<std::size_t>(m.sign_mantissa_bytes() / cuda::kSlabBytes), false);
      bool apart = true;
      for (std::int64_t group = 0; group < m.row_groups(); ++group) {
        for (std::int64_t col = 0; col < m.col_groups(); ++col) {
          const std::uint64_t at =
              m.slab_offset(address, static_cast<std::uint64_t>(group), static_cast<std::uint64_t>(col)) /
              cuda::kSlabBytes;
          apart = apart && at < taken.size() && !taken[at];
          if (at < taken.size()) taken[at] = true;
        }
      }
      CHECK(apart);
    }
  }
}

TEST_CASE("of a pair of pages even and odd row groups have those of their sides", "[cuda][packing]") {
  std::mt19937_64 random(test::fresh_seed());
  cuda::ResidentMatrix m = shape(1280, 1024);
  const std::uint64_t address = (std::uint64_t{0x7F} << 40) + 5 * (2 * cuda::kQuadBytes);
  m.places = random_places(address, random);
  for (std::uint64_t group = 0; group < 20; ++group) {
    for (std::uint64_t col = 0; col < 32; ++col) {
      const std::uint64_t at = address + m.slab_offset(address, group, col);
      // The side of a page: the parity of its address, with bit 12, turned where the 2 MB are odd.
      const auto low = static_cast<std::uint32_t>(at);
      const int parity = __builtin_popcount(low & (m.places.mask | cuda::kPageBytes)) & 1;
      const std::uint32_t side = static_cast<std::uint32_t>(parity) ^ m.places.odd_at(at);
      REQUIRE(side == group % 2);
    }
  }
}

TEST_CASE("weights are the same in any places", "[cuda][gpu][packing][products]") {
  GLYD_NEEDS_GPU();
  std::mt19937_64 random(test::fresh_seed());
  // Few runs and many, columns that fill their blocks and ones that do not, odd numbers of row groups.
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {64, 256}, {1000, 896}, {1344, 1700}, {4096, 1024}, {2112, 2048}, {10240, 2560}}) {
    INFO("rows " << rows << ", cols " << cols);
    Product product{rows, cols};
    product.prepare();
    test::DeviceBuffer<std::uint8_t> memory(product.bytes);
    const cuda::PlainMatrix plain{product.plain.data(), rows, cols, product.plain.stride()};
    std::vector<std::vector<float>> expected;
    const bool multiplies = has_hopper_kernels();
    for (int round = 0; round < 3; ++round) {
      auto places = random_places(reinterpret_cast<std::uint64_t>(memory.data()) + 2 * cuda::kQuadBytes - 1, random);
      if (!runner::CacheSides::fits(shape(rows, cols))) {
        std::fill(std::begin(places.odd), std::end(places.odd), 0);
        places.mask = cuda::PagePlaces{}.mask;
      }
      test::Resident resident;
      resident.matrix = product.packer.finish_at(memory.data(), nullptr, places);
      CUDA_REQUIRE(cudaDeviceSynchronize());
      test::check_unpacked(resident, product.grid, product.weights, 0, rows, product.plain.stride());
      if (!multiplies) continue;
      std::size_t i = 0;
      for (const int tokens : {1, 9, 32, 33, 128, 1}) {
        INFO("tokens " << tokens);
        // Plain rows of a stride that is not a multiple of 32 are nothing the kernels take.
        const std::vector<float> sums = product.multiply(resident.matrix, tokens);
        if (round == 0) expected.push_back(cols % 32 == 0 ? product.multiply(plain, tokens) : sums);
        REQUIRE(same_bits(sums, expected[i++]));
      }
      // A part of the rows, from an odd row group on, as ranks have of the head.
      if (cols % 32 == 0 && rows > 4 * 64) {
        const std::int64_t first = 3 * 64;
        const cuda::ResidentMatrix part = resident.matrix.part(first, rows - first);
        const cuda::PlainMatrix plain_part{plain.data + first * plain.stride, part.rows, cols, plain.stride};
        const cuda::Partition own = cuda::make_partition(part.rows, cols, multiprocessors());
        REQUIRE(same_bits(product.multiply(part, own, 32), product.multiply(plain_part, own, 32)));
      }
      std::uint32_t claims = 1;
      CUDA_REQUIRE(cudaMemcpy(&claims, resident.matrix.claims, sizeof(claims), cudaMemcpyDeviceToHost));
      CHECK(claims == 0);
    }
  }
}

TEST_CASE("the sides of the device's cache", "[cuda][gpu][packing][products]") {
  GLYD_NEEDS_GPU();
  if (!has_hopper_kernels()) {
    WARN("skipped: no Hopper GPU");
    return;
  }
  const runner::CacheSides sides(multiprocessors(), nullptr);
  const runner::CacheSides again(multiprocessors(), nullptr);
  if (!sides.known() || !again.known()) {  // or other work on the chip hides them
    WARN("this chip's cache shows no sides");
    return;
  }
  CHECK(sides.processors(0) + sides.processors(1) == multiprocessors());
  Product product{16384, 2048};
  product.prepare();
  test::DeviceBuffer<std::uint8_t> memory(product.bytes);
  test::Resident resident;
  resident.matrix = product.packer.finish(memory.data(), nullptr, &sides);
  CUDA_REQUIRE(cudaDeviceSynchronize());
  test::check_unpacked(resident, product.grid, product.weights, 0, product.rows, product.plain.stride());
  const cuda::PlainMatrix plain{product.plain.data(), product.rows, product.cols, product.plain.stride()};
  for (const int tokens : {1, 32})
    REQUIRE(same_bits(product.multiply(resident.matrix, tokens), product.multiply(plain, tokens)));
  CHECK_FALSE(sides.places(shape(8192, 2048), nullptr));  // too small
  // The same chip gives the same places.
  const auto found = again.places(resident.matrix, nullptr);
  if (!found || resident.matrix.claims == nullptr) {
    WARN("other work on the chip hides the sides of its cache");
    return;
  }
  const cuda::PagePlaces& other = *found;
  CHECK(other.mask == resident.matrix.places.mask);
  const bool turned = other.odd_at(reinterpret_cast<std::uint64_t>(resident.matrix.sign_mantissa)) !=
                      resident.matrix.places.odd_at(reinterpret_cast<std::uint64_t>(resident.matrix.sign_mantissa));
  for (std::uint32_t i = 0; i < cuda::kMaxProcessors / 32; ++i) {
    const std::uint32_t all = ~0u >> (32 - std::clamp(multiprocessors() - 32 * static_cast<int>(i), 0, 32)) *
                                         (multiprocessors() > 32 * static_cast<int>(i) ? 1 : 0);
    if (multiprocessors() <= 32 * static_cast<int>(i)) continue;
    // Which side is called 0 depends on where the measured page came to lie.
    CHECK(other.sides[i] == (turned ? resident.matrix.places.sides[i] ^ all : resident.matrix.places.sides[i]));
  }
}
