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

// How a matrix's work is cut. Work comes in steps of `height` groups of 64 rows x 256 columns, in the order (rows,
// columns); each of `ctas` thread blocks takes an equal run of them. Where a run ends inside a row, the row's sum is
// cut. The same for every number of columns and for packed and plain weights: the cuts decide the bits of the result.
struct Partition {
  std::int64_t rows = 0, cols = 0;
  int height = 1;
  int ctas = 1;

  constexpr std::int64_t row_groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
  constexpr std::int64_t steps_down() const { return (row_groups() + height - 1) / height; }
  constexpr std::int64_t col_blocks() const { return (cols + codec::kBlockCols - 1) / codec::kBlockCols; }
  constexpr std::int64_t steps() const { return steps_down() * col_blocks(); }
  constexpr std::int64_t stored_rows() const { return row_groups() * kGroupRows; }  // of a product
  // First step of a thread block, and the thread block that has a step.
  constexpr std::int64_t first_step(std::int64_t cta) const { return steps() * cta / ctas; }
  constexpr std::int64_t cta_of(std::int64_t step) const { return ((step + 1) * ctas - 1) / steps(); }
  // In how many pieces the sums of the rows of step_row are made.
  constexpr int splits(std::int64_t step_row) const {
    return static_cast<int>(cta_of((step_row + 1) * col_blocks() - 1) - cta_of(step_row * col_blocks()) + 1);
  }
};

// The partition for a device of `multiprocessors`; `max_block_bytes` of the packed matrix, or 0. Deterministic.
Partition make_partition(std::int64_t rows, std::int64_t cols, int multiprocessors, std::uint32_t max_block_bytes);
int max_splits(const Partition& partition);
std::vector<std::uint8_t> split_counts(const Partition& partition);  // Product::splits, with group_rows = 64 * height

// A block that no partition has room for: the matrix has to stay plain.
inline constexpr std::uint32_t kLargestBlockBytes = 24 * 1024;

// The kernels to use: those of the chip, or the ones that run everywhere (what GLYD_KERNELS=generic asks for).
enum class KernelSet { Hopper, Generic };

// The layout and padded number of columns that multiply() wants for some tokens (1..kMaxColumns).
Layout activation_layout(KernelSet set, int tokens);
int activation_columns(int tokens);

// partials [split][tokens][stored_rows] = weights * x, of which row r has splits(r / (64 * height)) pieces. x is an
// image with activation_columns(tokens) columns. The result of a token depends neither on `tokens` nor on the others.
cudaError_t multiply(KernelSet set, const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                     int tokens, float* partials, cudaStream_t stream);
cudaError_t multiply(KernelSet set, const PlainMatrix& weights, const Partition& partition, const Activations& x,
                     int tokens, float* partials, cudaStream_t stream);

}  // namespace glyd::cuda
