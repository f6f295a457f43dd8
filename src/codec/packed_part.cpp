#include "codec/packed_part.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace glyd::codec {
namespace {

// The same rows in as few ranges as can be: one that begins where the one before ends is no cut.
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

// True when the given columns of the given rows, which are joined(), are whole units, at least one.
bool keeps_units(const UnitGrid& grid, std::span<const Range> rows, Range cols) {
  for (const Range& range : rows) {
    const bool ends_whole = range.end % kTileRows == 0 || (range.end == grid.rows && &range == &rows.back());
    if (range.begin >= range.end || range.end > grid.rows || range.begin % kTileRows != 0 || !ends_whole) return false;
  }
  return !rows.empty() && cols.begin < cols.end && cols.end <= grid.cols && cols.begin % kBlockCols == 0 &&
         (cols.end % kBlockCols == 0 || cols.end == grid.cols);
}

}  // namespace

std::optional<PackedPart> PackedPart::of(const PackedTensor& matrix, std::span<const Range> parts, Range cols) {
  const std::vector<Range> rows = joined(parts);
  const UnitGrid& whole = matrix.grid();
  if (!keeps_units(whole, rows, cols)) return std::nullopt;
  PackedPart part(matrix);
  part.grid_.cols = cols.size();
  for (const Range& range : rows) part.grid_.rows += range.size();
  if (rows.size() == 1 && rows[0].size() == whole.rows && cols.size() == whole.cols) {
    part.bytes_ = matrix.bytes();
    append(part.pieces_, 0, part.bytes_);
    return part;
  }

  const Range blocks{cols.begin / kBlockCols, (cols.end + kBlockCols - 1) / kBlockCols};
  const std::uint64_t sign_mantissa_bytes = part.grid_.groups() * kGroupBytes;  // of a tile
  const std::span<const std::uint16_t> units =
      cols.size() == whole.cols ? std::span<const std::uint16_t>() : matrix.unit_words();
  std::vector<std::uint32_t> tile_words;
  std::vector<Piece> streams;
  std::uint64_t stream_bytes = 0;
  for (const Range& range : rows) {
    for (std::uint64_t tile = range.begin / kTileRows; tile * kTileRows < range.end; ++tile) {
      std::uint64_t from = matrix.tile_offsets_[tile];
      std::uint32_t words = matrix.tile_words_[tile];
      if (!units.empty()) {
        const auto begin = units.begin() + static_cast<std::ptrdiff_t>(whole.unit(tile, 0));
        const auto first = begin + static_cast<std::ptrdiff_t>(blocks.begin);
        from += 4 * std::accumulate(begin, first, std::uint64_t{0});
        words = std::accumulate(first, begin + static_cast<std::ptrdiff_t>(blocks.end), std::uint32_t{0});
      }
      tile_words.push_back(words);
      append(part.pieces_, matrix.at_.sign_mantissa + whole.sign_mantissa_offset(tile, blocks.begin),
             sign_mantissa_bytes);
      append(streams, matrix.at_.streams + from, 4 * std::uint64_t{words});
      stream_bytes += 4 * std::uint64_t{words};
    }
  }

  PackedHeader header = matrix.header_;
  header.rows = part.grid_.rows;
  header.cols = part.grid_.cols;
  header.stream_bytes = stream_bytes;
  const SectionOffsets at = section_offsets(part.grid_, header.code_bytes, stream_bytes);
  part.bytes_ = at.end;
  part.head_.resize(at.sign_mantissa);
  std::memcpy(part.head_.data(), &header, sizeof(header));
  std::copy(matrix.code_.begin(), matrix.code_.end(), part.head_.begin() + static_cast<std::ptrdiff_t>(at.code));
  std::memcpy(part.head_.data() + at.tile_sizes, tile_words.data(), 4 * tile_words.size());
  for (Piece& piece : part.pieces_) piece.at += at.sign_mantissa;
  for (Piece& piece : streams) piece.at += at.streams;
  part.pieces_.insert(part.pieces_.end(), streams.begin(), streams.end());
  return part;
}

// Behind the last piece, or as a part of it where both follow each other in the matrix too.
void PackedPart::append(std::vector<Piece>& pieces, std::uint64_t from, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (!pieces.empty() && pieces.back().from + pieces.back().bytes == from) {
    pieces.back().bytes += bytes;
    return;
  }
  pieces.push_back({from, pieces.empty() ? 0 : pieces.back().at + pieces.back().bytes, bytes});
}

void PackedPart::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    fail(Code::Runtime, "{}: bytes [{}, +{}) of a part of {} asked for", what(), offset, out.size(), bytes_);
  }
  const auto take = [&](std::uint64_t bytes) {
    offset += bytes;
    out = out.subspan(bytes);
  };
  if (offset < head_.size()) {
    const std::size_t bytes = std::min(out.size(), static_cast<std::size_t>(head_.size() - offset));
    std::copy_n(head_.begin() + static_cast<std::ptrdiff_t>(offset), bytes, out.begin());
    take(bytes);
  }
  if (out.empty()) return;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                [](std::uint64_t at, const Piece& p) { return at < p.at; }) -
               1;
  for (; !out.empty(); ++piece) {
    const std::uint64_t skipped = offset - piece->at;
    const std::uint64_t bytes = std::min<std::uint64_t>(out.size(), piece->bytes - skipped);
    matrix_->read_packed(piece->from + skipped, out.first(bytes));
    take(bytes);
  }
}

std::vector<std::byte> PackedPart::read() const {
  std::vector<std::byte> packed(bytes_);
  read(0, packed);
  return packed;
}

}  // namespace glyd::codec
