#pragma once
// A part of a packed matrix as a packed matrix of its own.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/range.h"
#include "codec/unpack.h"

namespace glyd::codec {

// The same rows in as few ranges as can be: one that begins where the one before ends is no cut.
std::vector<Range> joined(std::span<const Range> rows);

// True when the given columns of the given rows are whole units, at least one: ranges begin and end at row tiles and
// column blocks, or at the matrix's end, and only the last row range may end inside a tile. `rows` are joined().
bool keeps_units(const UnitGrid& grid, std::span<const Range> rows, Range cols);

// The given columns of the given rows, one row range after another: units are copied as they are, so nothing is decoded
// and the code is the whole matrix's. Nothing when that would cut a unit. Throws Error(Model) for damage
// that is in the way.
std::optional<std::vector<std::byte>> cut_units(const Unpacker& matrix, std::span<const Range> rows, Range cols);

}  // namespace glyd::codec
