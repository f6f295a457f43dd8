#pragma once
// How fast this machine reads memory: the yardstick of everything that streams weights.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/thread_pool.h"
#include "runner/cpu/aligned_buffer.h"

namespace glyd::bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes a second when all threads of `pool` sum 64-bit words over a buffer much larger than any cache; the best of
// `repeats` passes.
inline double read_bandwidth(ThreadPool& pool, std::uint64_t bytes = std::uint64_t{2} << 30, int repeats = 5) {
  const std::size_t words = bytes / sizeof(std::uint64_t);
  const runner::cpu::AlignedBuffer<std::uint64_t> buffer(words, "read bandwidth");
  auto* data = const_cast<std::uint64_t*>(buffer.data());
  constexpr std::size_t kGrain = 1 << 19;  // words: 4 MiB
  pool.parallel_for(words, kGrain,
                    [&](std::size_t begin, std::size_t end) { std::fill(data + begin, data + end, begin); });

  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const double start = seconds();
    pool.parallel_for(words, kGrain, [&](std::size_t begin, std::size_t end) {
      // Sixteen sums hide the latency of an addition; the compiler may keep them in vector registers.
      std::uint64_t sums[16] = {};
      for (std::size_t w = begin; w + 16 <= end; w += 16)
        for (std::size_t l = 0; l < 16; ++l) sums[l] += data[w + l];
      std::uint64_t total = 0;
      for (const std::uint64_t s : sums) total += s;
      asm volatile("" : : "r"(total));  // the sum counts as used
    });
    best = std::max(best, static_cast<double>(bytes) / (seconds() - start));
  }
  return best;
}

}  // namespace glyd::bench
