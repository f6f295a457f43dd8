#include "codec/pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "codec/code_choice.h"

namespace glyd::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is this encoder");

using Words = std::uint32_t __attribute__((vector_size(16)));  // four pairs of weights

constexpr std::uint32_t kMaxStreamBytes = kUnitWeights / 2 * kMaxCodeBits / 8;

// A unit's weights, row-major and filled up to 16 rows and whole groups with weights that cost little.
struct Tile {
  alignas(16) std::uint16_t rows[kTileRows][kBlockCols];
  std::uint32_t groups;
};

// The unit's real weights lie at `weights`, rows `stride` weights apart.
void load_tile(Tile& tile, const Bf16* weights, std::uint64_t stride, std::uint32_t rows, std::uint32_t cols,
               const PairEncoder& encoder) {
  tile.groups = (cols + kGroupCols - 1) / kGroupCols;
  const std::uint32_t width = tile.groups * kGroupCols;
  // Sign and mantissa of filling are 0: the exponents alone.
  const auto first = static_cast<std::uint16_t>(encoder.filler_pair() >> 8 << 7);
  const auto second = static_cast<std::uint16_t>((encoder.filler_pair() & 255) << 7);
  for (std::uint32_t r = 0; r < kTileRows; ++r) {
    std::uint16_t* row = tile.rows[r];
    const std::uint32_t real = r < rows ? cols : 0;
    if (real > 0) std::memcpy(row, weights + r * stride, real * sizeof(Bf16));
    for (std::uint32_t c = real; c < width; ++c) row[c] = c % 2 ? second : first;
    if (real % 2 == 1) row[real] = static_cast<std::uint16_t>(encoder.filler_after(row[real - 1] >> 7 & 255) << 7);
  }
}

// Sign and mantissa of four pairs: two bytes in the lower half of each word.
Words sign_mantissa(Words pairs) {
  return (pairs & 0x7F) | (pairs >> 8 & 0x80) | (pairs >> 8 & 0x7F00) | (pairs >> 16 & 0x8000);
}

Words load_words(const std::uint16_t* weights) {
  Words w;
  std::memcpy(&w, weights, sizeof(w));
  return w;
}

void write_sign_mantissa(const Tile& tile, std::uint8_t* out) {
  for (std::uint32_t group = 0; group < tile.groups; ++group) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane, out += 16) {
      const std::uint32_t col = group * kGroupCols + lane % 4 * 8;
      const Words word = sign_mantissa(load_words(&tile.rows[lane / 4][col])) |
                         sign_mantissa(load_words(&tile.rows[lane / 4 + 8][col])) << 16;
      std::memcpy(out, &word, sizeof(word));
    }
  }
}

// Bits one after another, the first lowest. put() leaves at most 7 bits pending and stores 8 bytes, so the buffer needs
// 8 bytes behind the last bit.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* out) : begin_(out), out_(out) {}
  std::uint32_t position() const { return static_cast<std::uint32_t>(out_ - begin_) * 8 + pending_; }
  void put(std::uint64_t bits, std::uint32_t count) {  // count <= 56
    buffer_ |= bits << pending_;
    pending_ += count;
    std::memcpy(out_, &buffer_, sizeof(buffer_));
    out_ += pending_ / 8;
    buffer_ >>= pending_ & ~7u;
    pending_ &= 7;
  }

 private:
  std::uint8_t* begin_;
  std::uint8_t* out_;
  std::uint64_t buffer_ = 0;
  std::uint32_t pending_ = 0;
};

// Encodes units of one matrix; one for each thread.
class UnitEncoder {
 public:
  explicit UnitEncoder(const PairEncoder& encoder) : encoder_(encoder) {}

