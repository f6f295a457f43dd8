#include "runner/cpu/swiglu.h"

#include <cmath>

namespace glyd::runner::cpu {

void swiglu(Context& context, FloatRows gate_up, std::size_t tokens, std::size_t n, FloatRows out) {
  context.pool().parallel_for(tokens, 2, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const float* gate = gate_up.row(t);
      const float* up = gate + n;
      float* y = out.row(t);
      for (std::size_t i = 0; i < n; ++i) {
        const float silu = gate[i] / (1.0f + std::exp(-gate[i]));
        y[i] = context.rounded(context.rounded(silu) * up[i]);
      }
    }
  });
}

}  // namespace glyd::runner::cpu
