// What reading memory without a pause costs: the energy of a byte depends on what the bytes are, since changing bits
// cost more than still ones. Packed weights are nearly random bits, bf16 weights are not.
//
//   read_energy [--seconds 2]

#include <cuda_runtime_api.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/kernels/sustained.h"
#include "bench/kernels/timing.h"
#include "cuda/common/read_memory.h"
#include "cuda/packing/packing.h"

namespace {

using namespace glyd;
using runner::check;

constexpr std::uint64_t kBytes = std::uint64_t{4} << 30;

void fill_with_zeros(std::uint8_t* memory) { check(cudaMemset(memory, 0, kBytes), "zeros"); }

void fill_with_weights(std::uint8_t* memory) {
  constexpr std::int64_t kCols = 8192, kRows = static_cast<std::int64_t>(kBytes / 2) / kCols;
  check(cuda::random_weights(1, 0.02F, {0, kRows, 0, kCols, kCols}, reinterpret_cast<std::uint16_t*>(memory), kCols,
                             nullptr),
        "weights");
}

// The same quarter of a GiB over and over, which no cache holds.
void fill_with_random_bits(std::uint8_t* memory) {
  std::vector<std::uint64_t> bits(kBytes / 16 / sizeof(std::uint64_t));
  std::mt19937_64 random(1);
  for (auto& word : bits) word = random();
  for (std::uint64_t at = 0; at < kBytes; at += kBytes / 16)
    check(cudaMemcpy(memory + at, bits.data(), kBytes / 16, cudaMemcpyHostToDevice), "random bits");
}

void run(int seconds) {
  const runner::Stream stream;
  const runner::DeviceMemory memory(kBytes), sink(256);
  auto* const data = static_cast<std::uint8_t*>(memory.get());
  struct Kind {
    const char* name;
    void (*fill)(std::uint8_t*);
  };
  for (const Kind& kind : {Kind{"zeros", fill_with_zeros}, Kind{"Gaussian bf16 weights", fill_with_weights},
                           Kind{"random bits", fill_with_random_bits}}) {
    kind.fill(data);
    check(cudaDeviceSynchronize(), "a filling");
    const bench::Sustained s = bench::run_without_pause(stream.get(), seconds, [&] {
      check(cuda::read_memory(data, kBytes, static_cast<std::uint32_t*>(sink.get()), stream.get()), "reading");
    });
    const double bytes = static_cast<double>(kBytes);
    std::string line = fmt::format("{:<22} {:.2f} TB/s", kind.name, bytes / s.microseconds * 1e-6);
    if (s.clock) line += fmt::format(", {} MHz", *s.clock);
    line += s.watts ? fmt::format(", {:.0f} W, {:.1f} pJ a byte", *s.watts, *s.watts * s.microseconds * 1e6 / bytes)
                    : ", no energy counter";
    fmt::print("{}\n", line);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program([&] {
    int seconds = 2;
    for (bench::Arguments arguments(argc, argv); arguments.next();) {
      if (arguments.option() != "--seconds") arguments.refuse("read_energy");
      seconds = arguments.number(1, 60);
    }
    run(seconds);
  });
}
