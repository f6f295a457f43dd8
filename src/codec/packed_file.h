#pragma once
// A packed matrix in a safetensors file, decoded from there row by row: only what is asked for is in memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "codec/packed_matrix.h"
#include "io/safetensors.h"

namespace glyd::codec {

// Reads from a tensor of a file that the caller keeps. Safe from several threads.
class PackedTensor {
 public:
  // Checks header, code and section sizes. Throws Error(Model) naming tensor and file.
  PackedTensor(const io::Safetensors& file, const io::Tensor& tensor);

  const UnitGrid& grid() const { return grid_; }
  const std::string& what() const { return what_; }  // tensor and file, for messages
  std::uint64_t bytes() const { return tensor_->end - tensor_->begin; }
  int longest_word() const;  // of its code, in bits

  // The packed matrix as it is stored, for an Unpacker or a device: `out` has bytes(). Its units are not looked at.
  void read_packed(std::span<std::byte> out) const;
  // Bytes [offset, offset + out.size()) of it. Safe from several threads.
  void read_packed(std::uint64_t offset, std::span<std::byte> out) const;

  // Rows [first, first + rows) as bf16, row-major. Units are checked as they are decoded: throws Error(Model).
  void read_rows(std::uint64_t first, std::uint64_t rows, std::span<Bf16> out) const;

 private:
  std::vector<std::byte> read_tiles(std::uint64_t first, std::uint64_t count) const;

  const io::Safetensors* file_;
  const io::Tensor* tensor_;
  std::string what_;
  PackedHeader header_{};
  UnitGrid grid_;
  SectionOffsets at_{};
  std::vector<std::byte> code_;              // the code section
  std::vector<std::uint32_t> tile_words_;    // [row tiles] size of each tile's units, 4 bytes each
  std::vector<std::uint64_t> tile_offsets_;  // [row tiles + 1] where they begin in the stream section, bytes
};

}  // namespace glyd::codec
