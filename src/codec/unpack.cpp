#include "codec/unpack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace glyd::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is this decoder");

using Words = std::uint32_t __attribute__((vector_size(16)));  // four pairs of weights

constexpr std::uint32_t kExponentMask = 0x7F807F80;
constexpr std::uint32_t kMaxStreamBytes = kUnitWeights / 2 * kMaxCodeBits / 8;
// A lane's streams are followed for their whole length before their ends are compared, so a damaged one may run past
// the unit by as much as a stream is long, and by the 8 bytes that are read at a time.
constexpr std::uint32_t kMargin = kBlockCols / 8 * kMaxCodeBits / 8 + 8;

std::uint64_t load64(const std::uint8_t* p) {
  std::uint64_t x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
std::uint32_t load32(const std::uint8_t* p) {
  std::uint32_t x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
std::uint16_t load16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }

// Sign and mantissa of four pairs, from two bytes in the lower half of each word to their places in a bf16 pair.
Words spread(Words two_bytes) {
  return (two_bytes & 0x7F) | (two_bytes & 0x80) << 8 | (two_bytes & 0x7F00) << 8 | (two_bytes & 0x8000) << 16;
}

// The bits at which the lanes of a unit start, for a header that was checked; false when one lies outside the bits.
bool read_starts(std::span<const std::uint8_t> unit, const UnitHeader& header, std::uint32_t (&starts)[kLanes]) {
  const std::uint8_t* p = unit.data() + 4;
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    starts[lane] = header.wide ? load16(p + 2 * lane) : header.words * lane + header.words / 2 + p[lane] - kStartBias;
    if (starts[lane] > 32 * header.words) return false;
  }
  return true;
}

// Puts the listed weights in their places, where the stream has to have left a positive zero.
const char* place_exceptions(const UnitHeader& header, const std::uint8_t* list, std::uint32_t rows, std::uint32_t cols,
                             std::uint16_t* tile) {
  std::uint32_t mask = 0;
  std::int64_t last = -1;
  for (std::uint32_t i = 0; i < header.exceptions; ++i) {
    const std::uint32_t entry = load32(list + 4 * std::size_t{i}), position = entry >> 16;
    if (position <= last) return "exceptions are out of order";
    last = position;
    if (position >= kUnitWeights || row_of(position) >= rows || col_of(position) >= cols)
      return "an exception lies outside the matrix";
    std::uint16_t& weight = tile[row_of(position) * kBlockCols + col_of(position)];
    if (weight != 0) return "an exception stands where the stream has a weight";
    weight = static_cast<std::uint16_t>(entry);
    mask |= 1u << (position >> 9);
  }
  return mask == header.group_mask ? nullptr : "the groups that have exceptions are not those of the header";
}

}  // namespace

UnitDecoder::UnitDecoder(const PairCode& code)
    : index_bits_(std::max(code.bits(), 1)), forward_(code.decode_table(index_bits_)), backward_(forward_.size()) {
  for (std::uint32_t i = 0; i < forward_.size(); ++i) backward_[mirror_bits(i, index_bits_)] = forward_[i];
}

