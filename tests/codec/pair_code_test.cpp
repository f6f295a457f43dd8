#include "codec/pair_code.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "codec/code_choice.h"
#include "codec/matrices.h"
#include "support/errors.h"

using namespace glyd;
using codec::CodedPair;
using codec::PairCode;

namespace {

codec::PairHistogram histogram_of(const test::Weights& weights, std::size_t cols) {
  codec::PairHistogram h;
  for (std::size_t i = 0; i < weights.size(); i += cols) h.add_row(std::span(weights).subspan(i, cols));
  return h;
}

std::uint64_t cost_of(std::span<const std::uint64_t> weights, std::span<const std::uint8_t> lengths) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * lengths[i];
  return sum;
}

// The least cost of any code with these limits, by trying every non-increasing sequence of lengths (weights ascend).
std::uint64_t least_cost(std::span<const std::uint64_t> weights, int longest, std::uint64_t space_left, int max_bits) {
  if (weights.empty()) return 0;
  std::uint64_t best = UINT64_MAX;
  for (int length = longest; length >= 1; --length) {
    const std::uint64_t space = std::uint64_t{1} << (max_bits - length);
    if (space * weights.size() > space_left && length == longest && space > space_left) break;
    if (space > space_left) break;
    const std::uint64_t rest = least_cost(weights.subspan(1), length, space_left - space, max_bits);
    if (rest != UINT64_MAX) best = std::min(best, rest + weights[0] * static_cast<std::uint64_t>(length));
  }
  return best;
}

}  // namespace

TEST_CASE("canonical words follow lengths and values, first bit lowest", "[codec]") {
  // Lengths 1, 2, 3, 3: canonical words 0, 10, 110, 111; mirrored 0, 01, 011, 111.
  const PairCode code({{9, 9, 3}, {5, 1, 1}, {9, 8, 3}, {0, 0, 2}});
  REQUIRE(code.bits() == 3);
  CHECK(code.pairs()[0].value() == 0x0501);
  CHECK(code.pairs()[2].value() == 0x0908);
  CHECK(code.word(0) == 0b0);
  CHECK(code.word(1) == 0b01);
  CHECK(code.word(2) == 0b011);
  CHECK(code.word(3) == 0b111);

  const std::vector<std::uint32_t> table = code.decode_table(9);
  REQUIRE(table.size() == 512);
  CHECK(table[0b101010100] == (5u << 7 | 1u << 23 | 1u));
  CHECK(table[0b111110001] == (0u | 2u));
  CHECK(table[0b000000011] == (9u << 7 | 8u << 23 | 3u));
  CHECK(table[0b111111111] == (9u << 7 | 9u << 23 | 3u));
}

TEST_CASE("a code survives its compact form", "[codec]") {
  const PairCode code({{9, 9, 3}, {5, 1, 1}, {9, 8, 3}, {0, 0, 2}});
  const std::vector<std::uint8_t> bytes = code.serialize();
  REQUIRE(bytes == std::vector<std::uint8_t>{0, 0, 1, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0,
                                             0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // counts
                                             5, 1, 0, 0, 9, 8, 9, 9});
  const PairCode again = PairCode::parse(bytes, "test");
  CHECK(again.serialize() == bytes);
  CHECK(again.word(3) == code.word(3));
}

TEST_CASE("one pair takes no bits", "[codec]") {
  const PairCode code({{120, 121, 0}});
  CHECK(code.bits() == 0);
  CHECK(code.decode_table(1) == std::vector<std::uint32_t>(2, 120u << 7 | 121u << 23));
  CHECK(PairCode::parse(code.serialize(), "test").bits() == 0);
}

TEST_CASE("codes that are no complete prefix code are refused", "[codec]") {
  const auto refuses = [](std::vector<CodedPair> pairs) {
    return test::error_of(Code::Model, [&] { PairCode(std::move(pairs), "tensor 'x'"); }).starts_with("tensor 'x': ");
  };
  CHECK(refuses({}));
  CHECK(refuses({{1, 1, 1}}));                        // half of the space
  CHECK(refuses({{1, 1, 1}, {2, 2, 2}}));             // three quarters
  CHECK(refuses({{1, 1, 1}, {2, 2, 1}, {3, 3, 1}}));  // too much
  CHECK(refuses({{1, 1, 0}, {2, 2, 1}}));             // too much with a word of no bits
  CHECK(refuses({{1, 1, 1}, {1, 1, 1}}));             // twice the same
  CHECK(refuses({{1, 1, 1}, {255, 1, 1}}));           // an exponent of infinities
  CHECK(refuses({{1, 1, 1}, {1, 255, 1}}));
  CHECK(refuses({{1, 1, 13}, {1, 2, 13}}));  // too long
  CHECK_FALSE(refuses({{1, 1, 1}, {1, 254, 1}}));
}

TEST_CASE("damaged compact forms are refused", "[codec]") {
  const std::vector<std::uint8_t> good = PairCode({{9, 9, 3}, {5, 1, 1}, {9, 8, 3}, {0, 0, 2}}).serialize();
  for (std::size_t n = 0; n < good.size(); ++n) {
    CHECK_THROWS_AS(PairCode::parse(std::span(good).first(n), "test"), Error);
  }
  std::vector<std::uint8_t> bytes = good;
  bytes.push_back(0);
  CHECK_THROWS_AS(PairCode::parse(bytes, "test"), Error);
  bytes = good;
  std::swap(bytes[31], bytes[33]);  // 9,9 before 9,8
  CHECK_THROWS_AS(PairCode::parse(bytes, "test"), Error);
  bytes = good;
  bytes[25] = 255;  // more pairs of the last length than there are bytes
  CHECK_THROWS_AS(PairCode::parse(bytes, "test"), Error);
}