  // Writes the unit's sign+mantissa bytes to `sign_mantissa` and appends its stream part to `streams`.
  void encode(const Tile& tile, std::uint8_t* sign_mantissa, std::vector<std::uint8_t>& streams) {
    write_sign_mantissa(tile, sign_mantissa);
    exceptions_.clear();
    BitWriter bits(bits_);
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      // Both streams of a lane leave from one point: row g + 8 towards lower bits, row g towards higher ones.
      for (std::uint32_t group = tile.groups; group-- > 0;) put_row<true>(tile, group, lane, bits);
      starts_[lane] = bits.position();
      for (std::uint32_t group = 0; group < tile.groups; ++group) put_row<false>(tile, group, lane, bits);
    }
    UnitHeader header{(bits.position() + 31) / 32, false, static_cast<std::uint32_t>(exceptions_.size()), 0};
    bits.put(0, 32);  // the last word's padding
    std::sort(exceptions_.begin(), exceptions_.end());
    for (const std::uint32_t e : exceptions_) {
      sign_mantissa[e >> 16] = 0;
      header.group_mask |= 1u << (e >> 25);
    }
    append(header, streams);
  }

 private:
  // Four pairs of one lane and row; mirrored: the last pair first, words with their bits mirrored.
  template <bool mirrored>
  void put_row(const Tile& tile, std::uint32_t group, std::uint32_t lane, BitWriter& bits) {
    const std::uint32_t row = lane / 4 + (mirrored ? 8 : 0), col = group * kGroupCols + lane % 4 * 8;
    const Words weights = load_words(&tile.rows[row][col]);
    const Words pairs = (weights << 1 & 0xFF00) | (weights >> 23 & 0xFF);
    const std::uint32_t* entries = encoder_.entries();
    const std::uint32_t e[4] = {entries[pairs[0]], entries[pairs[1]], entries[pairs[2]], entries[pairs[3]]};
    if ((e[0] | e[1] | e[2] | e[3]) & kNeedsCare) take_exceptions(tile, row, col, e);
    std::uint64_t word = 0;
    std::uint32_t length = 0;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t entry = e[mirrored ? 3 - i : i];
      word |= static_cast<std::uint64_t>(entry >> (mirrored ? 12 : 0) & 0xFFF) << length;
      length += entry >> 24 & 15;
    }
    bits.put(word, length);
  }

  void take_exceptions(const Tile& tile, std::uint32_t row, std::uint32_t col, const std::uint32_t (&entries)[4]) {
    for (const std::uint32_t e : entries) {
      if (e & kNotCoded)
        fail(Code::Model, "the weights changed while they were packed; pack them again when nothing writes to them");
      if (e & kFirstIsException) exceptions_.push_back(exception_entry(position_of(row, col), tile.rows[row][col]));
      if (e & kSecondIsException)
        exceptions_.push_back(exception_entry(position_of(row, col + 1), tile.rows[row][col + 1]));
      col += 2;
    }
  }

  void append(UnitHeader header, std::vector<std::uint8_t>& streams) const {
    std::array<std::uint8_t, kLanes> narrow;
    std::array<std::uint16_t, kLanes> wide;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t expected = header.words * lane + header.words / 2;
      const std::uint32_t deviation = starts_[lane] + kStartBias - expected;
      header.wide |= deviation > 255;
      narrow[lane] = static_cast<std::uint8_t>(deviation);
      wide[lane] = static_cast<std::uint16_t>(starts_[lane]);
    }
    const std::uint32_t word = encode_unit_header(header);
    const std::size_t begin = streams.size();
    streams.resize(begin + unit_bytes(header));
    std::uint8_t* unit = &streams[begin];
    std::memcpy(unit, &word, sizeof(word));
    std::memcpy(unit + sizeof(word), header.wide ? static_cast<const void*>(wide.data()) : narrow.data(),
                start_bytes(header));
    if (!exceptions_.empty()) std::memcpy(unit + exceptions_offset(header), exceptions_.data(), 4 * exceptions_.size());
    std::memcpy(unit + bits_offset(header), bits_, 4 * header.words);
  }

  const PairEncoder& encoder_;
  std::uint8_t bits_[kMaxStreamBytes + 16];
  std::uint32_t starts_[kLanes];
  std::vector<std::uint32_t> exceptions_;  // list entries of the unit
};

// Rows of a tile from the source, in a buffer that is reused.
std::span<const Bf16> read_tile(const UnitGrid& grid, const RowSource& source, std::uint64_t tile,
                                std::vector<Bf16>& buffer, Progress& progress) {
  const std::uint64_t rows = grid.tile_rows(tile);
  buffer.resize(rows * grid.cols);
  source(tile * kTileRows, rows, buffer);
  progress.advance(buffer.size() * sizeof(Bf16));
  return buffer;
}

PairHistogram count_pairs(const UnitGrid& grid, const RowSource& source, ThreadPool& threads, Progress& progress) {
  // Ranges of about two million weights, or an even share where there are fewer: each costs a histogram of its own.
  const std::uint64_t tile_weights = kTileRows * grid.cols;
  const std::uint64_t share = grid.row_tiles() / static_cast<std::uint64_t>(threads.size()) + 1;
  const std::uint64_t grain = std::clamp<std::uint64_t>((2 << 20) / tile_weights, 1, share);
  PairHistogram sum;
  std::mutex mutex;
  threads.parallel_for(grid.row_tiles(), grain, [&](std::size_t begin, std::size_t end) {
    PairHistogram part;
    std::vector<Bf16> buffer;
    for (std::size_t tile = begin; tile < end; ++tile) {
      std::span<const Bf16> rows = read_tile(grid, source, tile, buffer, progress);
      for (; !rows.empty(); rows = rows.subspan(grid.cols)) part.add_row(rows.first(grid.cols));
    }
    const std::lock_guard lock(mutex);
    sum.add(part);
  });
  return sum;
}

