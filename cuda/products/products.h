#pragma once
// Products of a weight matrix [rows][cols] with the activations of a few tokens: packed weights decoded on the way, or
// plain ones, by the same instructions in the same order, so that both give the same bits.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/common/activations.h"
#include "cuda/common/product.h"
#include "cuda/packing/resident.h"

namespace glyd::cuda {

inline constexpr int kMaxColumns = 128;  // tokens of one launch

// Rows of bf16 weights: [rows][stride], stride a multiple of 32, columns from cols to stride zero.
struct PlainMatrix {
  const std::uint16_t* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
};

// How a matrix's work is cut. Its groups of 64 rows are dealt out evenly to step rows of at most `height` groups; a
// step is a step row x 256 columns, and steps are in the order (rows, columns). Each of `ctas` thread blocks takes a
// run of steps with as equal a number of blocks (64 x 256) as whole steps allow. Where a run ends inside a row, the
// row's sum is cut. The same for every number of columns and for packed and plain weights: the cuts decide the bits of
// the result.
struct Partition {
  static constexpr int kMaxCtas = 256;

  std::int64_t rows = 0, cols = 0;
  int height = 1;  // row groups of the highest step row
  int ctas = 1;
  int steps_down = 1;
  std::int32_t first[kMaxCtas + 1] = {};  // [ctas + 1] first step of each thread block
  std::uint8_t split[kMaxCtas] = {};      // [ctas] which piece of its first step row's sums a thread block makes

  constexpr int row_groups() const { return static_cast<int>((rows + kGroupRows - 1) / kGroupRows); }
  constexpr int col_blocks() const { return static_cast<int>((cols + codec::kBlockCols - 1) / codec::kBlockCols); }
  constexpr int steps() const { return steps_down * col_blocks(); }
  constexpr std::int64_t stored_rows() const { return std::int64_t{row_groups()} * kGroupRows; }  // of a product
  // The first step rows have `height` groups, the others one less.
  constexpr int low_rows() const { return steps_down * height - row_groups(); }
  constexpr int first_group(int step_row) const {
    const int high = steps_down - low_rows();
    return step_row * height - (step_row > high ? step_row - high : 0);
  }
  constexpr int groups_of(int step_row) const { return height - (step_row >= steps_down - low_rows() ? 1 : 0); }
};

// The partition for a device of `multiprocessors`.
Partition make_partition(std::int64_t rows, std::int64_t cols, int multiprocessors);
// The partition with step rows of at most `height` groups.
Partition partition_of_height(std::int64_t rows, std::int64_t cols, int multiprocessors, int height);
int max_splits(const Partition& partition);
std::vector<std::uint8_t> split_counts(const Partition& partition);  // Product::splits, with group_rows = 64

// The kernels to use: those of the chip, or the ones that run everywhere (what GLYD_KERNELS=generic asks for).
enum class KernelSet { Hopper, Generic };

// The largest block of packed weights that the kernels have room for, where a thread block may have `shared_bytes` of
// shared memory. A matrix with a larger one (thousands of exceptions side by side) has to stay plain.
std::uint32_t largest_block_bytes(KernelSet set, int shared_bytes);

// The layout and padded number of columns that multiply() wants for some tokens (1..kMaxColumns).
Layout activation_layout(KernelSet set, int tokens);
int activation_columns(int tokens);

// partials [split][tokens][stored_rows] = weights * x, of which a row has as many pieces as its step row. x is an
// image with activation_columns(tokens) columns. The result of a token depends neither on `tokens` nor on the others.
cudaError_t multiply(KernelSet set, const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                     int tokens, float* partials, cudaStream_t stream);
cudaError_t multiply(KernelSet set, const PlainMatrix& weights, const Partition& partition, const Activations& x,
                     int tokens, float* partials, cudaStream_t stream);

}  // namespace glyd::cuda
