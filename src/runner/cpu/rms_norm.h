#pragma once
// Root mean square normalisation: out = bf(bf(x * rsqrt(mean(x^2) + eps)) * w), statistics in fp32.

#include <cstddef>

#include "runner/cpu/context.h"

namespace glyd::runner::cpu {

// One vector of n values; `out` may be `x`. In bf16 both roundings of the specification are made: before and after w.
void rms_norm(const Context& context, const float* x, const float* weight, std::size_t n, float eps, float* out);

// The same for the first `tokens` rows.
void rms_norm_rows(Context& context, FloatRows x, std::size_t tokens, const float* weight, std::size_t n, float eps,
                   FloatRows out);

}  // namespace glyd::runner::cpu
