#include "codec/cut.h"

#include <cstring>

namespace glyd::codec {
namespace {

// What the part has of a row tile, where it lies in the whole matrix.
struct TilePart {
  const std::uint8_t* sign_mantissa;
  std::span<const std::uint8_t> units;
};

}  // namespace

std::vector<Range> joined(std::span<const Range> rows) {
  std::vector<Range> ranges;
  for (const Range& range : rows) {
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

bool keeps_units(const UnitGrid& grid, std::span<const Range> rows, Range cols) {
  for (const Range& range : rows) {
    const bool ends_whole = range.end % kTileRows == 0 || (range.end == grid.rows && &range == &rows.back());
    if (range.begin >= range.end || range.end > grid.rows || range.begin % kTileRows != 0 || !ends_whole) return false;
  }
  return !rows.empty() && cols.begin < cols.end && cols.end <= grid.cols && cols.begin % kBlockCols == 0 &&
         (cols.end % kBlockCols == 0 || cols.end == grid.cols);
}

std::optional<std::vector<std::byte>> cut_units(const Unpacker& matrix, std::span<const Range> parts, Range cols) {
  const std::vector<Range> rows = joined(parts);
  const PackedMatrix& from = matrix.matrix();
  if (!keeps_units(from.grid, rows, cols)) return std::nullopt;
  const Range blocks{cols.begin / kBlockCols, (cols.end + kBlockCols - 1) / kBlockCols};

  std::vector<TilePart> tiles;
  UnitGrid grid{0, cols.size()};
  std::uint64_t stream_bytes = 0;
  for (const Range& range : rows) {
    grid.rows += range.size();
    for (std::uint64_t tile = range.begin / kTileRows; tile * kTileRows < range.end; ++tile) {
      const std::vector<std::span<const std::uint8_t>> units = matrix.tile_units(tile);
      const std::span<const std::uint8_t> last = units[blocks.end - 1];
      const std::uint8_t* const begin = units[blocks.begin].data();
      tiles.push_back({from.sign_mantissa + from.grid.sign_mantissa_offset(tile, blocks.begin),
                       {begin, static_cast<std::size_t>(last.data() + last.size() - begin)}});
      stream_bytes += tiles.back().units.size();
    }
  }

  PackedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  header.version = kVersion;
  header.code_bytes = from.code_bytes;
  header.rows = grid.rows;
  header.cols = grid.cols;
  header.stream_bytes = stream_bytes;
  const SectionOffsets at = section_offsets(grid, from.code_bytes, stream_bytes);
  std::vector<std::byte> packed(at.end);
  std::memcpy(packed.data(), &header, sizeof(header));
  std::memcpy(packed.data() + at.code, from.code, from.code_bytes);
  std::byte* sizes = packed.data() + at.tile_sizes;
  std::byte* sign_mantissa = packed.data() + at.sign_mantissa;
  std::byte* streams = packed.data() + at.streams;
  const std::size_t tile_bytes = grid.groups() * std::size_t{kGroupBytes};
  for (const TilePart& tile : tiles) {
    const auto words = static_cast<std::uint32_t>(tile.units.size() / 4);
    std::memcpy(sizes, &words, sizeof(words));
    std::memcpy(sign_mantissa, tile.sign_mantissa, tile_bytes);
    std::memcpy(streams, tile.units.data(), tile.units.size());
    sizes += sizeof(words);
    sign_mantissa += tile_bytes;
    streams += tile.units.size();
  }
  return packed;
}

}  // namespace glyd::codec
