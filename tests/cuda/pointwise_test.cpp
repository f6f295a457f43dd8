// The operations between products against plain computations with the same rounding points. Where a sum of squares is
// in play its order is the kernel's own, so the scale that comes out of it may differ by some units in the last place;
// everything else must then fit one such scale bit for bit, for the whole token or head.

#include "cuda/pointwise/pointwise.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "cuda/device.h"
#include "cuda/host_product.h"

namespace glyd::test {
namespace {

using Bits = std::vector<std::uint16_t>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-6f;
constexpr int kScaleSteps = 12;  // sums of 8192 squares in two orders, a reciprocal root of two units' error

// Whether `found` is `expected` with one of the scales next to the exact one.
bool matches(const Bits& found, const Bits& x, const std::function<Bits(float scale)>& expected) {
  double squares = 0;
  for (const std::uint16_t bits : x) squares += static_cast<double>(from_bits(bits)) * from_bits(bits);
  const auto scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.size()) + kEps));
  for (int step = 0; step <= kScaleSteps; ++step) {
    if (found == expected(neighbour(scale, step)) || found == expected(neighbour(scale, -step))) return true;
  }
  return false;
}

Bits normed(const Bits& x, const Bits& weight, float scale) {
  Bits out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    out[i] = to_bf16(round_to_bf16(from_bits(x[i]) * scale) * from_bits(weight[i])).bits;
  return out;
}

Bits row_of(const Bits& all, int row, int width) {
  const auto begin = all.begin() + std::ptrdiff_t{row} * width;
  return {begin, begin + width};
}

// Splits `found` into the first `width` values, returned, and padding, checked.
Bits without_padding(const DeviceActivations& out, const Bits& found, int width) {
  const bool clean =
      std::all_of(found.begin() + width, found.end(), [&](std::uint16_t bits) { return bits == out.padding(); });
  CHECK(clean);
  return {found.begin(), found.begin() + width};
}

void check_rms_norm(std::mt19937& random, Kind kind, int tokens, int width) {
  const auto count = static_cast<std::size_t>(tokens * width);
  const HostProduct product(random, kind, tokens, width, width < 4096 ? 7 : 3, 24);
  const DeviceProduct device_product(product);
  const Bits h = random_bf16(random, count, 0.1f, 3),
             weight = random_bf16(random, static_cast<std::size_t>(width), 1, 1);
  Bits sum(count);
  for (std::size_t i = 0; i < count; ++i) sum[i] = to_bf16(from_bits(h[i]) + round_to_bf16(product.finished[i])).bits;
  DeviceBuffer<std::uint16_t> device_weight(weight);

  for (const cuda::Layout layout : kLayouts) {
    INFO("kind " << static_cast<int>(kind) << ", " << tokens << " x " << width << ", layout "
                 << static_cast<int>(layout));
    DeviceBuffer<std::uint16_t> device_h(h);
    DeviceActivations out(layout, tokens, width);
    CUDA_REQUIRE(cuda::rms_norm(device_h.data(), &device_product.product, nullptr, device_weight.data(), kEps, tokens,
                                width, out.activations, nullptr));
    CHECK(device_h.to_host() == sum);
    const auto found = out.to_host();
    for (int t = 0; t < tokens; ++t) {
      const Bits x = row_of(sum, t, width), token = without_padding(out, found[static_cast<std::size_t>(t)], width);
      INFO("token " << t);
      REQUIRE(matches(token, x, [&](float scale) { return normed(x, weight, scale); }));
    }

    // The last token alone: the same bits.
    const int last = tokens - 1;
    DeviceBuffer<std::uint16_t> one_h(row_of(h, last, width));
    DeviceActivations one(cuda::Layout::Mma, 1, width);
    const cuda::Product shifted = device_product.from(last);
    CUDA_REQUIRE(cuda::rms_norm(one_h.data(), &shifted, nullptr, device_weight.data(), kEps, 1, width, one.activations,
                                nullptr));
    CHECK(one_h.to_host() == row_of(sum, last, width));
    CHECK(without_padding(one, one.to_host()[0], width) ==
          without_padding(out, found[static_cast<std::size_t>(last)], width));
  }
}

TEST_CASE("rms_norm adds the residual and normalises, in every layout", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(1);
  int turn = 0;
  for (const int width : {64, 1000, 2560, 5120, 8192}) {
    for (const int tokens : {1, 3, 8, 16, 33, 128})
      check_rms_norm(random, std::array{Kind::Partials, Kind::PartialsAndBias, Kind::Values}[turn++ % 3], tokens,
                     width);
    ++turn;
  }
  check_rms_norm(random, Kind::PartialsAndBias, 2, 12008);
  check_rms_norm(random, Kind::Partials, 2, 20000);
}

