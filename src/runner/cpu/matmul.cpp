#include "runner/cpu/matmul.h"

#include <algorithm>

namespace glyd::runner::cpu {
namespace {

// Tokens multiplied at a time; their activations stay in the cache while a row tile passes.
constexpr std::size_t kTokenBlock = 32;

// From this many tokens on, widening a row tile once is cheaper than widening it for each of them.
constexpr std::size_t kWidenFrom = 5;

// Bytes of weights handed to a thread at a time, at least: enough to hide what handing out costs.
constexpr std::size_t kGrainBytes = 128 << 10;

}  // namespace

void matmul(Context& context, const WeightRows& weights, FloatRows x, std::size_t tokens, const float* bias,
            Rounding rounding, FloatRows out) {
  const Kernels& kernels = context.kernels();
  const std::size_t stride = weights.stride();

  // One row tile: sums of a block of tokens, then bias, rounding and the way out.
  const auto multiply_tile = [&](std::size_t first_row) {
    const std::size_t count = std::min(kRowTile, weights.rows() - first_row);
    Context::Scratch& scratch = context.scratch();
    const Bf16* rows = weights.fetch(first_row, count, scratch.rows.data());
    const bool widened = tokens >= kWidenFrom;
    if (widened) kernels.widen(rows, scratch.widened.data(), count * stride);

    float sums[kTokenBlock * kRowTile];
    for (std::size_t t = 0; t < tokens; t += kTokenBlock) {
      const std::size_t block = std::min(kTokenBlock, tokens - t);
      if (widened) {
        kernels.products_float(scratch.widened.data(), count, stride, x.row(t), block, x.stride, stride, sums,
                               kRowTile);
      } else {
        kernels.products_bf16(rows, count, stride, x.row(t), block, x.stride, stride, sums, kRowTile);
      }
      for (std::size_t i = 0; i < block; ++i) {
        float* to = out.row(t + i) + first_row;
        for (std::size_t r = 0; r < count; ++r) {
          const float sum = bias ? sums[i * kRowTile + r] + bias[first_row + r] : sums[i * kRowTile + r];
          to[r] = rounding == Rounding::Activation ? context.rounded(sum) : sum;
        }
      }
    }
  };

  const std::size_t tiles = (weights.rows() + kRowTile - 1) / kRowTile;
  const std::size_t tile_bytes = kRowTile * stride * sizeof(Bf16);
  context.pool().parallel_for(tiles, (kGrainBytes + tile_bytes - 1) / tile_bytes,
                              [&](std::size_t begin, std::size_t end) {
                                for (std::size_t tile = begin; tile < end; ++tile) multiply_tile(tile * kRowTile);
                              });
}

}  // namespace glyd::runner::cpu
