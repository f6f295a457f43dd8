#pragma once
// Packing on the GPU: a bf16 matrix to the bytes that codec::pack() makes of it, packed bytes to the resident layout,
// and back.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codec/packed_matrix.h"
#include "cuda/packing/resident.h"

namespace glyd::cuda {

// Some rows and columns of a matrix with `all_cols` columns.
struct Window {
  std::int64_t first_row = 0, rows = 0, first_col = 0, cols = 0, all_cols = 0;
};

// Gaussian weights: element i of a matrix, row by row, is bf(sigma * normal(seed, i)), a function of seed and i alone.
// Those of a window to out [rows][stride], stride a multiple of 8; columns from cols to stride become zero.
cudaError_t random_weights(std::uint64_t seed, float sigma, const Window& window, std::uint16_t* out,
                           std::int64_t stride, cudaStream_t stream);

// Rows first_row (a multiple of 64) to first_row + rows as bf16 [rows][stride], row-major; columns from cols to stride
// (a multiple of 8) become zero.
cudaError_t unpack(const ResidentMatrix& matrix, std::int64_t first_row, std::int64_t rows, std::uint16_t* out,
                   std::int64_t stride, cudaStream_t stream);

// Rows ids[i] of the matrix (an embedding) to out[i], [tokens][stride]; zeros where the id is negative and from cols to
// stride. Strides are multiples of 8.
cudaError_t embed_packed(const ResidentMatrix& matrix, const std::int32_t* ids, int tokens, std::uint16_t* out,
                         std::int64_t stride, cudaStream_t stream);
// The same from plain rows [vocab][matrix_stride].
cudaError_t embed_plain(const std::uint16_t* matrix, std::int64_t matrix_stride, const std::int32_t* ids, int tokens,
                        int cols, std::uint16_t* out, std::int64_t stride, cudaStream_t stream);

// The steps by which a matrix becomes resident; runner/cuda/packer.h puts them together. Plain weights: count_pairs,
// the code is chosen on the host, measure_units, place_blocks, encode_units. Packed bytes of a file: find_units,
// check_units, place_blocks, gather_units. Both ways, what the steps hand on is the header word of every unit, in which
// measure_units and check_units count leaps (resident.h) as exceptions.

// bf16 weights [rows][stride] in device memory, 16-byte aligned; stride is a multiple of 8.
struct PlainSource {
  const std::uint16_t* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
};

// What is wrong with a unit, or with a row tile as a whole.
enum class Problem : std::uint32_t {
  None,
  TileEndsInUnit,
  TileTooLong,
  LaneStart,
  StreamEnd,
  LastStreamEnd,
  Padding,
  ExceptionOrder,
  ExceptionOutside,
  ExceptionOnWeight,
  ExceptionGroups,
};

// What the steps find out about a matrix; all zero before the first.
struct PackSummary {
  std::uint64_t unit_bytes = 0;       // of all units: the size of the file's stream section
  std::uint64_t problem = 0;          // of the first bad unit: the inverse of unit << 8 | Problem
  std::uint64_t block_bytes = 0;      // of all blocks: the size of the resident streams
  std::uint32_t max_block_bytes = 0;  // of the largest block
  std::uint32_t not_coded = 0;        // not zero: a pair that is not in the histogram
};

// How often each pair of exponents stands in the matrix: [65536] counts of pairs, first exponent << 8 | second, then
// [256] of exponents in the last column where it has no partner.
inline constexpr std::size_t kPairCounts = 65536, kLoneCounts = 256;
cudaError_t count_pairs(const PlainSource& source, std::uint64_t* counts, cudaStream_t stream);

// codec::PairEncoder in device memory.
struct DeviceEncoder {
  const std::uint32_t* entries = nullptr;      // [65536]
  const std::uint8_t* filler_after = nullptr;  // [256]
  std::uint32_t filler_pair = 0;
};

// The header word of every unit, [row tile][column block].
cudaError_t measure_units(const PlainSource& source, const DeviceEncoder& encoder, std::uint32_t* headers,
                          PackSummary* summary, cudaStream_t stream);

// The matrix's block_offsets [blocks + 1] from its units' header words, and the sums.
cudaError_t place_blocks(const codec::UnitGrid& grid, const std::uint32_t* headers, std::uint32_t* block_offsets,
                         PackSummary* summary, cudaStream_t stream);

// The parts of a resident matrix that are written.
struct ResidentTarget {
  std::uint8_t* sign_mantissa = nullptr;
  std::uint8_t* streams = nullptr;
  ResidentMatrix matrix;  // the same memory: where its pages are, and its block offsets, which are there already
};

cudaError_t encode_units(const PlainSource& source, const DeviceEncoder& encoder, const std::uint32_t* headers,
                         const ResidentTarget& to, cudaStream_t stream);

// A file's packed matrix in device memory: header and section sizes were checked, units were not.
struct PackedSource {
  codec::UnitGrid grid;
  const std::uint8_t* sign_mantissa = nullptr;
  const std::uint8_t* streams = nullptr;
  const std::uint64_t* tile_offsets = nullptr;  // [row tiles + 1] bytes into streams, ascending multiples of 4
};

// Where each unit begins, in words from its row tile's start, and its header word.
cudaError_t find_units(const PackedSource& source, std::uint32_t* headers, std::uint32_t* unit_offsets,
                       PackSummary* summary, cudaStream_t stream);

// Decodes every unit and checks all that codec::UnitDecoder does, and adds its leaps to its header word. `table`:
// [kTableEntries].
cudaError_t check_units(const PackedSource& source, std::uint32_t* headers, const std::uint32_t* unit_offsets,
                        const std::uint32_t* table, PackSummary* summary, cudaStream_t stream);

cudaError_t gather_units(const PackedSource& source, const std::uint32_t* headers, const std::uint32_t* unit_offsets,
                         const std::uint32_t* table, const ResidentTarget& to, cudaStream_t stream);

}  // namespace glyd::cuda
