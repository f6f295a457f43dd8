#pragma once
// A half-open range of rows, columns, heads.

#include <cstdint>

namespace glyd {

struct Range {
  std::uint64_t begin = 0, end = 0;
  constexpr std::uint64_t size() const { return end - begin; }
  constexpr bool operator==(const Range&) const = default;
};

}  // namespace glyd
