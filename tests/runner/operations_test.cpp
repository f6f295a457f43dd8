// Norms, RoPE, SwiGLU, products and look-up: values of the specification, and straightforward double arithmetic.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "runner/cpu/embedding.h"
#include "runner/cpu/matmul.h"
#include "runner/cpu/residual.h"
#include "runner/cpu/rms_norm.h"
#include "runner/cpu/rope.h"
#include "runner/cpu/swiglu.h"
#include "runner/numbers.h"

namespace glyd::runner::cpu {
namespace {

using test::bits_equal;
using test::Numbers;

struct Machine {
  explicit Machine(bool bf16 = false, int threads = 1, const Kernels& kernels = best_kernels())
      : pool(threads), context(pool, kernels, bf16, 8192) {}
  ThreadPool pool;
  Context context;
};

std::vector<float> from_bits(std::initializer_list<std::uint16_t> bits) {
  std::vector<float> v;
  for (const std::uint16_t b : bits) v.push_back(to_float({b}));
  return v;
}

TEST_CASE("RMSNorm rounds as the specification's example", "[runner]") {
  const std::vector<float> x = from_bits({0xc03b, 0x4032, 0x4007, 0xbffb});
  const std::vector<float> w = from_bits({0x3f9f, 0x3f96, 0x3fbd, 0x3fd7});
  std::vector<float> out(4);
  rms_norm(Machine(true).context, x.data(), w.data(), 4, 1e-6f, out.data());
  CHECK(out == from_bits({0xbfbc, 0x3fa9, 0x3fa1, 0xbfaa}));

  double mean = 0;
  for (const float v : x) mean += static_cast<double>(v) * static_cast<double>(v) / 4;
  rms_norm(Machine(false).context, x.data(), w.data(), 4, 1e-6f, out.data());
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(static_cast<double>(out[i]) ==
          Approx(static_cast<double>(x[i] * w[i]) / std::sqrt(mean + 1e-6)).epsilon(1e-6));
}

TEST_CASE("RMSNorm takes any length and uses eps", "[runner]") {
  Numbers numbers(11);
  Machine machine;
  for (const std::size_t n : {1, 2, 15, 16, 17, 128, 1000}) {
    const std::vector<float> x = numbers.floats(n), w = numbers.floats(n);
    const double eps = 0.5;
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
    std::vector<float> out(x);  // in place
    rms_norm(machine.context, out.data(), w.data(), n, static_cast<float>(eps), out.data());
    for (std::size_t i = 0; i < n; ++i) {
      const double expected =
          static_cast<double>(x[i]) / std::sqrt(squares / static_cast<double>(n) + eps) * static_cast<double>(w[i]);
      INFO("n " << n << " i " << i);
      CHECK(static_cast<double>(out[i]) == Approx(expected).epsilon(1e-5).margin(1e-9));
    }
  }
}

TEST_CASE("SwiGLU rounds as the specification's example", "[runner]") {
  const float gate = to_float({0xc050}), up = to_float({0xc071});
  std::vector<float> in(16), out(16);
  in[0] = gate;
  in[1] = up;
  Machine bf16(true), fp32(false);
  swiglu(bf16.context, {in.data(), 16}, 1, 1, {out.data(), 16});
  CHECK(out[0] == to_float({0x3ee9}));
  swiglu(fp32.context, {in.data(), 16}, 1, 1, {out.data(), 16});
  CHECK(static_cast<double>(out[0]) == Approx(-3.25 / (1 + std::exp(3.25)) * -3.765625).epsilon(1e-6));
}

TEST_CASE("SwiGLU of large gates stays finite", "[runner]") {
  std::vector<float> in(16), out(16);
  in[0] = 1e30f, in[1] = -1e30f, in[2] = 2.0f, in[3] = 2.0f;
  Machine machine;
  swiglu(machine.context, {in.data(), 16}, 1, 2, {out.data(), 16});
  CHECK(out[0] == 2e30f);
  CHECK(out[1] == 0.0f);
}

model::Rope plain_rope(int dim, double theta) {
  model::Rope rope;
  rope.dim = dim;
  rope.theta = theta;
  return rope;
}

TEST_CASE("RoPE turns halves, not neighbours", "[runner]") {
  const double expected[] = {-1.695593, 0.137552, 2.788682, 3.975982, -4.808842, 6.323059, 7.086837, 8.011964};
  std::vector<float> x(8), out(8);
  std::iota(x.begin(), x.end(), 1.0f);
  Machine machine;
  RopeTable table(plain_rope(8, 1e4), 1);
  const std::int32_t position = 3;
  table.prepare(machine.context, {&position, 1});
  table.rotate(0, x.data(), 8, out.data());
  for (std::size_t i = 0; i < 8; ++i) CHECK(static_cast<double>(out[i]) == Approx(expected[i]).margin(1e-6));
}

TEST_CASE("partial RoPE leaves the rest, and the attention factor scales only what turns", "[runner]") {
  std::vector<float> x(12), out(12);
  std::iota(x.begin(), x.end(), 1.0f);
  model::Rope rope = plain_rope(8, 1e4);
  rope.attention_factor = 2.0;
  Machine machine;
  RopeTable table(rope, 1);
  const std::int32_t position = 3;
  table.prepare(machine.context, {&position, 1});
  table.rotate(0, x.data(), 12, out.data());
  CHECK(static_cast<double>(out[0]) == Approx(2 * -1.695593).margin(2e-6));
  CHECK(static_cast<double>(out[7]) == Approx(2 * 8.011964).margin(2e-6));
  CHECK(std::vector<float>(out.begin() + 8, out.end()) == std::vector<float>{9, 10, 11, 12});
}

TEST_CASE("RoPE angles are right at far positions", "[runner]") {
  // (1, 0) turned by the angle is (cos, sin); pair 0 has frequency 1, pair 1 has 1e6^-0.5 = 1e-3.
  std::vector<float> x{1, 1, 0, 0}, out(4);
  Machine machine;
  RopeTable table(plain_rope(4, 1e6), 3);
  const std::vector<std::int32_t> positions{257, 1000003, 100000007};
  table.prepare(machine.context, positions);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    table.rotate(t, x.data(), 4, out.data());
    const double p = positions[t];
    CHECK(static_cast<double>(out[0]) == Approx(std::cos(p)).margin(1e-7));
    CHECK(static_cast<double>(out[2]) == Approx(std::sin(p)).margin(1e-7));
    CHECK(static_cast<double>(out[1]) == Approx(std::cos(p * 1e-3)).margin(1e-7));
    CHECK(static_cast<double>(out[3]) == Approx(std::sin(p * 1e-3)).margin(1e-7));
  }
}

// The same weights, but decoded into scratch memory a tile at a time, as packed ones will be.
class Decoded : public WeightRows {
 public:
  explicit Decoded(const PlainMatrix& plain) : WeightRows(plain.rows(), plain.cols()), plain_(plain) {}
  const Bf16* fetch(std::size_t first, std::size_t count, Bf16* scratch) const override {
    const Bf16* from = plain_.fetch(first, count, nullptr);
    std::copy_n(from, count * stride(), scratch);
    return scratch;
  }

