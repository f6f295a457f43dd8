#pragma once
// h = embed[id]: no scaling, exact.

#include <cstdint>
#include <span>

#include "runner/cpu/context.h"
#include "runner/cpu/weight_rows.h"

namespace glyd::runner::cpu {

// Row t of `out` becomes the row ids[t] of `table`; ids are in [0, table.rows()).
void embed(Context& context, const WeightRows& table, std::span<const std::int32_t> ids, FloatRows out);

}  // namespace glyd::runner::cpu
