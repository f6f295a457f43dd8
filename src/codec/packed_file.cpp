#include "codec/packed_file.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "codec/packed_part.h"
#include "codec/unpack.h"

namespace glyd::codec {
namespace {

constexpr std::uint64_t kPieceWeights = 1 << 20;  // decoded at a time, about
constexpr std::uint64_t kWindowBytes = 1 << 20;   // of the streams, looked through at a time

}  // namespace

PackedTensor::PackedTensor(const io::Safetensors& file, const io::Tensor& tensor)
    : file_(&file),
      tensor_(&tensor),
      what_(fmt::format("{}: tensor {}", printable(file.path().native()), quote(tensor.name))) {
  if (tensor.dtype != io::Dtype::U8 || tensor.shape.size() != 1) {
    fail(Code::Model, "{} is {} of shape {}; a packed matrix is U8 in one dimension", what_,
         io::dtype_name(tensor.dtype), io::shape_text(tensor.shape));
  }
  std::vector<std::byte> start(std::min<std::uint64_t>(sizeof(PackedHeader), bytes()));
  file.read(tensor, 0, start);
  header_ = read_header(start, bytes(), what_);
  grid_ = {header_.rows, header_.cols};
  at_ = section_offsets(grid_, header_.code_bytes, header_.stream_bytes);
  code_.resize(header_.code_bytes);
  file.read(tensor, at_.code, code_);

  tile_words_.resize(grid_.row_tiles());
  file.read(tensor, at_.tile_sizes, std::as_writable_bytes(std::span(tile_words_)));
  tile_offsets_.reserve(tile_words_.size() + 1);
  tile_offsets_.push_back(0);
  for (const std::uint32_t words : tile_words_)
    tile_offsets_.push_back(tile_offsets_.back() + 4 * std::uint64_t{words});
  if (tile_offsets_.back() != header_.stream_bytes) {
    fail(Code::Model,
         "{}: the row tiles' sizes add up to {} bytes and not to the {} of the streams; the file is damaged", what_,
         tile_offsets_.back(), header_.stream_bytes);
  }
}

int PackedTensor::longest_word() const {
  return PairCode::parse({reinterpret_cast<const std::uint8_t*>(code_.data()), code_.size()}, what_).bits();
}

void PackedTensor::read_packed(std::uint64_t offset, std::span<std::byte> out) const {
  file_->read(*tensor_, offset, out);
}

// Sizes of all units in 4-byte words, read once.
std::span<const std::uint16_t> PackedTensor::unit_words() const {
  const std::lock_guard lock(units_mutex_);
  if (unit_words_.empty()) unit_words_ = find_units();
  return unit_words_;
}

// A unit tells its size and so where the next one begins: the streams are gone through from their start to their end.
std::vector<std::uint16_t> PackedTensor::find_units() const {
  static_assert(unit_bytes(decode_unit_header(~0u)) / 4 <= 0xFFFF);
  std::vector<std::uint16_t> units;
  units.reserve(grid_.units());
  std::vector<std::byte> window(std::min(kWindowBytes, header_.stream_bytes));
  std::uint64_t window_begin = 0, window_end = 0, at = 0;  // in the stream section
  for (std::uint64_t tile = 0; tile < grid_.row_tiles(); ++tile) {
    const std::uint64_t tile_end = tile_offsets_[tile + 1];
    for (std::uint64_t block = 0; block < grid_.col_blocks(); ++block) {
      std::uint32_t word = 0, size = sizeof(word);
      if (tile_end - at >= sizeof(word)) {
        if (at + sizeof(word) > window_end) {
          window_begin = at;
          window_end = std::min(at + window.size(), header_.stream_bytes);
          file_->read(*tensor_, at_.streams + at, std::span(window).first(window_end - at));
        }
        std::memcpy(&word, window.data() + (at - window_begin), sizeof(word));
        size = unit_bytes(decode_unit_header(word));
      }
      if (size > tile_end - at) {
        fail(Code::Model, "{}: row tile {} ends inside a unit; the file is damaged", what_, tile);
      }
      units.push_back(static_cast<std::uint16_t>(size / 4));
      at += size;
    }
    if (at != tile_end) {
      fail(Code::Model, "{}: row tile {} is longer than its units; the file is damaged", what_, tile);
    }
  }
  return units;
}

void PackedTensor::read_rows(std::uint64_t first, std::uint64_t rows, std::span<Bf16> out) const {
  read_columns(first, rows, {0, grid_.cols}, out);
}

void PackedTensor::read_columns(std::uint64_t first, std::uint64_t rows, Range cols, std::span<Bf16> out) const {
  if (first > grid_.rows || rows > grid_.rows - first || cols.begin > cols.end || cols.end > grid_.cols ||
      out.size() != rows * cols.size()) {
    fail(Code::Runtime, "{}: rows [{}, +{}), columns [{}, {}) into {} values asked for, it is {} x {}", what_, first,
         rows, cols.begin, cols.end, out.size(), grid_.rows, grid_.cols);
  }
  if (out.empty()) return;
  // Whole column blocks and row tiles are decoded, as a packed matrix of their own.
  const Range blocks{cols.begin / kBlockCols * kBlockCols,
                     std::min(grid_.cols, (cols.end + kBlockCols - 1) / kBlockCols * kBlockCols)};
  const std::uint64_t end = first + rows,
                      piece = kTileRows * std::max<std::uint64_t>(1, kPieceWeights / kTileRows / blocks.size());
  std::vector<Bf16> tile;  // of which only some rows or columns are wanted
  for (std::uint64_t begin = first / kTileRows * kTileRows; begin < end; begin += piece) {
    const Range taken{begin, std::min({begin + piece, (end + kTileRows - 1) / kTileRows * kTileRows, grid_.rows})};
    const std::vector<std::byte> packed = PackedPart::of(*this, {&taken, 1}, blocks).value().read();
    const Unpacker unpacker(packed, fmt::format("{} from row tile {}", what_, begin / kTileRows));
    for (std::uint64_t i = 0; i < unpacker.grid().row_tiles(); ++i) {
      const std::uint64_t row = begin + i * kTileRows, row_end = row + unpacker.grid().tile_rows(i);
      const std::uint64_t from = std::max(row, first), to = std::min(row_end, end);
      const std::span<Bf16> wanted = out.subspan((from - first) * cols.size(), (to - from) * cols.size());
      if (to - from == row_end - row && cols == blocks) {
        unpacker.unpack_tile(i, wanted);
        continue;
      }
      tile.resize((row_end - row) * blocks.size());
      unpacker.unpack_tile(i, tile);
      for (std::uint64_t r = from; r < to; ++r) {
        std::copy_n(tile.data() + (r - row) * blocks.size() + (cols.begin - blocks.begin), cols.size(),
                    wanted.data() + (r - from) * cols.size());
      }
    }
  }
}

}  // namespace glyd::codec
