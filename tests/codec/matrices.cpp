#include "codec/matrices.h"

#include <catch2/catch.hpp>
#include <map>
#include <utility>

#include "codec/pack.h"

namespace glyd::test {

Weights gaussian(std::uint64_t count, float sigma, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  Weights out(count);
  for (Bf16& x : out) x = to_bf16(normal(random));
  return out;
}

Weights random_bits(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights out(count);
  for (Bf16& x : out) x.bits = static_cast<std::uint16_t>(random());
  return out;
}

Weights heavy_tails(std::uint64_t count, float scale, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::student_t_distribution<float> tails(1.5f);
  Weights out(count);
  for (Bf16& x : out) x = to_bf16(scale * tails(random));
  return out;
}

Weights constant(std::uint64_t count, std::uint16_t bits) { return Weights(count, Bf16{bits}); }

std::vector<std::byte> pack_always(const codec::UnitGrid& grid, const Weights& weights, int threads) {
  ThreadPool pool(threads);
  std::optional<std::vector<std::byte>> packed = codec::pack(grid, weights, {codec::kCodeBits, -1e9}, pool);
  REQUIRE(packed.has_value());
  return std::move(*packed);
}

namespace {

// Little-endian numbers at places of a byte string, every access checked.
struct Bytes {
  std::span<const std::byte> data;
  std::uint64_t number(std::uint64_t at, int bytes) const {
    REQUIRE(at + static_cast<std::uint64_t>(bytes) <= data.size());
    std::uint64_t x = 0;
    for (int i = 0; i < bytes; ++i)
      x |= std::to_integer<std::uint64_t>(data[at + static_cast<std::uint64_t>(i)]) << (8 * i);
    return x;
  }
  int bit(std::uint64_t byte, std::int64_t bit) const {
    REQUIRE(bit >= 0);
    return static_cast<int>(number(byte + static_cast<std::uint64_t>(bit) / 8, 1) >> (bit % 8) & 1);
  }
};

using Words =
    std::map<std::pair<int, unsigned>, std::pair<unsigned, unsigned>>;  // (length, canonical word) -> exponents

Words read_code(const Bytes& bytes, std::uint64_t code_bytes) {
  Words words;
  unsigned next = 0;
  std::uint64_t at = 64 + 26;
  for (int length = 0; length <= 12; ++length) {
    next <<= 1;
    const std::uint64_t count = bytes.number(64 + 2 * static_cast<std::uint64_t>(length), 2);
    for (std::uint64_t i = 0; i < count; ++i, at += 2) {
      words[{length, next++}] = {static_cast<unsigned>(bytes.number(at, 1)),
                                 static_cast<unsigned>(bytes.number(at + 1, 1))};
    }
  }
  REQUIRE(at == 64 + code_bytes);
  return words;
}

// The next pair of a stream that moves from bit `place` upwards or downwards.
std::pair<unsigned, unsigned> read_pair(const Bytes& in, const Words& words, std::uint64_t bits_at, bool upwards,
                                        std::int64_t& place) {
  std::pair<int, unsigned> key{0, 0};
  while (!words.contains(key)) {
    REQUIRE(key.first < 12);
    const int bit = upwards ? in.bit(bits_at, place++) : in.bit(bits_at, --place);
    key = {key.first + 1, key.second << 1 | static_cast<unsigned>(bit)};
  }
  return words.at(key);
}

std::uint64_t to16(std::uint64_t x) { return (x + 15) / 16 * 16; }

// Where the sections of a packed matrix are, and how many there are of what.
struct Layout {
  explicit Layout(const Bytes& in) {
    REQUIRE(std::string(reinterpret_cast<const char*>(in.data.data()), 8) == "GLYDMATR");
    REQUIRE(in.number(8, 4) == 1);
    code_bytes = in.number(12, 4), rows = in.number(16, 8), cols = in.number(24, 8);
    tiles = (rows + 15) / 16, blocks = (cols + 255) / 256, row_groups = (cols + 31) / 32;
    sizes_at = to16(64 + code_bytes), bytes_at = to16(sizes_at + 4 * tiles);
    units_at = bytes_at + tiles * row_groups * 512;
    REQUIRE(in.data.size() == units_at + in.number(32, 8));
  }
  std::uint64_t code_bytes, rows, cols, tiles, blocks, row_groups, sizes_at, bytes_at, units_at;
};

struct Place {
  std::uint64_t row, col, sign_mantissa;  // the last one is the byte's place in the packed matrix
};

}  // namespace

Weights reference_unpack(std::span<const std::byte> packed) {
  const Bytes in{packed};
  const Layout at(in);
  std::uint64_t unit_at = at.units_at;
  const Words words = read_code(in, at.code_bytes);

  Weights out(at.rows * at.cols, Bf16{0xDEAD});
  for (std::uint64_t tile = 0; tile < at.tiles; ++tile) {
    const std::uint64_t tile_end = unit_at + 4 * in.number(at.sizes_at + 4 * tile, 4);
    for (std::uint64_t block = 0; block < at.blocks; ++block) {
      const auto find = [&](std::uint64_t position) {
        const std::uint64_t group = position >> 9, lane = position >> 4 & 31, byte = position & 15;
        return Place{tile * 16 + lane / 4 + (byte >> 1 & 1) * 8,
                     block * 256 + group * 32 + lane % 4 * 8 + byte / 4 * 2 + byte % 2,
                     at.bytes_at + (tile * at.row_groups + block * 8) * 512 + position};
      };
      const auto put = [&](std::uint64_t position, unsigned exponent) {
        const Place p = find(position);
        const auto byte = static_cast<unsigned>(in.number(p.sign_mantissa, 1));
        const unsigned weight = (byte & 128) << 8 | exponent << 7 | (byte & 127);
        if (p.row < at.rows && p.col < at.cols) out[p.row * at.cols + p.col].bits = static_cast<std::uint16_t>(weight);
      };
      const std::uint64_t groups = std::min<std::uint64_t>(8, at.row_groups - block * 8);
      const auto header = static_cast<std::uint32_t>(in.number(unit_at, 4));
      const std::uint64_t word_count = header & 1023, exceptions = header >> 11 & 8191;
      const bool wide = header >> 10 & 1;
      const std::uint64_t list_at = unit_at + 4 + (wide ? 64 : 32), bits_at = list_at + 4 * exceptions;
      std::int64_t lane_before_ends = 0;
      for (std::uint64_t lane = 0; lane < 32; ++lane) {
        const std::uint64_t start = wide ? in.number(unit_at + 4 + 2 * lane, 2)
                                         : word_count * lane + word_count / 2 + in.number(unit_at + 4 + lane, 1) - 128;
        auto up = static_cast<std::int64_t>(start), down = up;
        for (std::uint64_t position = lane * 16; position < groups * 512; position += position % 16 == 12 ? 500 : 4) {
          const auto [a, b] = read_pair(in, words, bits_at, true, up);  // row g
          put(position, a);
          put(position + 1, b);
          const auto [c, d] = read_pair(in, words, bits_at, false, down);  // row g + 8
          put(position + 2, c);
          put(position + 3, d);
        }
        REQUIRE(down == lane_before_ends);
        lane_before_ends = up;
      }
      REQUIRE(static_cast<std::uint64_t>(lane_before_ends + 31) / 32 == word_count);
      for (std::uint64_t i = 0; i < exceptions; ++i) {
        const auto entry = static_cast<std::uint32_t>(in.number(list_at + 4 * i, 4));
        const Place p = find(entry >> 16);
        REQUIRE(p.row < at.rows);
        REQUIRE(p.col < at.cols);
        REQUIRE(out[p.row * at.cols + p.col].bits == 0);
        REQUIRE((header >> (24 + (entry >> 25)) & 1) == 1);
        out[p.row * at.cols + p.col].bits = static_cast<std::uint16_t>(entry);
      }
      unit_at = bits_at + 4 * word_count;
    }
    REQUIRE(unit_at == tile_end);
  }
  return out;
}

Weights part_of(const codec::UnitGrid& grid, const Weights& weights, const std::vector<Range>& rows, Range cols) {
  Weights part;
  for (const Range& range : rows)
    for (std::uint64_t r = range.begin; r < range.end; ++r)
      for (std::uint64_t c = cols.begin; c < cols.end; ++c) part.push_back(weights[r * grid.cols + c]);
  return part;
}

std::vector<std::byte> reference_cut(std::span<const std::byte> packed, const std::vector<Range>& rows, Range cols) {
  const Bytes in{packed};
  const Layout at(in);
  std::vector<std::uint64_t> units{at.units_at};  // where each begins, and where the last one ends
  for (std::uint64_t i = 0; i < at.tiles * at.blocks; ++i) {
    const std::uint64_t header = in.number(units.back(), 4);
    units.push_back(units.back() + 4 + (header >> 10 & 1 ? 64 : 32) + 4 * (header >> 11 & 8191) + 4 * (header & 1023));
  }
  REQUIRE(units.back() == packed.size());

  std::vector<std::byte> sizes, bytes, streams, part;
  const auto copy = [&](std::uint64_t begin, std::uint64_t end, std::vector<std::byte>& to) {
    to.insert(to.end(), packed.begin() + static_cast<std::ptrdiff_t>(begin),
              packed.begin() + static_cast<std::ptrdiff_t>(end));
  };
  const auto add_number = [](std::uint64_t x, int count, std::vector<std::byte>& to) {
    for (int i = 0; i < count; ++i) to.push_back(static_cast<std::byte>(x >> (8 * i)));
  };
  const std::uint64_t first = cols.begin / 256, last = (cols.end + 255) / 256, groups = (cols.end + 31) / 32;
  std::uint64_t row_count = 0;
  for (const Range& range : rows) {
    row_count += range.size();
    for (std::uint64_t tile = range.begin / 16; tile < (range.end + 15) / 16; ++tile) {
      const std::uint64_t begin = units[tile * at.blocks + first], end = units[tile * at.blocks + last];
      const std::uint64_t tile_bytes = at.bytes_at + tile * at.row_groups * 512;
      add_number((end - begin) / 4, 4, sizes);
      copy(tile_bytes + first * 8 * 512, tile_bytes + groups * 512, bytes);
      copy(begin, end, streams);
    }
  }
  copy(0, 16, part);  // magic, version, code_bytes
  for (const std::uint64_t x : {row_count, cols.size(), std::uint64_t{streams.size()}}) add_number(x, 8, part);
  part.resize(64);
  copy(64, 64 + at.code_bytes, part);
  for (const std::vector<std::byte>* section : {&sizes, &bytes, &streams}) {
    if (section != &streams) part.resize(to16(part.size()));
    part.insert(part.end(), section->begin(), section->end());
  }
  return part;
}

bool is_of_units(const codec::UnitGrid& grid, const std::vector<Range>& rows, Range cols) {
  std::vector<std::uint64_t> taken;
  for (const Range& range : rows) {
    if (range.begin >= range.end || range.end > grid.rows) return false;
    for (std::uint64_t r = range.begin; r < range.end; ++r) taken.push_back(r);
  }
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (i % 16 == 0 ? taken[i] % 16 != 0 : taken[i] != taken[i - 1] + 1) return false;
  if (taken.empty() || (taken.size() % 16 != 0 && taken.back() + 1 != grid.rows)) return false;
  return cols.begin < cols.end && cols.end <= grid.cols && cols.begin % 256 == 0 &&
         (cols.end % 256 == 0 || cols.end == grid.cols);
}

}  // namespace glyd::test
