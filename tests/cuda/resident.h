#pragma once
// Matrices for the tests of packing: weights of several kinds, packed on the CPU and on the GPU.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/bf16.h"
#include "codec/matrices.h"
#include "codec/pack.h"
#include "cuda/device.h"
#include "cuda/packing/resident.h"
#include "runner/cuda/packer.h"

namespace glyd::test {

using Bytes = std::vector<std::uint8_t>;

inline constexpr codec::PackOptions kPackAny{codec::kCodeBits, -1e9};

std::uint64_t fresh_seed();  // --rng-seed, or another in every run

// Student's t with 1.5 degrees of freedom, with some infinities and zeros.
Weights heavy_tails(std::uint64_t count, std::uint64_t seed);
// 22 exponents, each as often as the others: code words are long, and many groups are leaps (cuda/packing/resident.h).
Weights even_exponents(std::uint64_t count, std::uint64_t seed);

// The file's bytes; nothing where the options leave the matrix plain.
std::optional<Bytes> pack_on_cpu(const codec::UnitGrid& grid, const Weights& weights,
                                 const codec::PackOptions& options);

// Weights with rows `stride` apart, what is between them left as DeviceBuffer made it.
class PlainOnDevice {
 public:
  PlainOnDevice(const codec::UnitGrid& grid, const Weights& weights)
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

// Of a packer that was prepared.
Resident finish(runner::Packer& packer, const runner::ResidentBytes& bytes);
std::optional<Resident> pack_on_gpu(const codec::UnitGrid& grid, PlainOnDevice& weights,
                                    const codec::PackOptions& options);
std::optional<Resident> gather_on_gpu(const codec::UnitGrid& grid, const Bytes& file);

// What unpack() gives for some rows, and unpack_rows() where it is there, all of [rows][stride] checked.
void check_unpacked(const Resident& r, const codec::UnitGrid& grid, const Weights& weights, std::int64_t first,
                    std::int64_t rows, std::int64_t stride);

template <class T>
T number_at(const std::uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

}  // namespace glyd::test
