#pragma once
// Products of a weight matrix [rows][cols] with the activations of a few tokens: packed weights decoded on the way, or
// plain ones, by the same instructions in the same order, so that both give the same bits. And the rows of packed
// weights themselves, read the same way.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/common/activations.h"
#include "cuda/common/product.h"
#include "cuda/packing/resident.h"

namespace glyd::cuda {

inline constexpr int kMaxColumns = 128;  // tokens of one launch

// Rows of bf16 weights: [rows][stride], stride a multiple of 32, columns from cols to stride zero. kPlainReadAhead
// bytes behind the last row may be read and are not used.
inline constexpr int kPlainReadAhead = 64;
struct PlainMatrix {
  const std::uint16_t* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
};

// How a matrix's work is cut. Its groups of 64 rows, first the even ones and then the odd ones (whose weights are near
// to one half of the multiprocessors each: cuda/packing/page_places.h), are dealt out evenly to step rows of at most
// `height` groups; a step is a step row x 256 columns, and steps are in the order (rows, columns). Each of `ctas`
// thread blocks takes a run of blocks (64 x 256) in the order (step, row group), all with the same work to within a
// block where there are enough: a run may begin and end inside a step. Then its first step has the row groups from the
// cut on, its last one those before the next cut. Where a run ends inside a row, the row's sum is cut. The same for
// every number of columns and for packed and plain weights: the cuts decide the bits of the result.
struct Partition {
  static constexpr int kMaxCtas = 255;  // a row may have as many pieces, and they are counted in bytes

  std::int64_t rows = 0, cols = 0;
  int height = 1;  // row groups of the highest step row
  int ctas = 1;
  int steps_down = 1;
  std::int32_t first[kMaxCtas + 1] = {};  // [ctas + 1] first step of each thread block
  std::uint8_t place[kMaxCtas + 1] = {};  // [ctas + 1] its first row group in that step: those before belong to others
  // [ctas] Which piece of its first step row's sums a thread block makes; one less from row group `less` of the row on,
  // which have had no part in the step row's first run.
  std::uint8_t split[kMaxCtas] = {}, less[kMaxCtas] = {};
  std::int32_t row[kMaxCtas] = {};  // [ctas] its first step row: a kernel's beginning has no time for divisions

  constexpr int row_groups() const { return static_cast<int>((rows + kGroupRows - 1) / kGroupRows); }
  constexpr int col_blocks() const { return static_cast<int>((cols + codec::kBlockCols - 1) / codec::kBlockCols); }
  constexpr int steps() const { return steps_down * col_blocks(); }
  constexpr std::int64_t stored_rows() const { return std::int64_t{row_groups()} * kGroupRows; }  // of a product
  // The first step rows have `height` groups, the others one less. Numbers are those in the order even, odd.
  constexpr int low_rows() const { return steps_down * height - row_groups(); }
  constexpr int first_number(int step_row) const {
    const int high = steps_down - low_rows();
    return step_row * height - (step_row > high ? step_row - high : 0);
  }
  constexpr int row_group(int step_row, int at) const {
    const int number = first_number(step_row) + at, even = (row_groups() + 1) / 2;
    return number < even ? 2 * number : 2 * (number - even) + 1;
  }
  constexpr int groups_of(int step_row) const { return height - (step_row >= steps_down - low_rows() ? 1 : 0); }
  // A thread block's steps: all of them (without a branch, so that a kernel computes it once for all threads), and
  // those with work for the row group that has a place in each step row.
  constexpr int end(int cta) const { return first[cta + 1] + (place[cta + 1] + 255) / 256; }
  constexpr int begin_at(int cta, int at) const { return first[cta] + (at < place[cta] ? 1 : 0); }
  constexpr int end_at(int cta, int at) const {
    // The first step rows have row groups in all places.
    const int rows = at + 1 < height ? steps_down : at < height ? steps_down - low_rows() : 0;
    const int end = first[cta + 1] + (at < place[cta + 1] ? 1 : 0);
    return end < rows * col_blocks() ? end : rows * col_blocks();
  }
  // Which piece of a step row's sums. A thread block that comes to a further step row is the first one in it.
  constexpr int piece(int cta, int step_row, int at) const {
    return step_row == row[cta] ? split[cta] - (at >= less[cta] ? 1 : 0) : 0;
  }
};

// The partition for a device of `multiprocessors`.
Partition make_partition(std::int64_t rows, std::int64_t cols, int multiprocessors);
// The partition with step rows of at most `height` groups.
Partition partition_of_height(std::int64_t rows, std::int64_t cols, int multiprocessors, int height);
int max_splits(const Partition& partition);
std::vector<std::uint8_t> split_counts(const Partition& partition);  // Product::splits, with group_rows = 64

// The kernels to use: those of the chip, or the ones that run everywhere (what GLYD_KERNELS=generic asks for).
enum class KernelSet { Hopper, Generic };

// For the Hopper kernels: two stages of such a block and of activations in 128 columns (64 KB) fit beside the table,
// and with more than 16 KB a block would be larger than plain weights.
inline constexpr std::uint32_t kLargestBlockBytes = 17 * 1024;
inline constexpr std::uint32_t kLargestSlotBytes = ResidentMatrix::slot_bytes(kLargestBlockBytes);

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

// All rows of packed weights as bf16 to out [rows][stride], by the Hopper kernels' way of reading them: cols is a
// multiple of 32, stride one of 8; columns from cols to stride are left as they are. `partition`: make_partition()'s
// for these rows. Claims stay untouched, so `weights` may be multiplied at the same time.
cudaError_t unpack_rows(const ResidentMatrix& weights, const Partition& partition, std::uint16_t* out,
                        std::int64_t stride, cudaStream_t stream);

}  // namespace glyd::cuda
