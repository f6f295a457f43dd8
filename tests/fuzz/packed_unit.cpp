// The decoder of packed matrices. Input: an even byte, then a packed matrix; or an odd byte, a byte for the unit's
// shape, a serialized code with its length before it, sign+mantissa bytes and a unit. What is accepted survives a round
// trip.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "codec/pack.h"
#include "codec/unpack.h"

using namespace glyd;
using codec::UnitGrid;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_matrix(std::span<const std::uint8_t> input, bool pack_again) {
  // A copy of the exact size, so that reads behind it are seen.
  const std::unique_ptr<std::byte[]> copy(new std::byte[input.size()]);
  for (std::size_t i = 0; i < input.size(); ++i) copy[i] = static_cast<std::byte>(input[i]);
  ThreadPool one(1);
  const codec::Unpacker unpacker({copy.get(), input.size()}, "fuzz");
  const UnitGrid grid = unpacker.grid();
  std::vector<Bf16> weights(grid.rows * grid.cols), again(weights.size());
  unpacker.unpack(weights, one);
  require(unpacker.stats().total_bytes == input.size());
  if (!pack_again) return;
  const auto packed = codec::pack(grid, weights, {codec::kCodeBits, -1e9}, one);
  require(packed.has_value());
  codec::Unpacker(*packed, "fuzz").unpack(again, one);
  require(again == weights);
}

void check_unit(std::span<const std::uint8_t> input) {
  if (input.size() < 3) return;
  const std::uint32_t rows = 1 + input[0] % 16, groups = 1 + (input[0] >> 4) % 8;
  const std::size_t code_bytes = input[1] | static_cast<std::size_t>(input[2]) << 8;
  input = input.subspan(3);
  if (input.size() < code_bytes + std::size_t{groups} * codec::kGroupBytes) return;
  const codec::PairCode code = codec::PairCode::parse(input.first(code_bytes), "fuzz");
  const std::vector<std::uint8_t> serialized = code.serialize();
  require(std::equal(serialized.begin(), serialized.end(), input.begin(),
                     input.begin() + static_cast<std::ptrdiff_t>(code_bytes)));
  const auto sign_mantissa = input.subspan(code_bytes, groups * codec::kGroupBytes);
  const auto rest = input.subspan(code_bytes + sign_mantissa.size());
  const std::vector<std::uint8_t> unit(rest.begin(), rest.end());
  std::uint16_t tile[codec::kUnitWeights];
  codec::UnitDecoder(code).decode(sign_mantissa, unit, rows, groups * codec::kGroupCols, tile);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    if (data[0] % 2 == 0) {
      check_matrix({data + 1, size - 1}, data[0] % 4 == 0);
    } else {
      check_unit({data + 1, size - 1});
    }
  } catch (const Error& e) {
    require(e.code() == Code::Model);
  }
  return 0;
}