TEST_CASE("rms_norm of chosen rows leaves h alone; without an output only the sum is made", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(2);
  constexpr int kTokens = 40, kWidth = 1000;
  const Bits h = random_bf16(random, kTokens * kWidth, 0, 2), weight = random_bf16(random, kWidth, 1, 0.5f);
  const std::vector<std::int32_t> rows{3, 4, 17, 39, 0};
  DeviceBuffer<std::uint16_t> device_h(h), device_weight(weight);
  DeviceBuffer<std::int32_t> device_rows(rows);
  for (const cuda::Layout layout : kLayouts) {
    DeviceActivations out(layout, 5, kWidth);
    CUDA_REQUIRE(cuda::rms_norm(device_h.data(), nullptr, device_rows.data(), device_weight.data(), kEps, 5, kWidth,
                                out.activations, nullptr));
    CHECK(device_h.to_host() == h);
    const auto found = out.to_host();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Bits x = row_of(h, rows[i], kWidth);
      CHECK(matches(without_padding(out, found[i], kWidth), x, [&](float s) { return normed(x, weight, s); }));
    }
  }

  const HostProduct product(random, Kind::Partials, kTokens, kWidth, 3, 64);
  const DeviceProduct device_product(product);
  CUDA_REQUIRE(
      cuda::rms_norm(device_h.data(), &device_product.product, nullptr, nullptr, kEps, kTokens, kWidth, {}, nullptr));
  Bits sum = h;
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = to_bf16(from_bits(h[i]) + round_to_bf16(product.finished[i])).bits;
  CHECK(device_h.to_host() == sum);
}

TEST_CASE("rope_table holds the cosines and sines of angles in double", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  const std::vector<std::int32_t> positions{0, 1, 7, 4095, 131071, 134217727};
  constexpr int kHalf = 37;
  constexpr double kFactor = 1.25;
  std::vector<double> frequencies(kHalf);
  for (int i = 0; i < kHalf; ++i) frequencies[static_cast<std::size_t>(i)] = std::pow(1e6, -i / 37.0);
  DeviceBuffer<std::int32_t> device_positions(positions);
  DeviceBuffer<double> device_frequencies(frequencies);
  DeviceBuffer<float2> table(positions.size() * kHalf);
  CUDA_REQUIRE(cuda::rope_table(device_positions.data(), device_frequencies.data(), kFactor,
                                static_cast<int>(positions.size()), kHalf, table.data(), nullptr));
  const auto found = table.to_host();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double angle = positions[i / kHalf] * frequencies[i % kHalf];
    // The last unit: sine and cosine of the two libraries need not round the same way.
    CHECK(std::abs(found[i].x - std::cos(angle) * kFactor) <= 1.3e-7 * std::abs(std::cos(angle) * kFactor));
    CHECK(std::abs(found[i].y - std::sin(angle) * kFactor) <= 1.3e-7 * std::abs(std::sin(angle) * kFactor));
  }
}

struct HeadsShape {
  int heads, kv_heads, head_dim, rotated;
};

Bits turned(const Bits& x, const float2* turn, int half) {
  Bits out = x;
  for (int i = 0; i < half; ++i) {
    const auto at = static_cast<std::size_t>(i), other = static_cast<std::size_t>(i + half);
    const float a = from_bits(x[at]), b = from_bits(x[other]), cosine = turn[i].x, sine = turn[i].y;
    out[at] = to_bf16(a * cosine - b * sine).bits;
    out[other] = to_bf16(b * cosine + a * sine).bits;
  }
  return out;
}

