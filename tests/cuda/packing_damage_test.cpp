// Damaged packed matrices: the GPU refuses what the CPU refuses, in the same words.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "codec/unpack.h"
#include "cuda/device.h"
#include "cuda/resident.h"
#include "runner/cuda/packer.h"

using namespace glyd;
using namespace glyd::test;
using codec::UnitGrid;

namespace {

constexpr UnitGrid kDamagedGrid{40, 600};

const Bytes& good() {
  static const Bytes packed = [] {
    Weights weights = heavy_tails(kDamagedGrid.rows * kDamagedGrid.cols, 1);
    for (const std::size_t i : {3, 100, 250, 1300}) weights[i].bits = 0x7F80;  // exceptions in any code
    return *pack_on_cpu(kDamagedGrid, weights, kPackAny);
  }();
  return packed;
}

// The message, or empty and the weights.
std::string cpu_verdict(const Bytes& file, Weights& weights) {
  try {
    ThreadPool one(1);
    const codec::Unpacker unpacker(std::as_bytes(std::span(file)), "tensor 'x'");
    weights.resize(unpacker.grid().rows * unpacker.grid().cols);
    unpacker.unpack(weights, one);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// Compares with the CPU's. What decodes decodes to the same; returns the message.
std::string check_verdict(const Bytes& file) {
  Weights weights;
  const std::string expected = cpu_verdict(file, weights);
  std::optional<Resident> resident;
  try {
    // Room for any shape that a file of this size can claim.
    DeviceBuffer<std::uint8_t> scratch(2 << 20), on_device(file);
    runner::Packer packer(scratch.data(), 2 << 20);
    const auto bytes = packer.prepare_from_file_bytes(on_device.data(), file.size(), "tensor 'x'", nullptr);
    if (!bytes) return "long code";
    resident = finish(packer, *bytes);
  } catch (const Error& e) {
    CHECK(e.code() == Code::Model);
    CHECK_FALSE(expected.empty());
    return e.what();
  }
  CHECK(expected.empty());
  if (!expected.empty()) return "";
  const auto rows = static_cast<std::int64_t>(resident->matrix.rows), cols = resident->matrix.cols;
  check_unpacked(*resident, resident->matrix.grid(), weights, 0, rows, (cols + 7) / 8 * 8);
  return "";
}

std::uint32_t get32(const Bytes& p, std::size_t at) { return number_at<std::uint32_t>(&p.at(at)); }
void set32(Bytes& p, std::size_t at, std::uint32_t value) {
  REQUIRE(at + 4 <= p.size());
  std::memcpy(&p[at], &value, 4);
}

// Refused with the very words of the CPU.
void check_same_message(const std::function<void(Bytes&)>& damage) {
  Bytes file = good();
  damage(file);
  Weights weights;
  const std::string expected = cpu_verdict(file, weights);
  CHECK_FALSE(expected.empty());
  CHECK(check_verdict(file) == expected);
}

}  // namespace

TEST_CASE("damaged units are refused on the GPU, in the CPU's words", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  CHECK(check_verdict(good()).empty());
  const std::uint32_t code_bytes = get32(good(), 12);
  const auto at = codec::section_offsets(kDamagedGrid, code_bytes, 0);
  const codec::UnitHeader header = codec::decode_unit_header(get32(good(), at.streams));
  REQUIRE(header.exceptions > 2);
  const auto with_header = [&](const std::function<void(codec::UnitHeader&)>& change) {
    check_same_message([&](Bytes& p) {
      codec::UnitHeader h = header;
      change(h);
      set32(p, at.streams, codec::encode_unit_header(h));
    });
  };
  with_header([](auto& h) { h.words += 1; });
  with_header([](auto& h) { h.words = 1023; });
  with_header([](auto& h) { h.words = 0; });
  with_header([](auto& h) { h.exceptions = 8191; });
  with_header([](auto& h) { h.exceptions -= 1; });
  with_header([](auto& h) { h.wide = !h.wide; });
  with_header([](auto& h) { h.exceptions -= 1, h.words += 1; });
  with_header([](auto& h) { h.exceptions += 1, h.words -= 1; });
  with_header([](auto& h) { h.group_mask ^= 1; });
  for (const std::size_t lane : {0, 13, 31}) {
    check_same_message([&](Bytes& p) { p.at(at.streams + 4 + lane) ^= 1; });
    check_same_message([&](Bytes& p) { p.at(at.streams + 4 + lane) ^= 0x80; });
  }
  const std::size_t last_word = at.streams + codec::unit_bytes(header) - 4;
  check_same_message([&](Bytes& p) { set32(p, last_word, get32(p, last_word) ^ 1u << 31); });

  check_same_message([&](Bytes& p) {  // a word more than the streams fill, and all else as it should be then
    codec::UnitHeader h = header;
    ++h.words;
    set32(p, at.streams, codec::encode_unit_header(h));
    for (std::uint32_t lane = 0; lane < codec::kLanes; ++lane) {
      std::uint8_t& start = p.at(at.streams + 4 + lane);
      const std::uint32_t moved = h.words * lane + h.words / 2 - header.words * lane - header.words / 2;
      REQUIRE(start >= moved);
      start = static_cast<std::uint8_t>(start - moved);
    }
    const std::uint8_t word[4] = {};
    p.insert(p.begin() + static_cast<std::ptrdiff_t>(last_word + 4), word, word + 4);
    set32(p, 32, get32(p, 32) + 4);  // stream_bytes
    set32(p, at.tile_sizes, get32(p, at.tile_sizes) + 1);
  });

  const std::size_t list = at.streams + codec::exceptions_offset(header);
  const std::uint32_t first = get32(good(), list), second = get32(good(), list + 4);
  REQUIRE((second >> 16) - (first >> 16) > 1);
  const auto with_list = [&](std::uint32_t a, std::uint32_t b) {
    check_same_message([&](Bytes& p) { set32(p, list, a), set32(p, list + 4, b); });
  };
  with_list(second, first);
  with_list(first, first);
  with_list(first, second | 0x10000000);
  with_list(first, first + 0x10000);
  Bytes other_value = good();
  set32(other_value, list, first ^ 0x1234);
  CHECK(check_verdict(other_value).empty());  // for checksums to find

  check_same_message([&](Bytes& p) { set32(p, at.tile_sizes, 0xFFFFFFFF); });
  check_same_message([&](Bytes& p) {  // the sum is right, the parts are not
    set32(p, at.tile_sizes, get32(p, at.tile_sizes) + 1);
    set32(p, at.tile_sizes + 4, get32(p, at.tile_sizes + 4) - 1);
  });
  check_same_message([](Bytes& p) { p[0] = 'X'; });
  check_same_message([](Bytes& p) { p[8] = 2; });
  check_same_message([](Bytes& p) { p.resize(p.size() - 4); });
  check_same_message([](Bytes& p) { p.resize(60); });
  check_same_message([](Bytes& p) { p.push_back(0); });
  check_same_message([&](Bytes& p) { p.at(at.code + 2 * 5) ^= 1; });  // number of words of 5 bits
}

TEST_CASE("an exception in the padding of an edge is refused on the GPU", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const UnitGrid grid{3, 40};
  Weights weights = gaussian(120, 0.02f, 3);
  weights[0].bits = 0x7F80;
  Bytes packed = *pack_on_cpu(grid, weights, kPackAny);
  const std::size_t unit = codec::section_offsets(grid, get32(packed, 12), 0).streams;
  const std::size_t list = unit + codec::exceptions_offset(codec::decode_unit_header(get32(packed, unit)));
  for (const std::uint32_t position : {codec::position_of(3, 0), codec::position_of(0, 40)}) {
    set32(packed, list, codec::exception_entry(position, 0x7F80));
    CHECK_THAT(check_verdict(packed), Catch::Contains("an exception lies outside the matrix"));
  }
}

TEST_CASE("random corruptions are refused on the GPU when the CPU refuses them", "[cuda][gpu][packing]") {
  GLYD_NEEDS_GPU();
  const std::uint64_t seed = fresh_seed();
  INFO("--rng-seed " << seed);
  std::mt19937_64 random(seed);
  const std::size_t streams = codec::section_offsets(kDamagedGrid, get32(good(), 12), 0).streams;
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    INFO("round " << round);
    Bytes packed = good();
    const auto place = [&] {
      if (random() % 4 == 0) return random() % packed.size();
      return random() % 4 != 0 ? streams + random() % (packed.size() - streams) : random() % 600;
    };
    for (std::uint64_t n = 1 + random() % 2; n > 0; --n) {
      const std::size_t at = place();
      switch (random() % 4) {
        case 0:
          packed[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
          break;
        case 1:
          packed[at] = static_cast<std::uint8_t>(random());
          break;
        case 2:
          for (std::size_t i = at; i < std::min(packed.size(), at + 8); ++i) packed[i] = random() % 2 ? 255 : 0;
          break;
        default: {
          const auto half = static_cast<std::ptrdiff_t>((packed.size() - at) / 2);
          const auto from = packed.begin() + static_cast<std::ptrdiff_t>(at);
          std::swap_ranges(from, from + half, from + half);
        }
      }
    }
    refused += !check_verdict(packed).empty();
  }
  CHECK(refused > 200);
}
