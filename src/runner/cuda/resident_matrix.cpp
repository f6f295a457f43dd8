#include "runner/cuda/resident_matrix.h"

#include <cmath>

#include "base/sizes.h"

namespace glyd::runner {
namespace {

constexpr std::uint64_t kSectionAlignment = 256;
constexpr std::uint64_t kMostBlockOverhead = cuda::kBlockHeaderBytes + 12, kMostMatrixOverhead = 16;
constexpr double kExpectedStreamBits = 2.78;  // a weight; units with their headers and exceptions

constexpr std::uint64_t align_section(std::uint64_t n) {
  return (n + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

// Of a small matrix it does not matter where pages are (CacheSides::places()).
constexpr std::uint64_t matrix_alignment(const ResidentBytes& bytes) {
  return bytes.sign_mantissa < cuda::kParityPage ? cuda::kQuadBytes : 2 * cuda::kQuadBytes;
}

cuda::ResidentMatrix shape(std::int64_t rows, std::int64_t cols) {
  cuda::ResidentMatrix m;
  m.rows = rows;
  m.cols = cols;
  return m;
}

}  // namespace

ResidentBytes resident_bytes(std::int64_t rows, std::int64_t cols, std::uint64_t stream_bytes) {
  const cuda::ResidentMatrix m = shape(rows, cols);
  ResidentBytes bytes;
  bytes.sign_mantissa = static_cast<std::uint64_t>(m.sign_mantissa_bytes());
  bytes.streams = stream_bytes;
  bytes.offsets = 4 * (static_cast<std::uint64_t>(m.blocks()) + 1);
  bytes.table = 4 * cuda::kTableEntries;
  bytes.claims = 4;
  bytes.total = matrix_alignment(bytes) - kSectionAlignment + align_section(bytes.sign_mantissa) +
                align_section(bytes.streams) + align_section(bytes.offsets) + align_section(bytes.table) +
                align_section(bytes.claims);
  return bytes;
}

std::uint64_t resident_bytes_upper_bound(std::int64_t rows, std::int64_t cols, std::uint64_t packed_file_bytes) {
  const cuda::ResidentMatrix m = shape(rows, cols);
  const std::uint64_t other = codec::section_offsets(m.grid(), 0, 0).streams;  // without the code section
  std::uint64_t units = packed_file_bytes > other ? packed_file_bytes - other : 0;
  // Exponents that take so many bits have long words, and these have leaps.
  constexpr double kUsualBits = 11.5;  // a weight
  if (8.0 * static_cast<double>(packed_file_bytes) > kUsualBits * static_cast<double>(rows) * static_cast<double>(cols))
    units += units / 8;
  return resident_bytes(rows, cols,
                        units + kMostBlockOverhead * static_cast<std::uint64_t>(m.blocks()) + kMostMatrixOverhead)
      .total;
}

std::uint64_t resident_bytes_estimate(std::int64_t rows, std::int64_t cols) {
  const cuda::ResidentMatrix m = shape(rows, cols);
  const double units = kExpectedStreamBits / 8 * static_cast<double>(rows) * static_cast<double>(cols);
  return resident_bytes(rows, cols,
                        static_cast<std::uint64_t>(std::ceil(units)) +
                            kMostBlockOverhead * static_cast<std::uint64_t>(m.blocks()) + kMostMatrixOverhead)
      .total;
}

cuda::ResidentMatrix resident_matrix_at(std::uint8_t* memory, std::int64_t rows, std::int64_t cols,
                                        const ResidentBytes& bytes, std::uint32_t max_block_bytes) {
  cuda::ResidentMatrix m = shape(rows, cols);
  m.sign_mantissa =
      reinterpret_cast<std::uint8_t*>(round_up(reinterpret_cast<std::uint64_t>(memory), matrix_alignment(bytes)));
  m.places.first = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(m.sign_mantissa) >> 26);
  m.streams = m.sign_mantissa + align_section(bytes.sign_mantissa);
  const std::uint8_t* const offsets = m.streams + align_section(bytes.streams);
  m.block_offsets = reinterpret_cast<const std::uint32_t*>(offsets);
  m.table = reinterpret_cast<const std::uint32_t*>(offsets + align_section(bytes.offsets));
  m.claims = reinterpret_cast<std::uint32_t*>(const_cast<std::uint8_t*>(offsets) + align_section(bytes.offsets) +
                                              align_section(bytes.table));
  m.max_block_bytes = max_block_bytes;
  return m;
}

}  // namespace glyd::runner