void check_split_heads(std::mt19937& random, const HeadsShape& shape, bool with_norm, Kind kind, int tokens) {
  const int d = shape.head_dim, half = shape.rotated / 2, rows = (shape.heads + 2 * shape.kv_heads) * d;
  INFO("heads " << shape.heads << " / " << shape.kv_heads << " x " << d << ", rotated " << shape.rotated << ", norm "
                << with_norm << ", " << tokens << " tokens");
  const HostProduct product(random, kind, tokens, rows, 5, 40);
  const DeviceProduct device_product(product);
  const Bits q_norm = random_bf16(random, static_cast<std::size_t>(d), 1, 1),
             k_norm = random_bf16(random, static_cast<std::size_t>(d), 1, 1);
  std::uniform_real_distribution<float> angles(-4, 4);
  std::vector<float2> turns(static_cast<std::size_t>(tokens * half));
  for (float2& t : turns) {
    const float angle = angles(random);
    t = {1.1f * std::cos(angle), 1.1f * std::sin(angle)};
  }
  // Slots anywhere in a cache that is larger than the step; some tokens write none.
  const int blocks = tokens / 8 + 2;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(blocks * 16));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(static_cast<std::size_t>(tokens));
  if (tokens > 2) slots[1] = -1;

  DeviceBuffer<std::uint16_t> device_q_norm(q_norm), device_k_norm(k_norm);
  DeviceBuffer<float2> device_turns(turns);
  DeviceBuffer<std::int32_t> device_slots(slots);
  const auto cache_size = static_cast<std::size_t>(blocks * shape.kv_heads * 16 * d);
  DeviceBuffer<std::uint16_t> keys(cache_size), values(cache_size);
  DeviceBuffer<std::uint16_t> q(static_cast<std::size_t>(tokens * shape.heads * d));
  cuda::HeadsArguments arguments;
  if (with_norm) arguments.q_norm = device_q_norm.data(), arguments.k_norm = device_k_norm.data();
  arguments.eps = kEps;
  arguments.heads = shape.heads;
  arguments.rotated = shape.rotated;
  arguments.rope = device_turns.data();
  arguments.slots = device_slots.data();
  CUDA_REQUIRE(cuda::split_heads(device_product.product, arguments, tokens,
                                 {keys.data(), values.data(), shape.kv_heads, d}, q.data(), nullptr));

  const Bits found_q = q.to_host();
  Bits found_keys = keys.to_host(), found_values = values.to_host();
  const auto good = [&](int t, const Bits& found, const Bits& x, const Bits& norm) {
    const float2* turn = turns.data() + t * half;
    if (!with_norm) return found == turned(x, turn, half);
    return matches(found, x, [&](float scale) { return turned(normed(x, norm, scale), turn, half); });
  };
  for (int t = 0; t < tokens; ++t) {
    for (int head = 0; head < shape.heads + 2 * shape.kv_heads; ++head) {
      INFO("token " << t << ", head " << head);
      Bits x(static_cast<std::size_t>(d));
      for (int i = 0; i < d; ++i) x[static_cast<std::size_t>(i)] = to_bf16(product.at(t, head * d + i)).bits;
      if (head < shape.heads) {
        REQUIRE(good(t, row_of(found_q, t * shape.heads + head, d), x, q_norm));
        continue;
      }
      const std::int32_t slot = slots[static_cast<std::size_t>(t)];
      if (slot < 0) continue;
      const bool is_v = head >= shape.heads + shape.kv_heads;
      const int kv_head = (head - shape.heads) % shape.kv_heads;
      const int row = (slot / 16 * shape.kv_heads + kv_head) * 16 + slot % 16;
      Bits& cache = is_v ? found_values : found_keys;
      const Bits found = row_of(cache, row, d);
      REQUIRE((is_v ? found == x : good(t, found, x, k_norm)));
      std::fill_n(cache.begin() + std::ptrdiff_t{row} * d, d, std::uint16_t{0xCDCD});
    }
  }
  // All else is as it was.
  const Bits untouched(cache_size, 0xCDCD);
  CHECK(found_keys == untouched);
  CHECK(found_values == untouched);

  // The last token alone.
  DeviceBuffer<std::uint16_t> one(static_cast<std::size_t>(shape.heads * d));
  arguments.rope += (tokens - 1) * half;
  arguments.slots += tokens - 1;
  CUDA_REQUIRE(cuda::split_heads(device_product.from(tokens - 1), arguments, 1,
                                 {keys.data(), values.data(), shape.kv_heads, d}, one.data(), nullptr));
  CHECK(one.to_host() == row_of(found_q, tokens - 1, shape.heads * d));
}

TEST_CASE("split_heads normalises, turns and stores heads", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(3);
  const HeadsShape shapes[] = {{64, 8, 128, 128}, {14, 2, 64, 64}, {16, 16, 80, 80}, {4, 2, 256, 256},
                               {4, 1, 256, 64},   {6, 3, 80, 20},  {5, 5, 128, 32},  {3, 1, 8, 6}};
  for (const HeadsShape& shape : shapes) {
    for (const int tokens : {1, 3, 8, 33, 128}) {
      check_split_heads(random, shape, true, tokens % 2 == 0 ? Kind::Partials : Kind::Values, tokens);
      check_split_heads(random, shape, false, Kind::PartialsAndBias, tokens);
    }
  }
}

