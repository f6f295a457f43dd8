#include "base/bf16.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace glyd;

TEST_CASE("every bf16 pattern survives the way to float and back", "[base]") {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Bf16 x{static_cast<std::uint16_t>(bits)};
    const bool is_nan = (bits & 0x7FFF) > 0x7F80;
    const Bf16 expected{static_cast<std::uint16_t>(is_nan ? bits | 0x40 : bits)};  // rounding makes a NaN quiet
    REQUIRE(to_bf16(to_float(x)).bits == expected.bits);
  }
}

TEST_CASE("float to bf16 rounds to nearest, ties to even", "[base]") {
  CHECK(to_bf16(1.0f).bits == 0x3F80);
  CHECK(to_bf16(1.0f + 0x1p-8f).bits == 0x3F80);             // a tie, down to even
  CHECK(to_bf16(1.0f + 3 * 0x1p-8f).bits == 0x3F82);         // a tie, up to even
  CHECK(to_bf16(1.0f + 0x1p-8f + 0x1p-20f).bits == 0x3F81);  // above the tie
  CHECK(to_bf16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(to_bf16(-0.0f).bits == 0x8000);
  CHECK(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(round_to_bf16(257.0f) == 256.0f);
}

TEST_CASE("half precision widens exactly", "[base]") {
  CHECK(half_to_float(0x3C00) == 1.0f);
  CHECK(half_to_float(0xC000) == -2.0f);
  CHECK(half_to_float(0x7BFF) == 65504.0f);
  CHECK(half_to_float(0x0001) == 0x1p-24f);
  CHECK(half_to_float(0x8001) == -0x1p-24f);
  CHECK(half_to_float(0x03FF) == 1023 * 0x1p-24f);
  CHECK(half_to_float(0x0400) == 0x1p-14f);
  CHECK(std::signbit(half_to_float(0x8000)));
  CHECK(half_to_float(0x7C00) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(half_to_float(0x7E01)));
}
