#include "runner/cpu/rope.h"

#include <algorithm>
#include <cmath>

namespace glyd::runner::cpu {

RopeTable::RopeTable(const model::Rope& rope, std::size_t max_tokens)
    : half_(static_cast<std::size_t>(rope.dim) / 2),
      attention_factor_(rope.attention_factor),
      inverse_frequencies_(model::inverse_frequencies(rope)),
      cos_(max_tokens * half_),
      sin_(max_tokens * half_) {}

void RopeTable::prepare(Context& context, std::span<const std::int32_t> positions) {
  context.pool().parallel_for(positions.size(), 16, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      for (std::size_t i = 0; i < half_; ++i) {
        const double angle = static_cast<double>(positions[t]) * inverse_frequencies_[i];
        cos_[t * half_ + i] = static_cast<float>(std::cos(angle) * attention_factor_);
        sin_[t * half_ + i] = static_cast<float>(std::sin(angle) * attention_factor_);
      }
    }
  });
}

void RopeTable::rotate(std::size_t t, const float* x, std::size_t d, float* out) const {
  const float* c = cos_.data() + t * half_;
  const float* s = sin_.data() + t * half_;
  for (std::size_t i = 0; i < half_; ++i) {
    out[i] = x[i] * c[i] - x[i + half_] * s[i];
    out[i + half_] = x[i + half_] * c[i] + x[i] * s[i];
  }
  std::copy(x + 2 * half_, x + d, out + 2 * half_);
}

}  // namespace glyd::runner::cpu