TEST_CASE("swiglu gates in every layout", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(4);
  const auto check = [&](Kind kind, int tokens, int inner) {
    INFO(tokens << " x " << inner);
    const HostProduct product(random, kind, tokens, 2 * inner, inner < 4096 ? 7 : 3, 24, 4);
    const DeviceProduct device_product(product);
    for (const cuda::Layout layout : kLayouts) {
      DeviceActivations out(layout, tokens, inner);
      CUDA_REQUIRE(cuda::swiglu(device_product.product, tokens, inner, out.activations, nullptr));
      const auto found = out.to_host();
      for (int t = 0; t < tokens; ++t) {
        const Bits token = without_padding(out, found[static_cast<std::size_t>(t)], inner);
        for (int i = 0; i < inner; ++i) {
          const double gate = product.rounded(t, i), silu = gate / (1 + std::exp(-gate));
          const float up = product.rounded(t, inner + i);
          // Within four units of fp32 of the exact silu, then rounded where the reference rounds.
          const auto rounded = [&](double s) { return to_bf16(round_to_bf16(static_cast<float>(s)) * up).bits; };
          const std::uint16_t bits = token[static_cast<std::size_t>(i)];
          const bool good = bits == rounded(silu * (1 - 0x1p-22)) || bits == rounded(silu * (1 + 0x1p-22));
          if (!good) FAIL("token " << t << ", " << i << ": " << bits << " for " << gate << ", " << up);
        }
      }
      DeviceActivations one(cuda::Layout::Rows, 1, inner);
      CUDA_REQUIRE(cuda::swiglu(device_product.from(tokens - 1), 1, inner, one.activations, nullptr));
      CHECK(without_padding(one, one.to_host()[0], inner) == without_padding(out, found.back(), inner));
    }
  };
  for (const int inner : {64, 1000, 3072}) {
    for (const int tokens : {1, 3, 8, 16, 33, 128})
      check(tokens % 2 == 0 ? Kind::Partials : tokens == 3 ? Kind::Values : Kind::PartialsAndBias, tokens, inner);
  }
  check(Kind::Partials, 9, 25600);
}

TEST_CASE("swiglu of extreme gates", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(5);
  HostProduct product(random, Kind::Partials, 1, 16, 1, 8);
  const float gates[] = {-88, -200, -3e38f, 3e38f, 88, 0, -0.0f, kNaN};
  for (int i = 0; i < 8; ++i) product.set(0, i, gates[i]), product.set(0, 8 + i, 1);
  DeviceActivations out(cuda::Layout::Rows, 1, 8);
  CUDA_REQUIRE(cuda::swiglu(DeviceProduct(product).product, 1, 8, out.activations, nullptr));
  const auto found = out.to_host()[0];
  for (int i = 0; i < 7; ++i) {
    const float gate = round_to_bf16(gates[i]);
    CHECK(from_bits(found[static_cast<std::size_t>(i)]) == round_to_bf16(gate / (1 + std::exp(-gate))));
  }
  CHECK(std::isnan(from_bits(found[7])));
}

struct Choice {
  const HostProduct& product;
  const std::vector<std::uint8_t>& allowed;  // or empty
  int tokens;
  std::int64_t vocab;

  std::int32_t expected(int token) const {
    std::int32_t best = -2;
    float largest = -kInfinity;
    for (std::int64_t id = 0; id < vocab; ++id) {
      if (!allowed.empty() && !allowed[static_cast<std::size_t>(id)]) continue;
      const float logit = product.at(token, id);
      if (!(logit < kInfinity)) return -1;
      if (logit > largest) largest = logit, best = static_cast<std::int32_t>(id);
    }
    return best;
  }

  std::vector<std::int32_t> found() const {
    const DeviceProduct device(product);
    DeviceBuffer<std::uint8_t> device_allowed(at_least_one(allowed));
    DeviceBuffer<std::int32_t> ids(static_cast<std::size_t>(tokens));
    DeviceBuffer<std::uint8_t> workspace(cuda::arg_max_workspace(tokens));
    CUDA_REQUIRE(cuda::arg_max(device.product, allowed.empty() ? nullptr : device_allowed.data(), tokens, vocab,
                               ids.data(), workspace.data(), nullptr));
    return ids.to_host();
  }
};

