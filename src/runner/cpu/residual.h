#pragma once
// The residual stream: h = bf(h + bf(x)).

#include <cstddef>

#include "runner/cpu/context.h"

namespace glyd::runner::cpu {

// `x` are sums that have not been rounded yet: ranks' sums are added first.
inline void add_residual(Context& context, FloatRows x, std::size_t tokens, std::size_t n, FloatRows h) {
  context.pool().parallel_for(tokens, 8, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t)
      for (std::size_t i = 0; i < n; ++i) h.row(t)[i] = context.rounded(h.row(t)[i] + context.rounded(x.row(t)[i]));
  });
}

}  // namespace glyd::runner::cpu
