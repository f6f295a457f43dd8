#pragma once
// The gated activation of the feed-forward block: y = bf(bf(silu(g)) * u), silu(x) = x / (1 + exp(-x)).

#include <cstddef>

#include "runner/cpu/context.h"

namespace glyd::runner::cpu {

// Rows of `gate_up` hold n gates, then n ups; `out` takes n values a row.
void swiglu(Context& context, FloatRows gate_up, std::size_t tokens, std::size_t n, FloatRows out);

}  // namespace glyd::runner::cpu