TEST_CASE("limited lengths are optimal and fill the code space", "[codec]") {
  const std::uint64_t seed = 11;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    INFO("seed " << seed << " round " << round);
    const int max_bits = 3 + static_cast<int>(random() % 3);
    const std::size_t n = 2 + random() % 7;
    if (n > std::size_t{1} << max_bits) continue;
    std::vector<std::uint64_t> weights(n);
    for (std::uint64_t& w : weights) w = round % 3 == 0 ? 1 + random() % 4 : std::uint64_t{1} << random() % 14;
    std::sort(weights.begin(), weights.end());
    const std::vector<std::uint8_t> lengths = codec::limited_lengths(weights, max_bits);
    REQUIRE(lengths.size() == n);
    std::uint64_t space = 0;
    for (const std::uint8_t length : lengths) {
      REQUIRE(length >= 1);
      REQUIRE(length <= max_bits);
      space += std::uint64_t{1} << (max_bits - length);
    }
    CHECK(space == std::uint64_t{1} << max_bits);
    CHECK(std::is_sorted(lengths.rbegin(), lengths.rend()));
    CHECK(cost_of(weights, lengths) == least_cost(weights, max_bits, std::uint64_t{1} << max_bits, max_bits));
  }
  CHECK(codec::limited_lengths(std::vector<std::uint64_t>{7}, 9) == std::vector<std::uint8_t>{0});
  CHECK(codec::limited_lengths(std::vector<std::uint64_t>(512, 1), 9) == std::vector<std::uint8_t>(512, 9));
  CHECK_THROWS_AS(codec::limited_lengths(std::vector<std::uint64_t>(513, 1), 9), Error);
}

TEST_CASE("histograms count neighbours and lone weights", "[codec]") {
  const test::Weights row = {{0x3F80}, {0xBF00}, {0x3F80}, {0x3E80}, {0x4000}};  // 1, -0.5, 1, 0.25, 2
  codec::PairHistogram h;
  h.add_row(row);
  CHECK(h.count(127 << 8 | 126) == 1);
  CHECK(h.count(127 << 8 | 125) == 1);
  CHECK(h.lone(128) == 1);
  CHECK(h.weights() == 5);
  codec::PairHistogram twice;
  twice.add(h);
  twice.add(h);
  CHECK(twice.count(127 << 8 | 126) == 2);
  CHECK(twice.weights() == 10);
}

TEST_CASE("the choice keeps to the limit, never codes an infinity and can write every weight it saw", "[codec]") {
  const auto weights =
      GENERATE(test::gaussian(40000, 0.02f, 1), test::random_bits(40000, 2), test::heavy_tails(40000, 1.0f, 3),
               test::constant(40000, 0x3F80), test::constant(40000, 0), test::constant(40000, 0x7F80));
  const int max_bits = GENERATE(1, 4, 8, 9, 12);
  const std::size_t cols = GENERATE(100, 25);  // even rows, and odd ones that end with a lone weight
  const codec::PairHistogram h = histogram_of(weights, cols);
  const PairCode code = codec::choose_code(h, max_bits);
  CHECK(code.bits() <= max_bits);
  const codec::PairEncoder encoder(code);
  for (std::uint32_t pair = 0; pair < 65536; ++pair) {
    if (h.count(pair) > 0) REQUIRE((encoder[pair] & codec::kNotCoded) == 0);
  }
  for (std::uint32_t a = 0; a < 256; ++a) {
    if (h.lone(a) == 0) continue;
    const std::uint32_t entry = encoder[a << 8 | encoder.filler_after(static_cast<std::uint8_t>(a))];
    REQUIRE((entry & (codec::kNotCoded | codec::kSecondIsException)) == 0);
  }
  const std::uint32_t filler = encoder[encoder.filler_pair()];
  CHECK((filler & codec::kNeedsCare) == 0);
}

TEST_CASE("a better code is chosen when more bits are allowed, and it is near the entropy", "[codec]") {
  const test::Weights weights = test::gaussian(1 << 20, 0.02f, 5);
  const codec::PairHistogram h = histogram_of(weights, 1024);
  double entropy = 0;  // of pairs, bits a weight
  for (std::uint32_t pair = 0; pair < 65536; ++pair) {
    const double p = static_cast<double>(h.count(pair)) / static_cast<double>(weights.size() / 2);
    if (p > 0) entropy -= p * std::log2(p) / 2;
  }
  CHECK(h.entropy_bits() == Approx(entropy * static_cast<double>(weights.size())));
  double last = 100;
  for (const int max_bits : {7, 8, 9, 10}) {
    const codec::PairEncoder::Cost c = codec::PairEncoder(codec::choose_code(h, max_bits)).cost(h);
    const double bits = static_cast<double>(c.stream_bits + 32 * c.exceptions) / static_cast<double>(weights.size());
    CHECK(bits < last);
    CHECK(bits > entropy);
    last = bits;
  }
  CHECK(last < entropy + 0.1);  // the exceptions' values and the limit of 10 bits
}