 private:
  const PlainMatrix& plain_;
};

PlainMatrix random_matrix(Numbers& numbers, std::size_t rows, std::size_t cols) {
  PlainMatrix matrix(rows, cols);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::vector<Bf16> row = numbers.bf16s(cols);
    std::copy(row.begin(), row.end(), matrix.row(r));
    std::fill(matrix.row(r) + cols, matrix.row(r) + matrix.stride(), Bf16{});
  }
  return matrix;
}

TEST_CASE("matmul agrees with double for any shape", "[runner]") {
  Numbers numbers(12);
  for (const Kernels& kernels : supported_kernels()) {
    for (const auto& [rows, cols, tokens] : std::vector<std::array<std::size_t, 3>>{
             {1, 1, 1}, {3, 24, 2}, {16, 16, 4}, {17, 100, 5}, {40, 128, 33}, {100, 896, 3}, {33, 48, 70}}) {
      Machine machine(false, 2, kernels);
      const PlainMatrix w = random_matrix(numbers, rows, cols);
      const std::vector<float> bias = numbers.floats(rows);
      FloatBuffer x(tokens, cols), out(tokens, rows);
      for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < cols; ++i) x.rows().row(t)[i] = numbers.next();
      matmul(machine.context, w, x.rows(), tokens, bias.data(), Rounding::None, out.rows());
      for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t r = 0; r < rows; ++r) {
          double exact = static_cast<double>(bias[r]);
          for (std::size_t i = 0; i < cols; ++i)
            exact += static_cast<double>(to_float(w.fetch(r, 1, nullptr)[i])) * static_cast<double>(x.rows().row(t)[i]);
          INFO(kernels.name << " " << rows << "x" << cols << " token " << t << " row " << r);
          CHECK(static_cast<double>(out.rows().row(t)[r]) == Approx(exact).margin(2e-5));
        }
      }
    }
  }
}

