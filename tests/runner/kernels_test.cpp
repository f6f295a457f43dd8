// The vector loops at every level the machine has: values against double, bits against each other.
#include "runner/cpu/kernels.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "runner/numbers.h"

namespace glyd::runner::cpu {
namespace {

using test::bits_equal;
using test::Numbers;

TEST_CASE("a baseline kernel is always there, and the best comes first", "[runner]") {
  REQUIRE_FALSE(supported_kernels().empty());
  CHECK(supported_kernels().back().level == SimdLevel::Baseline);
  for (std::size_t i = 1; i < supported_kernels().size(); ++i)
    CHECK(supported_kernels()[i - 1].level > supported_kernels()[i].level);
}

TEST_CASE("dot products agree with double", "[runner]") {
  Numbers numbers(1);
  for (const Kernels& kernels : supported_kernels()) {
    for (const std::size_t n : {16, 48, 128, 896, 4096}) {
      const std::size_t rows = 7, columns = 6;
      const std::vector<Bf16> w = numbers.bf16s(rows * n);
      const std::vector<float> x = numbers.floats(columns * n);
      std::vector<float> sums(columns * rows, NAN);
      kernels.products_bf16(w.data(), rows, n, x.data(), columns, n, n, sums.data(), rows);
      for (std::size_t c = 0; c < columns; ++c) {
        for (std::size_t r = 0; r < rows; ++r) {
          double exact = 0, size = 0;
          for (std::size_t i = 0; i < n; ++i) {
            const double term = static_cast<double>(to_float(w[r * n + i])) * static_cast<double>(x[c * n + i]);
            exact += term;
            size += std::abs(term);
          }
          INFO(kernels.name << " n " << n << " row " << r << " column " << c);
          // Each of n/16 + 4 additions and as many products rounds by at most 2^-24 of what was summed.
          const double bound = size * 0x1p-24 * (2.0 * static_cast<double>(n) / 16 + 8);
          CHECK(std::abs(static_cast<double>(sums[c * rows + r]) - exact) <= bound);
        }
      }
    }
  }
}

TEST_CASE("the order of a dot product's terms depends on its length alone", "[runner]") {
  // Terms of very different sizes, so that any other order gives other bits.
  Numbers numbers(2);
  for (const Kernels& kernels : supported_kernels()) {
    for (const std::size_t n : {16, 32, 176, 1024}) {
      const std::size_t rows = 16, columns = 9, stride = n + 16;
      const std::vector<Bf16> w = numbers.wild_bf16s(rows * stride);
      const std::vector<float> x = numbers.wild_floats(columns * stride);
      std::vector<float> wide(w.size());
      kernels.widen(w.data(), wide.data(), w.size());

      std::vector<float> alone(columns * rows);  // one row and one column at a time
      for (std::size_t c = 0; c < columns; ++c)
        for (std::size_t r = 0; r < rows; ++r)
          kernels.products_bf16(w.data() + r * stride, 1, stride, x.data() + c * stride, 1, stride, n,
                                &alone[c * rows + r], rows);

      for (std::size_t row_count = 1; row_count <= rows; ++row_count) {
        for (std::size_t column_count = 1; column_count <= columns; ++column_count) {
          std::vector<float> narrow_sums(alone), wide_sums(alone);
          kernels.products_bf16(w.data(), row_count, stride, x.data(), column_count, stride, n, narrow_sums.data(),
                                rows);
          kernels.products_float(wide.data(), row_count, stride, x.data(), column_count, stride, n, wide_sums.data(),
                                 rows);
          INFO(kernels.name << " n " << n << " rows " << row_count << " columns " << column_count);
          REQUIRE(bits_equal(narrow_sums, alone));
          REQUIRE(bits_equal(wide_sums, alone));
        }
      }
    }
  }
}

TEST_CASE("lanes are added as documented", "[runner]") {
  // Products that are exact, so that fused and separate multiply-add agree and the order alone decides the bits.
  Numbers numbers(3);
  const std::size_t n = 64;
  std::vector<float> row = numbers.wild_floats(n), column(n, 1.0f);
  float lanes[kLanes] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % kLanes] += row[i];
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  for (const Kernels& kernels : supported_kernels()) {
    float sum = 0;
    kernels.products_float(row.data(), 1, n, column.data(), 1, n, n, &sum, 1);
    INFO(kernels.name);
    CHECK(std::memcmp(&sum, lanes, sizeof sum) == 0);
  }
}

TEST_CASE("widening is exact for every bf16 pattern", "[runner]") {
  std::vector<Bf16> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  for (const Kernels& kernels : supported_kernels()) {
    std::vector<std::uint32_t> wide(all.size());
    kernels.widen(all.data(), reinterpret_cast<float*>(wide.data()), all.size());
    bool exact = true;
    for (std::size_t i = 0; i < all.size(); ++i) exact = exact && wide[i] == static_cast<std::uint32_t>(i) << 16;
    INFO(kernels.name);
    CHECK(exact);
  }
}

TEST_CASE("weighted sums of rows agree with double", "[runner]") {
  Numbers numbers(4);
  for (const Kernels& kernels : supported_kernels()) {
    for (const std::size_t count : {1, 2, 5, 16}) {
      const std::size_t n = 48, stride = 64;
      const std::vector<Bf16> rows = numbers.bf16s(count * stride);
      std::vector<float> wide(rows.size());
      kernels.widen(rows.data(), wide.data(), rows.size());
      const std::vector<float> weights = numbers.floats(count), start = numbers.floats(n + 1);
      std::vector<float> narrow_sums(start), wide_sums(start);
      kernels.weighted_sum_bf16(rows.data(), count, stride, weights.data(), 0.75f, narrow_sums.data(), n);
      kernels.weighted_sum_float(wide.data(), count, stride, weights.data(), 0.75f, wide_sums.data(), n);
      INFO(kernels.name << " rows " << count);
      CHECK(bits_equal(narrow_sums, wide_sums));
      CHECK(narrow_sums[n] == start[n]);
      for (std::size_t i = 0; i < n; ++i) {
        double exact = static_cast<double>(start[i]) * 0.75;
        for (std::size_t r = 0; r < count; ++r)
          exact += static_cast<double>(weights[r]) * static_cast<double>(wide[r * stride + i]);
        CHECK(static_cast<double>(narrow_sums[i]) == Approx(exact).margin(1e-5));
      }
    }
  }
}

}  // namespace
}  // namespace glyd::runner::cpu
