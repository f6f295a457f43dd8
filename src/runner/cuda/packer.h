#pragma once
// Makes matrices resident: packs plain weights, or takes a file's packed bytes after checking every unit. Both happen
// on the GPU; only the code is chosen on the host. The caller owns all memory, so there are two phases: prepare says
// how much the matrix takes, finish writes it there.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "codec/pack.h"
#include "cuda/packing/packing.h"
#include "runner/cuda/cache_sides.h"
#include "runner/cuda/resident_matrix.h"

namespace glyd::runner {

class Packer {
 public:
  // Device memory that packing a matrix of this shape needs besides its source and its result. It grows with rows and
  // with cols.
  static std::uint64_t scratch_bytes(std::int64_t rows, std::int64_t cols);

  // `scratch`: that many bytes on the current device, aligned to 256; the packer's from its first to its last call.
  Packer(void* scratch, std::uint64_t scratch_bytes) : scratch_(scratch), scratch_bytes_(scratch_bytes) {}

  // Each prepare waits for the stream: it needs the results.

  // Weights [rows][stride] on the device, 16-byte aligned, stride a multiple of 8; they must stay until finish() is
  // done. The units will be those that codec::pack() makes with the same options. Nothing: the matrix is better left
  // plain.
  std::optional<ResidentBytes> prepare_from_bf16(const std::uint16_t* weights, std::int64_t rows, std::int64_t cols,
                                                 std::int64_t stride, cudaStream_t stream,
                                                 const codec::PackOptions& options = {});

  // A packed matrix as it is in its file, on the device, 16-byte aligned; it must stay until finish() is done. Nothing:
  // its code has longer words than the kernels take, so it has to be unpacked on the CPU and packed again. Throws
  // Error(Model), opened by `what`, when anything is damaged.
  std::optional<ResidentBytes> prepare_from_file_bytes(const std::uint8_t* bytes, std::uint64_t size,
                                                       std::string_view what, cudaStream_t stream);

  // Writes the prepared matrix to `memory`: the bytes that prepare told, aligned to 256. Its pages go where the
  // multiprocessors that multiply it are near, if the sides are known; to place them it waits for the stream.
  cuda::ResidentMatrix finish(void* memory, cudaStream_t stream, const CacheSides* sides = nullptr);
  // The same with places of somebody's choice, others than those of a chip that nothing is known of only for a matrix
  // that CacheSides::fits().
  cuda::ResidentMatrix finish_at(void* memory, cudaStream_t stream, const cuda::PagePlaces& places);

  // Bytes of the prepared matrix's largest block.
  std::uint32_t max_block_bytes() const { return max_block_bytes_; }

  // The code section of the prepared matrix, as a file has it.
  const std::vector<std::uint8_t>& code_bytes() const { return code_bytes_; }

 private:
  // The scratch memory's parts.
  struct Scratch {
    std::uint64_t* counts;
    std::uint32_t* entries;
    std::uint8_t* filler_after;
    std::uint32_t* table;
    std::uint32_t* headers;
    std::uint32_t* unit_offsets;
    std::uint64_t* tile_offsets;
    std::uint32_t* block_offsets;
    cuda::PackSummary* summary;
    std::uint64_t bytes;
  };
  static Scratch divide_scratch(std::uint8_t* memory, std::int64_t rows, std::int64_t cols);
  void begin(std::int64_t rows, std::int64_t cols);
  void upload_table(const codec::PairCode& code, cudaStream_t stream);
  cuda::PackSummary read_summary(cudaStream_t stream) const;
  ResidentBytes keep_sizes(const cuda::PackSummary& summary);
  cuda::ResidentMatrix matrix_at(void* memory) const;
  void write(const cuda::ResidentMatrix& matrix, cudaStream_t stream) const;

  void* scratch_;
  std::uint64_t scratch_bytes_;
  Scratch parts_{};

  // The prepared matrix.
  std::int64_t rows_ = 0, cols_ = 0;
  std::optional<cuda::PlainSource> plain_;  // exactly one of the two once a matrix is prepared
  std::optional<cuda::PackedSource> packed_;
  cuda::DeviceEncoder encoder_;
  std::vector<std::uint8_t> code_bytes_;
  ResidentBytes bytes_;
  std::uint32_t max_block_bytes_ = 0;
};

}  // namespace glyd::runner