TEST_CASE("arg_max takes the lowest id of the largest allowed logit", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(6);
  const std::vector<std::uint8_t> all;
  const auto check = [&](const HostProduct& product, const std::vector<std::uint8_t>& allowed, int tokens,
                         std::int64_t vocab) {
    const Choice choice{product, allowed, tokens, vocab};
    const auto found = choice.found();
    for (int t = 0; t < tokens; ++t) {
      INFO("token " << t << " of " << tokens << ", vocabulary " << vocab);
      CHECK(found[static_cast<std::size_t>(t)] == choice.expected(t));
    }
  };
  for (const int tokens : {1, 3, 8, 33, 128}) {
    check(HostProduct(random, Kind::Partials, tokens, 1008, 4, 64), all, tokens, 1003);
    check(HostProduct(random, Kind::Values, tokens, 5000, 4, 64), all, tokens, 5000);  // bf16: ties
    std::vector<std::uint8_t> allowed(5000);
    for (auto& a : allowed) a = random() % 3 == 0;
    check(HostProduct(random, Kind::Values, tokens, 5000, 4, 64), allowed, tokens, 5000);
  }
  check(HostProduct(random, Kind::Partials, 3, 151936, 3, 64), all, 3, 151936);
  check(HostProduct(random, Kind::Partials, 2, 300000, 2, 64), all, 2, 300000);
}

TEST_CASE("arg_max of rows that are out of order", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(7);
  constexpr std::int64_t kVocab = 4003, kRows = 4008;
  constexpr int kTokens = 12;
  HostProduct product(random, Kind::Partials, kTokens, kRows, 1, 8);
  std::vector<std::uint8_t> allowed(kVocab, 1);
  allowed[11] = allowed[4001] = 0;
  for (int t = 0; t < kTokens; ++t)
    for (std::int64_t id = kVocab; id < kRows; ++id) product.set(t, id, kNaN);  // behind the vocabulary: not looked at
  const auto fill = [&](int token, float value) {
    for (std::int64_t id = 0; id < kVocab; ++id) product.set(token, id, value);
  };
  product.set(0, 4002, kNaN);
  product.set(1, 0, kInfinity);
  product.set(2, 11, kNaN), product.set(2, 4001, kInfinity);  // forbidden: no matter
  fill(3, -kInfinity);
  fill(4, -kInfinity), product.set(4, 4001, 5);
  fill(5, -kInfinity), product.set(5, 3000, -3e38f);
  fill(6, -5), product.set(6, 100, -0.0f), product.set(6, 3999, 0.0f);  // equal: the lower id
  fill(7, -2.5f);
  product.set(8, 77, -kNaN);
  product.set(9, 4002, 1000), product.set(9, 4000, 1000);
  fill(10, -kInfinity), product.set(10, 5, kNaN);
  const Choice choice{product, allowed, kTokens, kVocab};
  const auto found = choice.found();
  CHECK(found[0] == -1);
  CHECK(found[1] == -1);
  CHECK(found[2] >= 0);
  CHECK(found[3] == -2);
  CHECK(found[4] == -2);
  CHECK(found[5] == 3000);
  CHECK(found[6] == 100);
  CHECK(found[7] == 0);
  CHECK(found[8] == -1);
  CHECK(found[9] == 4000);
  CHECK(found[10] == -1);
  for (int t = 0; t < kTokens; ++t) CHECK(found[static_cast<std::size_t>(t)] == choice.expected(t));
}

TEST_CASE("finish_logits adds up the logits", "[cuda][gpu][pointwise]") {
  GLYD_NEEDS_GPU();
  std::mt19937 random(8);
  for (const std::int64_t vocab : {1000, 1003, 1006, 151936}) {
    const std::int64_t rows = (vocab + 7) / 8 * 8;
    const int tokens = vocab > 100000 ? 3 : 33;
    const HostProduct product(random, Kind::Partials, tokens, rows, 7, 64);
    DeviceBuffer<float> out(static_cast<std::size_t>(tokens * vocab));
    CUDA_REQUIRE(cuda::finish_logits(DeviceProduct(product).product, tokens, vocab, out.data(), nullptr));
    const auto found = out.to_host();
    std::vector<float> expected;
    for (int t = 0; t < tokens; ++t)
      for (std::int64_t id = 0; id < vocab; ++id) expected.push_back(product.at(t, id));
    CHECK(found == expected);
  }
}

}  // namespace
}  // namespace glyd::test