// One row tile: its sign+mantissa bytes go straight to their place, its units to `streams`.
void encode_tile(const UnitGrid& grid, std::uint64_t tile, std::span<const Bf16> weights,
                 const PairEncoder& pair_encoder, std::uint8_t* sign_mantissa, std::vector<std::uint8_t>& streams) {
  UnitEncoder encoder(pair_encoder);
  Tile unit;
  for (std::uint64_t block = 0; block < grid.col_blocks(); ++block) {
    load_tile(unit, weights.data() + block * kBlockCols, grid.cols, grid.tile_rows(tile), grid.block_cols(block),
              pair_encoder);
    encoder.encode(unit, sign_mantissa + grid.sign_mantissa_offset(tile, block), streams);
  }
}

}  // namespace

bool saves_enough(const UnitGrid& grid, double packed_bytes, const PackOptions& options) {
  return packed_bytes <=
         (1.0 - options.min_saving) * 2.0 * static_cast<double>(grid.rows) * static_cast<double>(grid.cols);
}

std::optional<PackPlan> plan_packing(const UnitGrid& grid, const PairHistogram& histogram, const PackOptions& options) {
  const double least = static_cast<double>(grid.sign_mantissa_bytes()) + histogram.entropy_bits() / 8;
  if (!saves_enough(grid, least, options)) return std::nullopt;
  PairCode code = choose_code(histogram, options.max_code_bits);
  PairEncoder encoder(code);
  const PairEncoder::Cost cost = encoder.cost(histogram);
  std::vector<std::uint8_t> code_bytes = code.serialize();
  const std::uint64_t stream_bytes =
      cost.stream_bits / 8 + cost.exceptions * kExceptionBits / 8 + grid.units() * exceptions_offset(UnitHeader{});
  const auto at = section_offsets(grid, static_cast<std::uint32_t>(code_bytes.size()), stream_bytes);
  if (!saves_enough(grid, static_cast<double>(at.end), options)) return std::nullopt;
  return PackPlan{std::move(code), std::move(encoder), std::move(code_bytes), at};
}

std::optional<std::vector<std::byte>> pack(const UnitGrid& grid, const RowSource& source, const PackOptions& options,
                                           ThreadPool& threads, Progress& progress) {
  if (grid.rows == 0 || grid.cols == 0) return std::nullopt;
  const PairHistogram histogram = count_pairs(grid, source, threads, progress);
  const std::optional<PackPlan> plan = plan_packing(grid, histogram, options);
  if (!plan) return std::nullopt;
  const SectionOffsets& at = plan->at;

  std::vector<std::byte> packed;
  packed.reserve(at.end + at.end / 64);  // padding and wide units; more of them only cost a copy
  packed.resize(at.streams);

  // Row tiles in batches of at least four million weights, so that only a batch's streams exist twice.
  const std::uint64_t batch =
      std::max<std::uint64_t>(4 * static_cast<std::uint64_t>(threads.size()), (4 << 20) / (kTileRows * grid.cols));
  for (std::uint64_t first = 0; first < grid.row_tiles(); first += batch) {
    std::vector<std::vector<std::uint8_t>> streams(std::min(batch, grid.row_tiles() - first));
    auto* sign_mantissa = reinterpret_cast<std::uint8_t*>(packed.data() + at.sign_mantissa);
    threads.parallel_for(streams.size(), 1, [&](std::size_t begin, std::size_t end) {
      std::vector<Bf16> buffer;
      for (std::size_t i = begin; i < end; ++i) {
        const std::span<const Bf16> weights = read_tile(grid, source, first + i, buffer, progress);
        encode_tile(grid, first + i, weights, plan->encoder, sign_mantissa, streams[i]);
      }
    });
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].size() / 4 > std::numeric_limits<std::uint32_t>::max())
        fail(Code::Model, "a row of {} weights is too long to pack", grid.cols);
      const auto words = static_cast<std::uint32_t>(streams[i].size() / 4);
      std::memcpy(packed.data() + at.tile_sizes + 4 * (first + i), &words, sizeof(words));
      const auto* p = reinterpret_cast<const std::byte*>(streams[i].data());
      packed.insert(packed.end(), p, p + streams[i].size());
    }
  }
  if (!saves_enough(grid, static_cast<double>(packed.size()), options)) return std::nullopt;

  PackedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  header.version = kVersion;
  header.code_bytes = static_cast<std::uint32_t>(plan->code_bytes.size());
  header.rows = grid.rows;
  header.cols = grid.cols;
  header.stream_bytes = packed.size() - at.streams;
  std::memcpy(packed.data(), &header, sizeof(header));
  std::memcpy(packed.data() + at.code, plan->code_bytes.data(), plan->code_bytes.size());
  return packed;
}

std::optional<std::vector<std::byte>> pack(const UnitGrid& grid, std::span<const Bf16> weights,
                                           const PackOptions& options, ThreadPool& threads) {
  const RowSource source = [&](std::uint64_t first_row, std::uint64_t rows, std::span<Bf16> out) {
    std::memcpy(static_cast<void*>(out.data()), weights.data() + first_row * grid.cols,
                rows * grid.cols * sizeof(Bf16));
  };
  Progress silent;
  return pack(grid, source, options, threads, silent);
}

}  // namespace glyd::codec
