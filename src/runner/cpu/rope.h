#pragma once
// Rotary position embedding, half-split: pair i is (x[i], x[i + r/2]), r = rope.dim rotated dimensions of a head.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "runner/cpu/context.h"

namespace glyd::runner::cpu {

// cos and sin of the tokens of a step. Angles are position * inv_freq in double, from integer positions, so that they
// are right at any position; cos and sin are multiplied by the attention factor and kept in fp32.
class RopeTable {
 public:
  RopeTable() = default;
  RopeTable(const model::Rope& rope, std::size_t max_tokens);

  void prepare(Context& context, std::span<const std::int32_t> positions);

  // Rotates the first r of the head's d values for token t of the step; the rest is copied. out[0, d) must not overlap
  // x.
  void rotate(std::size_t t, const float* x, std::size_t d, float* out) const;

 private:
  std::size_t half_ = 0;  // r / 2
  double attention_factor_ = 1;
  std::vector<double> inverse_frequencies_;  // [half]
  std::vector<float> cos_, sin_;             // [max_tokens][half]
};

}  // namespace glyd::runner::cpu
