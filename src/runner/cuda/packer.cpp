#include "runner/cuda/packer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/error.h"
#include "codec/unpack.h"
#include "runner/cuda/check.h"

namespace glyd::runner {
namespace {

using cuda::Problem;

constexpr const char* kWork = "making a matrix resident";

void to_device(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), kWork);
}

// Waits for the stream.
void to_host(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), kWork);
  check(cudaStreamSynchronize(stream), kWork);
}

// In the words of the CPU's decoder.
const char* describe(Problem problem) {
  switch (problem) {
    case Problem::LaneStart:
      return "a lane starts outside the unit";
    case Problem::StreamEnd:
      return "a lane's stream ends in the wrong place";
    case Problem::LastStreamEnd:
      return "the last lane's stream ends in the wrong place";
    case Problem::Padding:
      return "padding is not zero";
    case Problem::ExceptionOrder:
      return "exceptions are out of order";
    case Problem::ExceptionOutside:
      return "an exception lies outside the matrix";
    case Problem::ExceptionOnWeight:
      return "an exception stands where the stream has a weight";
    case Problem::ExceptionGroups:
      return "the groups that have exceptions are not those of the header";
    case Problem::None:
    case Problem::TileEndsInUnit:
    case Problem::TileTooLong:
      break;
  }
  return "unknown damage";
}

void fail_on_damage(const cuda::PackSummary& summary, const codec::UnitGrid& grid, std::string_view what) {
  if (summary.problem == 0) return;
  const auto problem = static_cast<Problem>(~summary.problem & 255);
  const std::uint64_t unit = ~summary.problem >> 8;
  const std::uint64_t tile = unit / grid.col_blocks(), block = unit % grid.col_blocks();
  if (problem == Problem::TileEndsInUnit)
    fail(Code::Model, "{}: row tile {} ends inside a unit; the file is damaged", what, tile);
  if (problem == Problem::TileTooLong)
    fail(Code::Model, "{}: row tile {} is longer than its units; the file is damaged", what, tile);
  fail(Code::Model, "{}: row tile {}, column block {}: {}; the file is damaged", what, tile, block, describe(problem));
}

}  // namespace

Packer::Scratch Packer::divide_scratch(std::uint8_t* memory, std::int64_t rows, std::int64_t cols) {
  const codec::UnitGrid grid{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)};
  cuda::ResidentMatrix shape;
  shape.rows = rows;
  shape.cols = cols;
  Scratch s{};
  const auto take = [&s, memory]<class T>(T*& part, std::uint64_t count) {
    if (memory != nullptr) part = reinterpret_cast<T*>(memory + s.bytes);
    s.bytes += (count * sizeof(T) + 255) / 256 * 256;
  };
  take(s.counts, cuda::kPairCounts + cuda::kLoneCounts);
  take(s.entries, cuda::kPairCounts);
  take(s.filler_after, cuda::kLoneCounts);
  take(s.table, cuda::kTableEntries);
  take(s.summary, 1);
  take(s.headers, grid.units());
  take(s.unit_offsets, grid.units());
  take(s.tile_offsets, grid.row_tiles() + 1);
  take(s.block_offsets, static_cast<std::uint64_t>(shape.blocks()) + 1);
  return s;
}

std::uint64_t Packer::scratch_bytes(std::int64_t rows, std::int64_t cols) {
  return divide_scratch(nullptr, rows, cols).bytes;
}

void Packer::begin(std::int64_t rows, std::int64_t cols) {
  parts_ = divide_scratch(static_cast<std::uint8_t*>(scratch_), rows, cols);
  if (parts_.bytes > scratch_bytes_) {
    fail(Code::Runtime, "packing {} x {} takes {} bytes of scratch memory and was given {}", rows, cols, parts_.bytes,
         scratch_bytes_);
  }
  rows_ = rows;
  cols_ = cols;
  plain_.reset();
  packed_.reset();
}

void Packer::upload_table(const codec::PairCode& code, cudaStream_t stream) {
  const std::vector<std::uint32_t> table = code.decode_table(codec::kCodeBits);
  to_device(parts_.table, table.data(), table.size() * sizeof(table[0]), stream);
}

