#pragma once
// The decoder: a packed matrix (docs/format.md) back to its bf16 weights. It trusts nothing in the bytes it is given.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "codec/packed_matrix.h"
#include "codec/pair_code.h"

namespace glyd::codec {

// Where the bytes of a packed matrix go, all of them.
struct PackStats {
  std::uint64_t weights = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t sign_mantissa_bytes = 0;
  std::uint64_t exponent_bytes = 0;  // exponent streams, with the padding of units
  std::uint64_t offset_bytes = 0;    // unit headers, lane starts and tile sizes
  std::uint64_t table_bytes = 0;     // header, code and padding of sections
  std::uint64_t exceptions = 0;      // four bytes each
  std::uint64_t wide_units = 0;      // units whose lane starts take 16 bits
  double bits_a_weight() const {
    return weights == 0 ? 0 : 8.0 * static_cast<double>(total_bytes) / static_cast<double>(weights);
  }
};

// The header of a packed matrix of `size` bytes, of which `start` are the first (64 or more where there are that many).
// Its numbers agree with each other and with the size. Throws Error(Model), opened by `what`.
PackedHeader read_header(std::span<const std::byte> start, std::uint64_t size, std::string_view what);

// One unit's decoder: what a packed matrix and a test of a lone unit share. Immutable; safe from several threads.
class UnitDecoder {
 public:
  explicit UnitDecoder(const PairCode& code);

  // Decodes a unit of `groups` groups, of which `rows` x `cols` weights are real, into `tile` (row-major, 256 apart;
  // weights that are no real ones get unspecified values). `sign_mantissa`: 512 * groups bytes. Returns null, or what
  // is wrong with the unit.
  const char* decode(std::span<const std::uint8_t> sign_mantissa, std::span<const std::uint8_t> unit,
                     std::uint32_t rows, std::uint32_t cols, std::uint16_t* tile) const;

 private:
  int index_bits_;
  std::vector<std::uint32_t> forward_, backward_;  // decode tables for bits taken lowest first, and highest first
};

// A packed matrix in memory that the caller keeps. Structure is checked when it is opened and when a tile is decoded;
// damage that leaves the structure whole is for checksums to find.
class Unpacker {
 public:
  // `what` (a tensor's name and file) opens every message. Throws Error(Model).
  Unpacker(std::span<const std::byte> bytes, std::string what);

  const UnitGrid& grid() const { return matrix_.grid; }
  const PackedMatrix& matrix() const { return matrix_; }
  const PairCode& code() const { return code_; }

  // The units of a row tile in the stream section, one a column block. Throws Error(Model) unless they fill the tile.
  std::vector<std::span<const std::uint8_t>> tile_units(std::uint64_t tile) const;

  // Decodes the real rows of one row tile: `out` is [grid().tile_rows(tile)][cols]. Throws Error(Model). Safe from
  // several threads.
  void unpack_tile(std::uint64_t tile, std::span<Bf16> out) const;

  // Decodes everything into [rows][cols].
  void unpack(std::span<Bf16> out, ThreadPool& threads) const;

  PackStats stats() const;

 private:
  std::string what_;
  PackedMatrix matrix_;
  PairCode code_;
  UnitDecoder decoder_;
  std::vector<std::uint64_t> tile_offsets_;  // [row tiles + 1] bytes into the stream section
};

}  // namespace glyd::codec
