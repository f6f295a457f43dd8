#pragma once
// Numbers for the tests of kernels, the same in every run.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "base/bf16.h"

namespace glyd::test {

class Numbers {
 public:
  explicit Numbers(unsigned seed) : engine_(seed) {}

  // Uniform in [-1, 1).
  float next() { return static_cast<float>(static_cast<double>(engine_()) * 0x1p-31 - 1.0); }
  std::vector<float> floats(std::size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = next();
    return v;
  }
  std::vector<Bf16> bf16s(std::size_t n) { return narrowed(floats(n)); }

  // Sizes over 24 powers of two: sums show in which order they were taken.
  std::vector<float> wild_floats(std::size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = next() * static_cast<float>(1 << (engine_() % 24));
    return v;
  }
  std::vector<Bf16> wild_bf16s(std::size_t n) { return narrowed(wild_floats(n)); }

 private:
  static std::vector<Bf16> narrowed(const std::vector<float>& wide) {
    std::vector<Bf16> v(wide.size());
    std::transform(wide.begin(), wide.end(), v.begin(), to_bf16);
    return v;
  }

  std::mt19937 engine_;
};

inline bool bits_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), bits_equal);
}

}  // namespace glyd::test
