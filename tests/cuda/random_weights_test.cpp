// Weights made on the GPU: what they depend on, and their distribution.

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "cuda/device.h"
#include "cuda/packing/packing.h"
#include "cuda/resident.h"

using namespace glyd;
using namespace glyd::test;

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
