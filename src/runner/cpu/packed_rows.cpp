#include "runner/cpu/packed_rows.h"

#include <algorithm>
#include <utility>

namespace glyd::runner::cpu {

static_assert(kRowTile == codec::kTileRows, "a tile of the products is a tile of the code");

PackedRows::PackedRows(std::vector<std::byte> bytes, std::string what, ThreadPool& pool)
    : bytes_(std::move(bytes)), unpacker_(bytes_, std::move(what)) {
  set_size(unpacker_.grid().rows, unpacker_.grid().cols);
  pool.parallel_for(unpacker_.grid().row_tiles(), 8, [&](std::size_t begin, std::size_t end) {
    std::vector<Bf16> tile(kRowTile * cols());
    for (std::size_t t = begin; t < end; ++t) {
      unpacker_.unpack_tile(t, std::span(tile).first(unpacker_.grid().tile_rows(t) * cols()));
    }
  });
}

const Bf16* PackedRows::fetch(std::size_t first, std::size_t, Bf16* scratch) const {
  const std::size_t tile = first / kRowTile, tile_rows = unpacker_.grid().tile_rows(tile);
  unpacker_.unpack_tile(tile, {scratch, tile_rows * cols()});
  if (stride() != cols()) {  // spread the rows, the last one first, and pad them
    for (std::size_t r = tile_rows; r-- > 0;) {
      Bf16* row = scratch + r * stride();
      std::copy_backward(scratch + r * cols(), scratch + (r + 1) * cols(), row + cols());
      std::fill(row + cols(), row + stride(), Bf16{});
    }
  }
  return scratch + first % kRowTile * stride();
}

}  // namespace glyd::runner::cpu
