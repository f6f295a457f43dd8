#include "runner/cpu/embedding.h"

namespace glyd::runner::cpu {

void embed(Context& context, const WeightRows& table, std::span<const std::int32_t> ids, FloatRows out) {
  context.pool().parallel_for(ids.size(), 8, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const Bf16* row = table.fetch(static_cast<std::size_t>(ids[t]), 1, context.scratch().rows.data());
      context.kernels().widen(row, out.row(t), table.stride());
    }
  });
}

}  // namespace glyd::runner::cpu
