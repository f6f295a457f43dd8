#pragma once
// The resident layout made on the host, plainly: what the gather kernel is compared with.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/packing/resident.h"

namespace glyd::cuda {

struct HostResident {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint8_t> sign_mantissa, streams;
  std::vector<std::uint32_t> block_offsets, table;
  std::uint32_t max_block_bytes = 0;
};

// `packed`: a packed matrix in the file's format, of this program (nothing is checked). With the places of a device
// that nothing is known of.
HostResident gather_reference(std::span<const std::byte> packed);

}  // namespace glyd::cuda
