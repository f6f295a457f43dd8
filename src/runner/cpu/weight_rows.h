#pragma once
// Where matmul and the embedding get weights from: a matrix seen as bf16 rows, however it is stored.

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "base/bf16.h"
#include "runner/cpu/aligned_buffer.h"
#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {

class WeightRows {
 public:
  virtual ~WeightRows() = default;

  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  std::size_t stride() const { return padded(cols_); }  // from row to row of what fetch() returns; zeros behind cols()

  // Rows [first, first + count), which lie in one tile of kRowTile rows counted from row 0: either in place, or decoded
  // into `scratch`, which has room for a tile (kRowTile * stride()). Safe from several threads.
  virtual const Bf16* fetch(std::size_t first, std::size_t count, Bf16* scratch) const = 0;

  virtual std::uint64_t bytes() const { return std::uint64_t{rows_} * cols_ * sizeof(Bf16); }  // without padding

 protected:
  WeightRows() = default;
  WeightRows(std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols) {}
  void set_size(std::size_t rows, std::size_t cols) { rows_ = rows, cols_ = cols; }

 private:
  std::size_t rows_ = 0, cols_ = 0;
};

// The plain layout: all rows in memory, one after another.
class PlainMatrix : public WeightRows {
 public:
  PlainMatrix() = default;
  PlainMatrix(std::size_t rows, std::size_t cols)
      : WeightRows(rows, cols), memory_(std::uint64_t{rows} * padded(cols), "weights") {}

  const Bf16* fetch(std::size_t first, std::size_t, Bf16*) const override { return memory_.data() + first * stride(); }
  Bf16* row(std::size_t r) { return memory_.data() + r * stride(); }  // to fill, padding included

 private:
  AlignedBuffer<Bf16> memory_;
};

// Some rows of another matrix, in its memory. They start at a row tile.
class RowsOf : public WeightRows {
 public:
  RowsOf(const WeightRows& matrix, std::size_t first, std::size_t rows)
      : WeightRows(rows, matrix.cols()), matrix_(matrix), first_(first) {
    assert(first % kRowTile == 0 && first + rows <= matrix.rows());
  }

  const Bf16* fetch(std::size_t first, std::size_t count, Bf16* scratch) const override {
    return matrix_.fetch(first_ + first, count, scratch);
  }
  std::uint64_t bytes() const override { return matrix_.bytes() * rows() / matrix_.rows(); }  // about, when packed

 private:
  const WeightRows& matrix_;
  const std::size_t first_;
};

}  // namespace glyd::runner::cpu