cuda::PackSummary Packer::read_summary(cudaStream_t stream) const {
  cuda::PackSummary summary;
  to_host(&summary, parts_.summary, sizeof(summary), stream);
  return summary;
}

// What finish() needs to know of the matrix whose blocks have their places.
ResidentBytes Packer::keep_sizes(const cuda::PackSummary& summary) {
  bytes_ = resident_bytes(rows_, cols_, summary.block_bytes);
  max_block_bytes_ = summary.max_block_bytes;
  return bytes_;
}

std::optional<ResidentBytes> Packer::prepare_from_bf16(const std::uint16_t* weights, std::int64_t rows,
                                                       std::int64_t cols, std::int64_t stride, cudaStream_t stream,
                                                       const codec::PackOptions& options) {
  if (options.max_code_bits > codec::kCodeBits) {
    fail(Code::Usage, "a code of at most {} bits was asked for; the GPU's kernels take at most {}",
         options.max_code_bits, codec::kCodeBits);
  }
  if (rows == 0 || cols == 0) return std::nullopt;
  begin(rows, cols);
  const cuda::PlainSource source{weights, rows, cols, stride};
  const codec::UnitGrid grid{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)};

  check(cuda::count_pairs(source, parts_.counts, stream), kWork);
  std::vector<std::uint64_t> counts(cuda::kPairCounts + cuda::kLoneCounts);
  to_host(counts.data(), parts_.counts, counts.size() * sizeof(counts[0]), stream);
  const std::span<const std::uint64_t> all(counts);
  const std::optional<codec::PackPlan> plan = codec::plan_packing(
      grid, codec::PairHistogram(all.first(cuda::kPairCounts), all.subspan(cuda::kPairCounts)), options);
  if (!plan) return std::nullopt;

  std::array<std::uint8_t, cuda::kLoneCounts> filler_after;
  for (std::size_t i = 0; i < filler_after.size(); ++i)
    filler_after[i] = plan->encoder.filler_after(static_cast<std::uint8_t>(i));
  to_device(parts_.entries, plan->encoder.entries(), cuda::kPairCounts * sizeof(std::uint32_t), stream);
  to_device(parts_.filler_after, filler_after.data(), filler_after.size(), stream);
  upload_table(plan->code, stream);
  encoder_ = {parts_.entries, parts_.filler_after, plan->encoder.filler_pair()};
  code_bytes_ = plan->code_bytes;

  check(cudaMemsetAsync(parts_.summary, 0, sizeof(cuda::PackSummary), stream), kWork);
  check(cuda::measure_units(source, encoder_, parts_.headers, parts_.summary, stream), kWork);
  check(cuda::place_blocks(grid, parts_.headers, parts_.block_offsets, parts_.summary, stream), kWork);
  const cuda::PackSummary summary = read_summary(stream);
  if (summary.not_coded != 0)
    fail(Code::Runtime, "the weights changed while they were packed on the GPU ({} x {})", rows, cols);
  const std::uint64_t file_bytes =
      codec::section_offsets(grid, static_cast<std::uint32_t>(code_bytes_.size()), summary.unit_bytes).end;
  if (!codec::saves_enough(grid, static_cast<double>(file_bytes), options)) return std::nullopt;
  plain_ = source;
  return keep_sizes(summary);
}

