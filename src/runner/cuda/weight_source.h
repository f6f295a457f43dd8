#pragma once
// Where the weights of a runner come from: a checkpoint's files or a seed. What is delivered is always a rank's part.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "model/checkpoint.h"
#include "model/sharding.h"

namespace glyd::runner {

// A rank's part of a matrix, a matrix of its own. `spec` stays the caller's.
struct PartOf {
  const model::MatrixSpec* spec;
  model::MatrixPart part;

  std::int64_t rows() const { return static_cast<std::int64_t>(part.row_count()); }
  std::int64_t cols() const { return static_cast<std::int64_t>(part.cols.size()); }
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // The part's bf16 rows to device memory [rows][stride], stride a multiple of 32; columns behind the part's become
  // zero.
  virtual void rows(const PartOf& part, std::uint16_t* to, std::int64_t stride) = 0;

  // Of its packed bytes: 0 where it is not stored packed, or not so that it can be cut.
  struct Packed {
    std::uint64_t bytes = 0;
    int longest_word = 0;  // of its code
  };
  virtual Packed packed_size(const PartOf& part) const = 0;
  // Whether the matrix is stored packed, be the part cut as it may.
  virtual bool is_packed(const PartOf& part) const = 0;
  // Its packed bytes to device memory.
  virtual void packed(const PartOf& part, std::uint8_t* to) = 0;

  // All of a vector to host memory.
  virtual void vector(const model::VectorSpec& vector, std::uint16_t* host) = 0;

  // Seconds of threads that read files, and of waiting for copies.
  double read_seconds = 0, wait_seconds = 0;
};

// Files are read by all threads into one of two pinned buffers while the other is copied; both is done, or under way in
// the stream, when a call returns. Throws Error(Model).
std::unique_ptr<WeightSource> checkpoint_source(const model::Checkpoint& checkpoint, ThreadPool& pool,
                                                cudaStream_t stream);
// Sizes alone: nothing is read.
std::unique_ptr<WeightSource> sizes_of(const model::Checkpoint& checkpoint);

// Gaussian matrices, a function of the seed and the matrix's name: a rank's part is the same part of the same matrix.
std::unique_ptr<WeightSource> random_source(std::uint64_t seed, cudaStream_t stream);

}  // namespace glyd::runner
