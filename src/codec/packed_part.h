#pragma once
// A part of a packed matrix in a file, read as a packed matrix of its own: a rank's rows or columns, without decoding.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/range.h"
#include "codec/packed_file.h"

namespace glyd::codec {

// The given columns of the given rows, one row range after another. Units are copied as they are, so the code is the
// whole matrix's, and only the part's own are read; the part that is everything has the bytes of the file. Its size is
// known before any of it is read: tile sizes are in the file, and where columns are cut the streams are gone through
// once for the sizes of the units, however many parts are made of a matrix. Reads from a PackedTensor that the caller
// keeps. Safe from several threads.
class PackedPart {
 public:
  // Nothing when a unit would be cut: ranges have to begin and end at row tiles and column blocks, or at the matrix's
  // end, and only the last row range may end inside a tile. Throws Error(Model) where the sizes of units do not add up.
  static std::optional<PackedPart> of(const PackedTensor& matrix, std::span<const Range> rows, Range cols);

  const UnitGrid& grid() const { return grid_; }
  const std::string& what() const { return matrix_->what(); }  // tensor and file, for messages
  std::uint64_t bytes() const { return bytes_; }
  int longest_word() const { return matrix_->longest_word(); }  // of the code, which is the whole matrix's

  // Bytes [offset, offset + out.size()) of the part, and all of them. Units are not looked at: what is read is for an
  // Unpacker or a device. Throws Error(Model) when the file cannot be read.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  std::vector<std::byte> read() const;

 private:
  struct Piece {
    std::uint64_t from, at, bytes;  // begins at `from` in the matrix and at `at` in the part
  };
  explicit PackedPart(const PackedTensor& matrix) : matrix_(&matrix) {}
  static void append(std::vector<Piece>& pieces, std::uint64_t from, std::uint64_t bytes);

  const PackedTensor* matrix_;
  UnitGrid grid_;
  std::uint64_t bytes_ = 0;
  std::vector<std::byte> head_;  // all that comes before the sign+mantissa section
  std::vector<Piece> pieces_;    // the rest, in order and without gaps
};

}  // namespace glyd::codec
