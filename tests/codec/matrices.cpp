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

struct Place {
  std::uint64_t row, col, sign_mantissa;  // the last one is the byte's place in the packed matrix
};

}  // namespace

Weights reference_unpack(std::span<const std::byte> packed) {
  const Bytes in{packed};
  REQUIRE(std::string(reinterpret_cast<const char*>(packed.data()), 8) == "GLYDMATR");
  REQUIRE(in.number(8, 4) == 1);
  const std::uint64_t code_bytes = in.number(12, 4), rows = in.number(16, 8), cols = in.number(24, 8);
  const auto to16 = [](std::uint64_t x) { return (x + 15) / 16 * 16; };
  const std::uint64_t tiles = (rows + 15) / 16, blocks = (cols + 255) / 256, row_groups = (cols + 31) / 32;
  const std::uint64_t sizes_at = to16(64 + code_bytes), bytes_at = to16(sizes_at + 4 * tiles);
  std::uint64_t unit_at = bytes_at + tiles * row_groups * 512;
  REQUIRE(packed.size() == unit_at + in.number(32, 8));
  const Words words = read_code(in, code_bytes);

  Weights out(rows * cols, Bf16{0xDEAD});
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    const std::uint64_t tile_end = unit_at + 4 * in.number(sizes_at + 4 * tile, 4);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      const auto find = [&](std::uint64_t position) {
        const std::uint64_t group = position >> 9, lane = position >> 4 & 31, byte = position & 15;
        return Place{tile * 16 + lane / 4 + (byte >> 1 & 1) * 8,
                     block * 256 + group * 32 + lane % 4 * 8 + byte / 4 * 2 + byte % 2,
                     bytes_at + (tile * row_groups + block * 8) * 512 + position};
      };
      const auto put = [&](std::uint64_t position, unsigned exponent) {
        const Place p = find(position);
        const auto byte = static_cast<unsigned>(in.number(p.sign_mantissa, 1));
        const unsigned weight = (byte & 128) << 8 | exponent << 7 | (byte & 127);
        if (p.row < rows && p.col < cols) out[p.row * cols + p.col].bits = static_cast<std::uint16_t>(weight);
      };
      const std::uint64_t groups = std::min<std::uint64_t>(8, row_groups - block * 8);
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
        REQUIRE(p.row < rows);
        REQUIRE(p.col < cols);
        REQUIRE(out[p.row * cols + p.col].bits == 0);
        REQUIRE((header >> (24 + (entry >> 25)) & 1) == 1);
        out[p.row * cols + p.col].bits = static_cast<std::uint16_t>(entry);
      }
      unit_at = bits_at + 4 * word_count;
    }
    REQUIRE(unit_at == tile_end);
  }
  return out;
}

}  // namespace glyd::test
