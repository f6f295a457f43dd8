#pragma once
// How a packed matrix lies in GPU memory (cuda/packing/resident.h): what its parts take, before and after it is packed.

#include <cstdint>

#include "cuda/packing/resident.h"

namespace glyd::runner {

// Sizes of the sections of a resident matrix. In memory they follow each other in this order, each from a multiple of
// 256 bytes, the first one from a multiple of kQuadBytes, or of 2 * kQuadBytes where the matrix is not small.
struct ResidentBytes {
  std::uint64_t sign_mantissa = 0;
  std::uint64_t streams = 0;
  std::uint64_t offsets = 0;
  std::uint64_t table = 0;
  std::uint64_t claims = 0;
  std::uint64_t total = 0;  // with the space before and between sections; a multiple of 256
};

ResidentBytes resident_bytes(std::int64_t rows, std::int64_t cols, std::uint64_t stream_bytes);

// Before the units are known. From the bytes of the packed matrix in its file: at most 2 % too much, 5 % where it takes
// over 11.5 bits a weight, and too little only where units have many more leaps (cuda/packing/resident.h) than weights
// of such sizes have: more than one on average, a hundred times a Gaussian's, or an eighth of a stream. From the
// shape alone: what a matrix takes whose weights are close to a Gaussian's.
std::uint64_t resident_bytes_upper_bound(std::int64_t rows, std::int64_t cols, std::uint64_t packed_file_bytes);
std::uint64_t resident_bytes_estimate(std::int64_t rows, std::int64_t cols);

// The matrix at `memory` (aligned to 256 bytes).
cuda::ResidentMatrix resident_matrix_at(std::uint8_t* memory, std::int64_t rows, std::int64_t cols,
                                        const ResidentBytes& bytes, std::uint32_t max_block_bytes);

}  // namespace glyd::runner
