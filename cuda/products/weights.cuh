#pragma once
// What the product kernels share: how a warp walks along its weights, how a tile becomes fragments, where sums go.

#include <cstdint>

#include "cuda/products/fragments.cuh"
#include "cuda/products/products.h"

namespace glyd::cuda {

// Where a warp's weights are: the groups of 32 columns of its run, one after another. `advance` walks on by one group;
// behind the end it stays, so that a load ahead of the end is harmless.
struct PackedCursor {
  static constexpr int kAhead = 2;
  using Raw = uint4;

  const std::uint8_t* at;
  std::int64_t row_stride;  // from the end of a row group to the same tile of the next step's
  int groups, group, row_group, height, row_groups;

  __device__ PackedCursor(const ResidentMatrix& m, const Partition& p, int first_row_group, int first_group, int warp,
                          int lane)
      : groups(static_cast<int>(m.col_groups())),
        group(first_group),
        row_group(first_row_group),
        height(p.height),
        row_groups(static_cast<int>(p.row_groups())) {
    const std::int64_t row_bytes = static_cast<std::int64_t>(groups) * kGroupTiles * codec::kGroupBytes;
    const int from = row_group < row_groups ? row_group : row_groups - 1;
    at = m.sign_mantissa + from * row_bytes +
         (static_cast<std::int64_t>(group) * kGroupTiles + (warp & 3)) * codec::kGroupBytes + lane * 16;
    row_stride = (height - 1) * row_bytes;
  }
  __device__ __forceinline__ Raw load() const { return load_streaming_16(at); }
  __device__ __forceinline__ void advance() {
    if (++group < groups) {
      at += kGroupTiles * codec::kGroupBytes;
    } else if (row_group + height < row_groups) {
      at += kGroupTiles * codec::kGroupBytes + row_stride;
      row_group += height;
      group = 0;
    }
  }
};

struct PlainCursor {
  static constexpr int kAhead = 2;
  struct Raw {
    uint4 upper, lower;  // rows g and g + 8
  };

  const std::uint16_t *upper, *lower;
  const PlainMatrix& m;
  int groups, group, row_group, height, row_groups, row, column;

  __device__ PlainCursor(const PlainMatrix& matrix, const Partition& p, int first_row_group, int first_group, int warp,
                         int lane)
      : m(matrix),
        groups(static_cast<int>((matrix.cols + codec::kGroupCols - 1) / codec::kGroupCols)),
        group(first_group),
        row_group(first_row_group),
        height(p.height),
        row_groups(static_cast<int>(p.row_groups())),
        row((warp & 3) * 16 + (lane >> 2)),
        column((lane & 3) * 8) {
    place();
  }
  // Rows behind the last one are read as the last one; their results are never used.
  __device__ __forceinline__ void place() {
    const std::int64_t first = static_cast<std::int64_t>(row_group) * kGroupRows + row, last = m.rows - 1;
    const std::int64_t offset = group * static_cast<int>(codec::kGroupCols) + column;
    upper = m.data + (first < last ? first : last) * m.stride + offset;
    lower = m.data + (first + 8 < last ? first + 8 : last) * m.stride + offset;
  }
  __device__ __forceinline__ Raw load() const { return {load_streaming_16(upper), load_streaming_16(lower)}; }
  __device__ __forceinline__ void advance() {
    if (++group < groups) {
      upper += codec::kGroupCols;
      lower += codec::kGroupCols;
    } else if (row_group + height < row_groups) {
      row_group += height;
      group = 0;
      place();
    }
  }
};

// What stands between raw bytes and fragments.
struct PackedUnit {
  StreamPair streams;
  bool there;  // a tile that pads the last row group has no unit

  __device__ __forceinline__ void open(std::uint32_t block, int warp, int lane) {
    const std::uint32_t offset = load_shared_u16(block + (warp & 3) * 2);
    there = offset != 0;
    streams.open(block + (there ? offset * 4 : kBlockHeaderBytes), lane);
  }
  __device__ __forceinline__ void fragments(const uint4& raw, int g, int lane, std::uint32_t lane4, Fragments& a) {
    streams.decode(raw, lane4, a);
    streams.patch(g, lane, a);
  }
};
struct PlainUnit {
  __device__ __forceinline__ void open(std::uint32_t, int, int) {}
  __device__ __forceinline__ void fragments(const PlainCursor::Raw& raw, int, int, std::uint32_t, Fragments& a) {
    const std::uint32_t upper[4] = {raw.upper.x, raw.upper.y, raw.upper.z, raw.upper.w};
    const std::uint32_t lower[4] = {raw.lower.x, raw.lower.y, raw.lower.z, raw.lower.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i >> 1][(i & 1) * 2] = upper[i];
      a[i >> 1][(i & 1) * 2 + 1] = lower[i];
    }
  }
};

template <class Matrix>
struct Source;
template <>
struct Source<ResidentMatrix> {
  using Cursor = PackedCursor;
  using Unit = PackedUnit;
  static constexpr bool kPacked = true;
};
template <>
struct Source<PlainMatrix> {
  using Cursor = PlainCursor;
  using Unit = PlainUnit;
  static constexpr bool kPacked = false;
};

// Writes a warp's 16 rows of sums as the piece that this thread block makes of them, and clears them.
template <int kTiles>
__device__ __forceinline__ void store_partials(const Partition& p, float* partials, int tokens, int step_row,
                                               int row_group, int warp, int lane, float (&acc)[kTiles][4]) {
  const std::int64_t stored = p.stored_rows();
  const std::int64_t split = blockIdx.x - p.cta_of(step_row * p.col_blocks());
  float* out = partials + split * tokens * stored + static_cast<std::int64_t>(row_group) * kGroupRows +
               (warp & 3) * 16 + (lane >> 2);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = n * 8 + (lane & 3) * 2 + (i & 1);
      if (token < tokens) out[token * stored + (i >> 1) * 8] = acc[n][i];
      acc[n][i] = 0;
    }
  }
}

}  // namespace glyd::cuda
