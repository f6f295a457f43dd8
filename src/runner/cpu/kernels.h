#pragma once
// The vector loops of the CPU backend, compiled once for each instruction set level and chosen at run time.
//
// Every dot product adds its terms in one order that depends on its length alone: term i goes to lane i % kLanes, each
// lane adds its terms in ascending order, and the lanes are added pairwise at the end. Whether weights arrive as bf16
// or widened, how many rows and columns are worked on together, and which thread does it, never changes a bit. (Levels
// may differ in the last bits: only v3 and v4 have fused multiply-add.)

#include <cstddef>
#include <vector>

#include "base/bf16.h"
#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {

enum class SimdLevel { Baseline, V3, V4 };  // any x86-64 (or other) CPU; AVX2 and FMA; AVX-512

// All lengths `n` are multiples of kLanes; no alignment is required.
struct Kernels {
  SimdLevel level;
  const char* name;  // for people: "AVX-512"

  // sums[column * sum_stride + row] = rows[row] . columns[column], for all pairs; n terms each.
  template <class Element>
  using Products = void (*)(const Element* rows, std::size_t row_count, std::size_t row_stride, const float* columns,
                            std::size_t column_count, std::size_t column_stride, std::size_t n, float* sums,
                            std::size_t sum_stride);
  Products<Bf16> products_bf16;
  Products<float> products_float;

  // sums[i] = sums[i] * scale + weights[0] * rows[0][i] + weights[1] * rows[1][i] + ..., in this order.
  template <class Element>
  using WeightedSum = void (*)(const Element* rows, std::size_t row_count, std::size_t row_stride, const float* weights,
                               float scale, float* sums, std::size_t n);
  WeightedSum<Bf16> weighted_sum_bf16;
  WeightedSum<float> weighted_sum_float;

  void (*widen)(const Bf16* from, float* to, std::size_t n);

  // The member for an element type, for callers that are templates over it.
  template <class Element>
  Products<Element> products() const;
  template <class Element>
  WeightedSum<Element> weighted_sum() const;
};

template <>
inline Kernels::Products<Bf16> Kernels::products<Bf16>() const {
  return products_bf16;
}
template <>
inline Kernels::Products<float> Kernels::products<float>() const {
  return products_float;
}
template <>
inline Kernels::WeightedSum<Bf16> Kernels::weighted_sum<Bf16>() const {
  return weighted_sum_bf16;
}
template <>
inline Kernels::WeightedSum<float> Kernels::weighted_sum<float>() const {
  return weighted_sum_float;
}

// The kernels this machine can run, best first; never empty.
const std::vector<Kernels>& supported_kernels();
inline const Kernels& best_kernels() { return supported_kernels().front(); }

}  // namespace glyd::runner::cpu
