#pragma once
// out = x * W^T (+ bias): the product that nearly all of the time goes into.

#include <cstddef>

#include "runner/cpu/context.h"
#include "runner/cpu/weight_rows.h"

namespace glyd::runner::cpu {

enum class Rounding { Activation, None };  // as bf(...) stands in the specification; never (logits)

// out.row(t)[r] = W.row(r) . x.row(t) + bias[r] for t in [0, tokens). `x` has rows of weights.stride() floats, zero
// behind weights.cols(); `out` takes weights.rows() floats a row and must not overlap x. `bias` may be null. The sum is
// taken in fp32 in the order of kernels.h, so it depends neither on the number of tokens and threads nor on how W is
// stored.
void matmul(Context& context, const WeightRows& weights, FloatRows x, std::size_t tokens, const float* bias,
            Rounding rounding, FloatRows out);

}  // namespace glyd::runner::cpu