TEST_CASE("matmul gives the same bits for any number of tokens and threads, stored plainly or decoded", "[runner]") {
  Numbers numbers(13);
  const std::size_t rows = 333, cols = 200, tokens = 70;
  const PlainMatrix w = random_matrix(numbers, rows, cols);
  const Decoded decoded(w);
  FloatBuffer x(tokens, cols);
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t i = 0; i < cols; ++i) x.rows().row(t)[i] = numbers.next();
  for (const Kernels& kernels : supported_kernels()) {
    Machine one(false, 1, kernels), three(false, 3, kernels);
    FloatBuffer alone(tokens, rows);
    for (std::size_t t = 0; t < tokens; ++t)
      matmul(one.context, w, {x.rows().row(t), x.rows().stride}, 1, nullptr, Rounding::None,
             {alone.rows().row(t), alone.rows().stride});
    for (const std::size_t count : {2, 4, 5, 31, 32, 33, 70}) {
      for (Machine* machine : {&one, &three}) {
        for (const WeightRows* weights :
             {static_cast<const WeightRows*>(&w), static_cast<const WeightRows*>(&decoded)}) {
          FloatBuffer out(tokens, rows);
          matmul(machine->context, *weights, x.rows(), count, nullptr, Rounding::None, out.rows());
          INFO(kernels.name << " tokens " << count << " threads " << machine->pool.size());
          REQUIRE(std::memcmp(out.rows().data, alone.rows().data, count * alone.rows().stride * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("matmul adds the bias before the one rounding", "[runner]") {
  // 1 + 2^-8 is a tie between 1 and 1 + 2^-7: alone it rounds to 1, but with a bias of 2^-9 it rounds up.
  PlainMatrix w(1, 16);
  std::fill(w.row(0), w.row(0) + 16, Bf16{});
  w.row(0)[0] = to_bf16(1.0f);
  std::vector<float> x(16), out(16);
  x[0] = 1.0f + 0x1p-8f;
  const float bias = 0x1p-9f;
  Machine machine(true);
  matmul(machine.context, w, {x.data(), 16}, 1, nullptr, Rounding::Activation, {out.data(), 16});
  CHECK(out[0] == 1.0f);
  matmul(machine.context, w, {x.data(), 16}, 1, &bias, Rounding::Activation, {out.data(), 16});
  CHECK(out[0] == 1.0f + 0x1p-7f);
  matmul(machine.context, w, {x.data(), 16}, 1, &bias, Rounding::None, {out.data(), 16});
  CHECK(out[0] == 1.0f + 0x1p-8f + 0x1p-9f);
}

TEST_CASE("the residual is rounded after the addition", "[runner]") {
  std::vector<float> h(16, 1.0f), x(16, 0x1p-8f + 0x1p-12f);
  Machine bf16(true), fp32(false);
  std::vector<float> rounded(h), exact(h);
  add_residual(bf16.context, {x.data(), 16}, 1, 16, {rounded.data(), 16});
  add_residual(fp32.context, {x.data(), 16}, 1, 16, {exact.data(), 16});
  CHECK(rounded[5] == 1.0f + 0x1p-7f);
  CHECK(exact[5] == 1.0f + 0x1p-8f + 0x1p-12f);
}

TEST_CASE("the embedding is looked up exactly", "[runner]") {
  Numbers numbers(14);
  const PlainMatrix table = random_matrix(numbers, 50, 24);
  const Decoded decoded(table);
  Machine machine(true, 2);
  const std::vector<std::int32_t> ids{49, 0, 7, 7, 31};
  for (const WeightRows* rows : {static_cast<const WeightRows*>(&table), static_cast<const WeightRows*>(&decoded)}) {
    FloatBuffer out(ids.size(), 24);
    embed(machine.context, *rows, ids, out.rows());
    for (std::size_t t = 0; t < ids.size(); ++t)
      for (std::size_t i = 0; i < 24; ++i)
        REQUIRE(out.rows().row(t)[i] == to_float(table.fetch(static_cast<std::size_t>(ids[t]), 1, nullptr)[i]));
  }
}

}  // namespace
}  // namespace glyd::runner::cpu
