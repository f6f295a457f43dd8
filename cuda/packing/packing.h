#pragma once
// Packing on the GPU: a bf16 matrix to the bytes that codec::pack() makes of it, packed bytes to the resident layout,
// and back.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/packing/resident.h"

namespace glyd::cuda {

// Gaussian weights: element i of a matrix is bf(sigma * normal(seed, i)), a function of seed and i alone.
cudaError_t random_weights(std::uint64_t seed, float sigma, std::int64_t count, std::uint16_t* out,
                           cudaStream_t stream);

// The whole matrix as bf16 [rows][stride], row-major; columns from cols to stride become zero.
cudaError_t unpack(const ResidentMatrix& matrix, std::int64_t first_row, std::int64_t rows, std::uint16_t* out,
                   std::int64_t stride, cudaStream_t stream);

// Rows ids[i] of the matrix (an embedding) to out[i], [tokens][stride].
cudaError_t embed_packed(const ResidentMatrix& matrix, const std::int32_t* ids, int tokens, std::uint16_t* out,
                         std::int64_t stride, cudaStream_t stream);
// The same from plain rows [vocab][matrix_stride].
cudaError_t embed_plain(const std::uint16_t* matrix, std::int64_t matrix_stride, const std::int32_t* ids, int tokens,
                        int cols, std::uint16_t* out, std::int64_t stride, cudaStream_t stream);

}  // namespace glyd::cuda
