#include "codec/packed_file.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "codec/unpack.h"

namespace glyd::codec {
namespace {

constexpr std::uint64_t kPieceWeights = 1 << 20;  // decoded at a time, about

// The header's numbers are used to find the sections, so none may make their sum overflow.
bool is_plausible(const PackedHeader& h, std::uint64_t bytes) {
  const UnitGrid grid{h.rows, h.cols};
  return h.rows > 0 && h.cols > 0 && h.rows <= bytes && h.cols <= bytes && h.stream_bytes <= bytes &&
         grid.groups() <= bytes / kGroupBytes / grid.row_tiles() &&
         section_offsets(grid, h.code_bytes, h.stream_bytes).end == bytes;
}

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
  if (start.size() == sizeof(header_)) std::memcpy(&header_, start.data(), sizeof(header_));
  if (std::memcmp(header_.magic, kMagic, sizeof(header_.magic)) != 0 || header_.version != kVersion) {
    Unpacker(start, what_);  // throws and says what it is instead
  }
  if (!is_plausible(header_, bytes())) {
    fail(Code::Model, "{}: the header of the packed matrix ({} x {}) disagrees with its {} bytes; the file is damaged",
         what_, header_.rows, header_.cols, bytes());
  }
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

void PackedTensor::read_packed(std::span<std::byte> out) const {
  if (out.size() != bytes()) fail(Code::Runtime, "{}: a buffer of {} bytes for {}", what_, out.size(), bytes());
  file_->read(*tensor_, 0, out);
}

int PackedTensor::longest_word() const {
  return PairCode::parse({reinterpret_cast<const std::uint8_t*>(code_.data()), code_.size()}, what_).bits();
}

void PackedTensor::read_packed(std::uint64_t offset, std::span<std::byte> out) const {
  file_->read(*tensor_, offset, out);
}

// Row tiles [first, first + count) as a packed matrix of their own: the format lets any run of tiles be one.
std::vector<std::byte> PackedTensor::read_tiles(std::uint64_t first, std::uint64_t count) const {
  PackedHeader header = header_;
  header.rows = std::min(grid_.rows - first * kTileRows, count * kTileRows);
  header.stream_bytes = tile_offsets_[first + count] - tile_offsets_[first];
  const UnitGrid grid{header.rows, header.cols};
  const SectionOffsets at = section_offsets(grid, header.code_bytes, header.stream_bytes);
  std::vector<std::byte> packed(at.end);
  const std::span<std::byte> all(packed);
  std::memcpy(packed.data(), &header, sizeof(header));
  std::memcpy(packed.data() + at.code, code_.data(), code_.size());
  std::memcpy(packed.data() + at.tile_sizes, &tile_words_[first], 4 * count);
  file_->read(*tensor_, at_.sign_mantissa + grid_.sign_mantissa_offset(first, 0),
              all.subspan(at.sign_mantissa, grid.sign_mantissa_bytes()));
  file_->read(*tensor_, at_.streams + tile_offsets_[first], all.subspan(at.streams));
  return packed;
}

void PackedTensor::read_rows(std::uint64_t first, std::uint64_t rows, std::span<Bf16> out) const {
  if (first > grid_.rows || rows > grid_.rows - first || out.size() / grid_.cols != rows ||
      out.size() % grid_.cols != 0) {
    fail(Code::Runtime, "{}: rows [{}, +{}) into {} values asked for, it is {} x {}", what_, first, rows, out.size(),
         grid_.rows, grid_.cols);
  }
  if (rows == 0) return;
  const std::uint64_t end = first + rows, end_tile = (end + kTileRows - 1) / kTileRows;
  const std::uint64_t piece = std::max<std::uint64_t>(1, kPieceWeights / (kTileRows * grid_.cols));
  std::vector<Bf16> whole;  // a tile of which only some rows are wanted
  for (std::uint64_t begin_tile = first / kTileRows; begin_tile < end_tile; begin_tile += piece) {
    const std::uint64_t count = std::min(piece, end_tile - begin_tile);
    const std::vector<std::byte> packed = read_tiles(begin_tile, count);
    const Unpacker unpacker(packed, fmt::format("{} from row tile {}", what_, begin_tile));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t row = (begin_tile + i) * kTileRows, row_end = row + grid_.tile_rows(begin_tile + i);
      const std::uint64_t from = std::max(row, first), to = std::min(row_end, end);
      const std::span<Bf16> wanted = out.subspan((from - first) * grid_.cols, (to - from) * grid_.cols);
      if (to - from == row_end - row) {
        unpacker.unpack_tile(i, wanted);
        continue;
      }
      whole.resize((row_end - row) * grid_.cols);
      unpacker.unpack_tile(i, whole);
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>((from - row) * grid_.cols), wanted.size(),
                  wanted.begin());
    }
  }
}

}  // namespace glyd::codec
