#include "runner/cpu/rms_norm.h"

#include <cmath>

namespace glyd::runner::cpu {

void rms_norm(const Context& context, const float* x, const float* weight, std::size_t n, float eps, float* out) {
  // Lanes, as in kernels.h: short error chains, and a loop that the compiler can vectorise without reordering anything.
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * x[i + l];
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += x[i] * x[i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;

  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (std::size_t j = 0; j < n; ++j) out[j] = context.rounded(context.rounded(x[j] * scale) * weight[j]);
}

void rms_norm_rows(Context& context, FloatRows x, std::size_t tokens, const float* weight, std::size_t n, float eps,
                   FloatRows out) {
  context.pool().parallel_for(tokens, 8, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) rms_norm(context, x.row(t), weight, n, eps, out.row(t));
  });
}

}  // namespace glyd::runner::cpu