const char* UnitDecoder::decode(std::span<const std::uint8_t> sign_mantissa, std::span<const std::uint8_t> unit,
                                std::uint32_t rows, std::uint32_t cols, std::uint16_t* tile) const {
  if (unit.size() < exceptions_offset(UnitHeader{})) return "the unit is too short for its header";
  const UnitHeader header = decode_unit_header(load32(unit.data()));
  if (unit_bytes(header) != unit.size()) return "the unit's size is not that of its parts";
  const std::uint32_t bit_bytes = 4 * header.words;
  std::uint32_t starts[kLanes];
  if (bit_bytes > kMaxStreamBytes || !read_starts(unit, header, starts)) return "a lane starts outside the unit";
  std::uint8_t copy[kMargin + kMaxStreamBytes + kMargin];
  std::uint8_t* const bits = copy + kMargin;
  std::memset(copy, 0, kMargin);
  std::memcpy(bits, unit.data() + bits_offset(header), bit_bytes);
  std::memset(bits + bit_bytes, 0, kMargin);

  const std::uint32_t groups = (cols + kGroupCols - 1) / kGroupCols;
  const std::uint32_t* const forward = forward_.data();
  const std::uint32_t* const backward = backward_.data();
  const std::uint32_t index_mask = (1u << index_bits_) - 1;
  const int top_shift = 64 - index_bits_;
  std::int64_t end = 0;  // of the lane before, where this lane's backward stream has to end
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    std::int64_t up = starts[lane], down = up;
    std::uint16_t* row = tile + lane / 4 * kBlockCols + lane % 4 * 8;
    const std::uint8_t* bytes = sign_mantissa.data() + lane * 16;
    for (std::uint32_t group = 0; group < groups; ++group, row += kGroupCols, bytes += kGroupBytes) {
      // Four pairs of each stream: at most 48 bits of the 57 that an unaligned load of 8 bytes is good for. The lowest
      // six bits of a table entry are the code length, so an entry is its own shift count.
      std::uint64_t a = load64(bits + (up >> 3)) >> (up & 7);
      std::uint64_t b = load64(bits + ((down + 7) >> 3) - 8) << (-down & 7);
      Words pairs_a, pairs_b;
      std::uint32_t sum_a = 0, sum_b = 0;
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t entry_a = forward[a & index_mask], entry_b = backward[b >> top_shift];
        a >>= entry_a & 63;
        b <<= entry_b & 63;
        sum_a += entry_a;
        sum_b += entry_b;
        pairs_a[i] = entry_a;
        pairs_b[i] = entry_b;
      }
      up += sum_a & 127;
      down -= sum_b & 127;
      Words word;
      std::memcpy(&word, bytes, sizeof(word));
      pairs_a = (pairs_a & kExponentMask) | spread(word & 0xFFFF);
      pairs_b = (pairs_b & kExponentMask) | spread(word >> 16);
      std::memcpy(row, &pairs_a, sizeof(pairs_a));
      std::memcpy(row + 8 * kBlockCols, &pairs_b, sizeof(pairs_b));
    }
    if (down != end) return "a lane's stream ends in the wrong place";
    end = up;
  }
  if ((end + 31) / 32 != header.words) return "the last lane's stream ends in the wrong place";
  if (end % 32 != 0 && load32(bits + end / 32 * 4) >> end % 32 != 0) return "padding is not zero";
  return place_exceptions(header, unit.data() + exceptions_offset(header), rows, cols, tile);
}

PackedHeader read_header(std::span<const std::byte> start, std::uint64_t size, std::string_view what) {
  PackedHeader header;
  if (start.size() < sizeof(header)) {
    fail(Code::Model, "{}: {} bytes, but a packed matrix has a header of {}; the file is damaged", what, size,
         sizeof(header));
  }
  std::memcpy(&header, start.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) {
    fail(Code::Model, "{}: not a packed matrix (it does not begin with {})", what, kMagic);
  }
  if (header.version != kVersion) {
    fail(Code::Model,
         "{}: packed matrix of version {}, and this program reads version {}; use the program that wrote it or pack "
         "the model again",
         what, header.version, kVersion);
  }
  // Numbers that could overflow below are refused first: nothing in a file can be longer than the file.
  const UnitGrid grid{header.rows, header.cols};
  const bool plausible =
      grid.rows > 0 && grid.cols > 0 && grid.rows <= size && grid.cols <= size &&
      grid.groups() <= size / kGroupBytes / grid.row_tiles() && header.stream_bytes <= size &&
      std::all_of(std::begin(header.reserved), std::end(header.reserved), [](std::uint64_t x) { return x == 0; });
  if (!plausible || section_offsets(grid, header.code_bytes, header.stream_bytes).end != size) {
    fail(Code::Model, "{}: the header of the packed matrix ({} x {}) disagrees with its {} bytes; the file is damaged",
         what, header.rows, header.cols, size);
  }
  return header;
}

namespace {

// The sections of the packed matrix in `bytes`, sizes checked.
PackedMatrix find_sections(std::span<const std::byte> bytes, const std::string& what) {
  const PackedHeader header = read_header(bytes, bytes.size(), what);
  PackedMatrix matrix;
  matrix.grid = {header.rows, header.cols};
  matrix.code_bytes = header.code_bytes;
  matrix.stream_bytes = header.stream_bytes;
  const SectionOffsets at = section_offsets(matrix.grid, header.code_bytes, header.stream_bytes);
  const auto* base = reinterpret_cast<const std::uint8_t*>(bytes.data());
  matrix.code = base + at.code;
  matrix.tile_sizes = base + at.tile_sizes;
  matrix.sign_mantissa = base + at.sign_mantissa;
  matrix.streams = base + at.streams;
  return matrix;
}

}  // namespace