std::optional<ResidentBytes> Packer::prepare_from_file_bytes(const std::uint8_t* bytes, std::uint64_t size,
                                                             std::string_view what, cudaStream_t stream) {
  std::vector<std::byte> start(std::min<std::uint64_t>(size, sizeof(codec::PackedHeader)));
  if (!start.empty()) to_host(start.data(), bytes, start.size(), stream);
  const codec::PackedHeader header = codec::read_header(start, size, what);
  const codec::UnitGrid grid{header.rows, header.cols};
  const codec::SectionOffsets at = codec::section_offsets(grid, header.code_bytes, header.stream_bytes);
  start.resize(at.sign_mantissa);  // code and tile sizes too
  to_host(start.data(), bytes, start.size(), stream);

  const auto* code_section = reinterpret_cast<const std::uint8_t*>(start.data() + at.code);
  const codec::PairCode code = codec::PairCode::parse({code_section, header.code_bytes}, what);
  std::vector<std::uint64_t> tile_offsets(grid.row_tiles() + 1);
  for (std::uint64_t tile = 0; tile < grid.row_tiles(); ++tile) {
    std::uint32_t words;
    std::memcpy(&words, start.data() + at.tile_sizes + 4 * tile, sizeof(words));
    tile_offsets[tile + 1] = tile_offsets[tile] + 4 * std::uint64_t{words};
  }
  if (tile_offsets.back() != header.stream_bytes) {
    fail(Code::Model,
         "{}: the row tiles' sizes add up to {} bytes and not to the {} of the stream section; the file is damaged",
         what, tile_offsets.back(), header.stream_bytes);
  }
  if (code.bits() > codec::kCodeBits) return std::nullopt;

  begin(static_cast<std::int64_t>(grid.rows), static_cast<std::int64_t>(grid.cols));
  upload_table(code, stream);
  to_device(parts_.tile_offsets, tile_offsets.data(), tile_offsets.size() * sizeof(tile_offsets[0]), stream);
  code_bytes_.assign(code_section, code_section + header.code_bytes);
  const cuda::PackedSource source{grid, bytes + at.sign_mantissa, bytes + at.streams, parts_.tile_offsets};
  check(cudaMemsetAsync(parts_.summary, 0, sizeof(cuda::PackSummary), stream), kWork);
  check(cuda::find_units(source, parts_.headers, parts_.unit_offsets, parts_.summary, stream), kWork);
  check(cuda::check_units(source, parts_.headers, parts_.unit_offsets, parts_.table, parts_.summary, stream), kWork);
  check(cuda::place_blocks(grid, parts_.headers, parts_.block_offsets, parts_.summary, stream), kWork);
  const cuda::PackSummary summary = read_summary(stream);
  fail_on_damage(summary, grid, what);
  packed_ = source;
  return keep_sizes(summary);
}

cuda::ResidentMatrix Packer::finish(void* memory, cudaStream_t stream, const CacheSides* sides) {
  cuda::ResidentMatrix matrix = matrix_at(memory);
  std::optional<cuda::PagePlaces> places;
  if (sides != nullptr) places = sides->places(matrix, stream);
  if (places) {
    matrix.places = *places;
  } else {
    matrix.claims = nullptr;
  }
  write(matrix, stream);
  return matrix;
}

cuda::ResidentMatrix Packer::finish_at(void* memory, cudaStream_t stream, const cuda::PagePlaces& places) {
  cuda::ResidentMatrix matrix = matrix_at(memory);
  matrix.places = places;
  write(matrix, stream);
  return matrix;
}

cuda::ResidentMatrix Packer::matrix_at(void* memory) const {
  if (!plain_ && !packed_) fail(Code::Runtime, "no matrix was prepared for packing");
  return resident_matrix_at(static_cast<std::uint8_t*>(memory), rows_, cols_, bytes_, max_block_bytes_);
}

void Packer::write(const cuda::ResidentMatrix& matrix, cudaStream_t stream) const {
  const auto copy = [&](const std::uint32_t* to, const std::uint32_t* from, std::uint64_t bytes) {
    check(cudaMemcpyAsync(const_cast<std::uint32_t*>(to), from, bytes, cudaMemcpyDeviceToDevice, stream), kWork);
  };
  copy(matrix.block_offsets, parts_.block_offsets, bytes_.offsets);
  copy(matrix.table, parts_.table, bytes_.table);
  const cuda::ResidentTarget to{const_cast<std::uint8_t*>(matrix.sign_mantissa),
                                const_cast<std::uint8_t*>(matrix.streams), matrix};
  if (matrix.claims != nullptr) check(cudaMemsetAsync(matrix.claims, 0, bytes_.claims, stream), kWork);
  // What only fills up tiles, quads and pairs of row groups holds zeros.
  if (rows_ % (2 * cuda::kGroupRows) != 0 || cols_ % (4 * codec::kGroupCols) != 0)
    check(cudaMemsetAsync(to.sign_mantissa, 0, bytes_.sign_mantissa, stream), kWork);
  if (plain_) {
    check(cuda::encode_units(*plain_, encoder_, parts_.headers, to, stream), kWork);
  } else {
    check(cuda::gather_units(*packed_, parts_.headers, parts_.unit_offsets, parts_.table, to, stream), kWork);
  }
}

}  // namespace glyd::runner
