#pragma once
// Arithmetic of sizes. Shapes are signed numbers; bytes of memory and of files are not.

#include <cstdint>

namespace glyd {

// A shape's number as unsigned, to multiply bytes with. `n` is not negative.
constexpr std::uint64_t unsigned_of(std::int64_t n) { return static_cast<std::uint64_t>(n); }

// The next multiple of `to` that is not below n.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace glyd