Unpacker::Unpacker(std::span<const std::byte> bytes, std::string what)
    : what_(std::move(what)),
      matrix_(find_sections(bytes, what_)),
      code_(PairCode::parse({matrix_.code, matrix_.code_bytes}, what_)),
      decoder_(code_) {
  const std::uint64_t tiles = matrix_.grid.row_tiles();
  tile_offsets_.reserve(tiles + 1);
  tile_offsets_.push_back(0);
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    tile_offsets_.push_back(tile_offsets_.back() + 4 * std::uint64_t{load32(matrix_.tile_sizes + 4 * tile)});
  }
  if (tile_offsets_.back() != matrix_.stream_bytes) {
    fail(Code::Model,
         "{}: the row tiles' sizes add up to {} bytes and not to the {} of the stream section; the file is damaged",
         what_, tile_offsets_.back(), matrix_.stream_bytes);
  }
}

std::vector<std::span<const std::uint8_t>> Unpacker::tile_units(std::uint64_t tile) const {
  std::span<const std::uint8_t> rest(matrix_.streams + tile_offsets_[tile],
                                     tile_offsets_[tile + 1] - tile_offsets_[tile]);
  std::vector<std::span<const std::uint8_t>> units(matrix_.grid.col_blocks());
  for (std::span<const std::uint8_t>& unit : units) {
    const std::size_t size = rest.size() < 4 ? 4 : unit_bytes(decode_unit_header(load32(rest.data())));
    if (size > rest.size()) fail(Code::Model, "{}: row tile {} ends inside a unit; the file is damaged", what_, tile);
    unit = rest.first(size);
    rest = rest.subspan(size);
  }
  if (!rest.empty()) fail(Code::Model, "{}: row tile {} is longer than its units; the file is damaged", what_, tile);
  return units;
}

void Unpacker::unpack_tile(std::uint64_t tile, std::span<Bf16> out) const {
  const UnitGrid& grid = matrix_.grid;
  const std::uint32_t rows = tile < grid.row_tiles() ? grid.tile_rows(tile) : 0;
  if (rows == 0 || out.size() != rows * grid.cols)
    fail(Code::Runtime, "{}: a wrong buffer for row tile {}", what_, tile);
  alignas(16) std::uint16_t weights[kUnitWeights];
  const std::vector<std::span<const std::uint8_t>> units = tile_units(tile);
  for (std::uint64_t block = 0; block < grid.col_blocks(); ++block) {
    const std::uint32_t cols = grid.block_cols(block);
    const std::span<const std::uint8_t> sign_mantissa(matrix_.sign_mantissa + grid.sign_mantissa_offset(tile, block),
                                                      grid.block_groups(block) * std::size_t{kGroupBytes});
    if (const char* problem = decoder_.decode(sign_mantissa, units[block], rows, cols, weights)) {
      fail(Code::Model, "{}: row tile {}, column block {}: {}; the file is damaged", what_, tile, block, problem);
    }
    for (std::uint32_t r = 0; r < rows; ++r) {
      Bf16* to = out.data() + r * grid.cols + block * kBlockCols;
      std::memcpy(static_cast<void*>(to), weights + r * kBlockCols, cols * sizeof(Bf16));
    }
  }
}

void Unpacker::unpack(std::span<Bf16> out, ThreadPool& threads) const {
  const UnitGrid& grid = matrix_.grid;
  if (out.size() / grid.rows != grid.cols || out.size() % grid.rows != 0)
    fail(Code::Runtime, "{}: a wrong buffer", what_);
  threads.parallel_for(grid.row_tiles(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t tile = begin; tile < end; ++tile) {
      unpack_tile(tile, out.subspan(tile * kTileRows * grid.cols, grid.tile_rows(tile) * grid.cols));
    }
  });
}

PackStats Unpacker::stats() const {
  const UnitGrid& grid = matrix_.grid;
  PackStats s;
  s.weights = grid.rows * grid.cols;
  s.total_bytes = section_offsets(grid, matrix_.code_bytes, matrix_.stream_bytes).end;
  s.sign_mantissa_bytes = grid.sign_mantissa_bytes();
  s.offset_bytes = 4 * grid.row_tiles();
  for (std::uint64_t tile = 0; tile < grid.row_tiles(); ++tile) {
    for (const std::span<const std::uint8_t> unit : tile_units(tile)) {
      const UnitHeader h = decode_unit_header(load32(unit.data()));
      s.exceptions += h.exceptions;
      s.wide_units += h.wide;
      s.offset_bytes += exceptions_offset(h);
      s.exponent_bytes += 4 * h.words;
    }
  }
  s.table_bytes = s.total_bytes - s.sign_mantissa_bytes - s.offset_bytes - s.exponent_bytes - 4 * s.exceptions;
  return s;
}

}  // namespace glyd::codec
