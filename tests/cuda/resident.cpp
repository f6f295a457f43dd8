#include "cuda/resident.h"

#include <algorithm>
#include <random>

#include "base/thread_pool.h"
#include "cuda/packing/packing.h"
#include "cuda/products/products.h"

namespace glyd::test {

using codec::UnitGrid;

std::uint64_t fresh_seed() { return Catch::rngSeed() != 0 ? Catch::rngSeed() : std::random_device{}(); }

Weights heavy_tails(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::student_t_distribution<float> tails(1.5f);
  Weights out(count);
  for (Bf16& x : out) x = to_bf16(0.02f * tails(random));
  for (std::uint64_t i = 0; i < count; i += 1 + random() % 600)
    out[i].bits = random() % 2 ? 0x7F80 : static_cast<std::uint16_t>(random() % 2 << 15);
  return out;
}

Weights even_exponents(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights out(count);
  for (Bf16& x : out)
    x.bits = static_cast<std::uint16_t>((random() % 2 << 15) | ((100 + random() % 22) << 7) | random() % 128);
  for (std::uint64_t i = 0; i < count; i += 1 + random() % 300) out[i].bits = 0x7F80;
  return out;
}

std::optional<Bytes> pack_on_cpu(const UnitGrid& grid, const Weights& weights, const codec::PackOptions& options) {
  ThreadPool threads(std::min(available_threads(), 16));
  const auto packed = codec::pack(grid, weights, options, threads);
  if (!packed) return std::nullopt;
  const auto* begin = reinterpret_cast<const std::uint8_t*>(packed->data());
  return Bytes(begin, begin + packed->size());
}

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

namespace {

// [rows][stride] and 8 more: the weights, `behind` in the columns behind them, and nothing behind all.
void check_rows(const std::vector<std::uint16_t>& host, const UnitGrid& grid, const Weights& weights,
                std::int64_t first, std::int64_t rows, std::int64_t stride, std::uint16_t behind) {
  std::size_t wrong = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < stride; ++col) {
      const bool real = col < static_cast<std::int64_t>(grid.cols);
      const std::uint16_t expected =
          real ? weights[static_cast<std::size_t>(first + row) * grid.cols + static_cast<std::size_t>(col)].bits
               : behind;
      wrong += host[static_cast<std::size_t>(row * stride + col)] != expected;
    }
  }
  CHECK(wrong == 0);
  for (std::size_t i = host.size() - 8; i < host.size(); ++i) REQUIRE(host[i] == 0xCDCD);
}

}  // namespace

void check_unpacked(const Resident& r, const UnitGrid& grid, const Weights& weights, std::int64_t first,
                    std::int64_t rows, std::int64_t stride) {
  INFO("rows " << first << " + " << rows << ", stride " << stride);
  {
    DeviceBuffer<std::uint16_t> out(static_cast<std::size_t>(rows * stride + 8));
    CUDA_REQUIRE(cuda::unpack(r.matrix, first, rows, out.data(), stride, nullptr));
    CUDA_REQUIRE(cudaDeviceSynchronize());
    check_rows(out.to_host(), grid, weights, first, rows, stride, 0);
  }
  cudaDeviceProp properties{};
  CUDA_REQUIRE(cudaGetDeviceProperties(&properties, 0));
  const auto shared = static_cast<int>(properties.sharedMemPerBlockOptin);
  if (properties.major != 9 || grid.cols % 32 != 0 || rows == 0 ||
      r.matrix.max_block_bytes > cuda::largest_block_bytes(cuda::KernelSet::Hopper, shared))
    return;
  INFO("by the product kernels' way");
  DeviceBuffer<std::uint16_t> out(static_cast<std::size_t>(rows * stride + 8));
  const cuda::Partition partition = cuda::make_partition(rows, r.matrix.cols, properties.multiProcessorCount);
  CUDA_REQUIRE(cuda::unpack_rows(r.matrix.part(first, rows), partition, out.data(), stride, nullptr));
  CUDA_REQUIRE(cudaDeviceSynchronize());
  check_rows(out.to_host(), grid, weights, first, rows, stride, 0xCDCD);
}

}  // namespace glyd::test
