#pragma once
// Matrices for the tests of packed ones, and a second implementation of reading and cutting them: docs/format.md
// followed bit by bit, without tables or speed.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/range.h"
#include "codec/packed_matrix.h"

namespace glyd::test {

using Weights = std::vector<Bf16>;

// N(0, sigma^2) in bf16.
Weights gaussian(std::uint64_t count, float sigma, std::uint64_t seed);

// Every bit pattern equally likely.
Weights random_bits(std::uint64_t count, std::uint64_t seed);

// Student's t with 1.5 degrees of freedom: many weights far outside the usual exponents.
Weights heavy_tails(std::uint64_t count, float scale, std::uint64_t seed);

Weights constant(std::uint64_t count, std::uint16_t bits);

// Packs, whatever it saves.
std::vector<std::byte> pack_always(const codec::UnitGrid& grid, const Weights& weights, int threads = 1);

// The weights of a packed matrix by the second decoder; fails the test on anything that the format forbids.
Weights reference_unpack(std::span<const std::byte> packed);

// Rows [begin, end) for each range, one after another, and of them the columns `cols`: of a matrix, and of a packed one
// as a packed one with copies of its units, none of which may be cut.
Weights part_of(const codec::UnitGrid& grid, const Weights& weights, const std::vector<Range>& rows, Range cols);
std::vector<std::byte> reference_cut(std::span<const std::byte> packed, const std::vector<Range>& rows, Range cols);

// Whether these rows, one range after another and none of them empty, and columns are whole units of the matrix: 16
// rows x 256 columns each but for its last ones.
bool is_of_units(const codec::UnitGrid& grid, const std::vector<Range>& rows, Range cols);

}  // namespace glyd::test
