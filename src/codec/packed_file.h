#pragma once
// A packed matrix in a safetensors file, decoded from there by rows and columns: only what is asked for is in memory.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/range.h"
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

  // Bytes [offset, offset + out.size()) of the packed matrix as it is stored, for an Unpacker or a device. Its units
  // are not looked at. Safe from several threads.
  void read_packed(std::uint64_t offset, std::span<std::byte> out) const;

  // Rows [first, first + rows) as bf16, row-major. Units are checked as they are decoded: throws Error(Model).
  void read_rows(std::uint64_t first, std::uint64_t rows, std::span<Bf16> out) const;
  // Of these rows the columns `cols` alone: [rows][cols.size()]. Only column blocks that have some are read and
  // decoded.
  void read_columns(std::uint64_t first, std::uint64_t rows, Range cols, std::span<Bf16> out) const;

 private:
  friend class PackedPart;
  std::span<const std::uint16_t> unit_words() const;
  std::vector<std::uint16_t> find_units() const;

  const io::Safetensors* file_;
  const io::Tensor* tensor_;
  std::string what_;
  PackedHeader header_{};
  UnitGrid grid_;
  SectionOffsets at_{};
  std::vector<std::byte> code_;              // the code section
  std::vector<std::uint32_t> tile_words_;    // [row tiles] size of each tile's units, 4 bytes each
  std::vector<std::uint64_t> tile_offsets_;  // [row tiles + 1] where they begin in the stream section, bytes
  mutable std::mutex units_mutex_;
  mutable std::vector<std::uint16_t> unit_words_;  // [units] size of each in the streams; empty until it is asked for
};

}  // namespace glyd::codec
