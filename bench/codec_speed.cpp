// The codec's numbers for the shapes of published models, Gaussian weights: bits a weight, MB/s of bf16 on one thread
// for packing and unpacking, and the same for `zstd -3` where it is installed.
//
//   codec_speed [--quick] [FILE.safetensors ...]
//
// --quick takes one shape. With files, their BF16 matrices are packed instead (trained weights), each alone.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "base/timing.h"
#include "codec/pack.h"
#include "codec/unpack.h"
#include "io/safetensors.h"

namespace {

using namespace glyd;
// CPU time of this thread: the machines that this runs on are shared, and with one thread it is what a core needs.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The best of `runs`.
template <class Work>
double best_seconds(int runs, const Work& work) {
  double best = INFINITY;
  for (int i = 0; i < runs; ++i) {
    const double start = thread_seconds();
    work();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

struct Matrix {
  std::string name;
  codec::UnitGrid grid;
  std::vector<Bf16> weights;
};

// Weights N(0, 0.02^2).
Matrix gaussian_matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols) {
  Matrix m{name, {rows, cols}, std::vector<Bf16>(rows * cols)};
  std::mt19937_64 random(rows * cols);
  std::normal_distribution<float> normal(0, 0.02f);
  for (Bf16& x : m.weights) x = to_bf16(normal(random));
  return m;
}

std::vector<Matrix> matrices_of(const std::string& path) {
  std::vector<Matrix> out;
  const io::Safetensors file = io::Safetensors::open(path);
  for (const io::Tensor& t : file.tensors()) {
    if (t.dtype != io::Dtype::BF16 || t.shape.size() != 2) continue;
    Matrix m{t.name, {t.shape[0], t.shape[1]}, std::vector<Bf16>(t.shape[0] * t.shape[1])};
    file.read(t, 0, std::as_writable_bytes(std::span(m.weights)));
    out.push_back(std::move(m));
  }
  return out;
}

// Bits a weight and MB/s of `zstd -3 -T1`, wall time with its reading; nothing without zstd.
std::string zstd_columns(const Matrix& m) {
  char path[] = "/tmp/glyd_codec_speed_XXXXXX";
  const int fd = mkstemp(path);
  if (fd < 0) return "- | - |";
  std::FILE* file = fdopen(fd, "wb");
  std::fwrite(m.weights.data(), sizeof(Bf16), m.weights.size(), file);
  std::fclose(file);
  const auto start = Clock::now();
  std::FILE* pipe = popen(fmt::format("zstd -3 -T1 -c -q {} 2>/dev/null | wc -c", path).c_str(), "r");
  unsigned long long bytes = 0;
  const bool read = pipe != nullptr && std::fscanf(pipe, "%llu", &bytes) == 1 && bytes > 0;
  if (pipe != nullptr) pclose(pipe);
  const double seconds = seconds_since(start);
  std::remove(path);
  if (!read) return "- | - |";
  const auto weights = static_cast<double>(m.weights.size());
  return fmt::format("{:.3f} | {:.0f} |", 8.0 * static_cast<double>(bytes) / weights, 2e-6 * weights / seconds);
}

void measure(const Matrix& m, ThreadPool& one) {
  const auto weights = static_cast<double>(m.weights.size());
  std::optional<std::vector<std::byte>> packed;
  const double pack_seconds = best_seconds(3, [&] { packed = codec::pack(m.grid, m.weights, {}, one); });
  if (!packed) {
    fmt::print("| {} | {} x {} | 16 (left plain) | | | | | | {}\n", m.name, m.grid.rows, m.grid.cols, zstd_columns(m));
    return;
  }
  std::vector<Bf16> back(m.weights.size());
  const codec::Unpacker unpacker(*packed, m.name);
  const double unpack_seconds = best_seconds(3, [&] { unpacker.unpack(back, one); });
  if (back != m.weights) fail(Code::Runtime, "{}: unpacking gave other weights", m.name);
  const codec::PackStats s = unpacker.stats();
  fmt::print("| {} | {} x {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.0f} | {:.0f} | {}\n", m.name, m.grid.rows,
             m.grid.cols, s.bits_a_weight(), 8.0 * static_cast<double>(s.exponent_bytes) / weights,
             8.0 * static_cast<double>(s.offset_bytes) / weights, 100.0 * static_cast<double>(s.exceptions) / weights,
             2e-6 * weights / pack_seconds, 2e-6 * weights / unpack_seconds, zstd_columns(m));
  std::fflush(stdout);
}

void run(const std::vector<std::string>& arguments) {
  ThreadPool one(1);
  fmt::print(
      "| matrix | shape | bits a weight | of these exponents | offsets | exceptions % | pack MB/s | unpack MB/s | zstd "
      "-3 bits | zstd -3 MB/s |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  bool quick = false, files = false;
  for (const std::string& argument : arguments) {
    if (argument == "--quick") {
      quick = true;
      continue;
    }
    files = true;
    for (const Matrix& m : matrices_of(argument)) measure(m, one);
  }
  if (files) return;
  struct Shape {
    const char* name;
    std::uint64_t rows, cols;
  };
  const Shape shapes[] = {
      {"square", 5120, 5120},          {"qwen3-0.6b qkv", 4096, 1024},      {"qwen3-0.6b gate,up", 6144, 1024},
      {"qwen3-0.6b down", 1024, 3072}, {"qwen3-1.7b gate,up", 12288, 2048}, {"qwen3-4b o", 2560, 4096},
      {"qwen3-8b qkv", 6144, 4096},    {"qwen3-8b gate,up", 24576, 4096},   {"qwen3-14b down", 5120, 17408},
      {"qwen3-32b qkv", 10240, 5120},  {"qwen3-32b o", 5120, 8192},         {"qwen3-32b gate,up", 51200, 5120},
      {"qwen3-32b down", 5120, 25600}};
  for (const Shape& s : shapes) {
    measure(gaussian_matrix(s.name, s.rows, s.cols), one);
    if (quick) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}
