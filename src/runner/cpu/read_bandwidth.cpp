#include "runner/cpu/read_bandwidth.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/timing.h"
#include "runner/cpu/aligned_buffer.h"
#include "runner/cpu/available_memory.h"

namespace glyd::runner::cpu {
namespace {

// Sums 64-bit words, `words` a multiple of 64, in eight vectors of `bytes` bytes so that no addition waits for the one
// before it. One function for each width: narrow loads alone would not fill the bus.
#define GLYD_SUM_WORDS(name, target, bytes)                                 \
  target std::uint64_t name(const std::uint64_t* data, std::size_t words) { \
    using Vector = std::uint64_t __attribute__((vector_size(bytes)));       \
    Vector sums[8] = {};                                                    \
    for (std::size_t w = 0; w < words; w += 8 * (bytes) / 8) {              \
      _Pragma("GCC unroll 8") for (std::size_t v = 0; v < 8; ++v) {         \
        Vector x;                                                           \
        std::memcpy(&x, data + w + v * (bytes) / 8, sizeof x);              \
        sums[v] += x;                                                       \
      }                                                                     \
    }                                                                       \
    std::uint64_t total = 0;                                                \
    for (const Vector& sum : sums)                                          \
      for (std::size_t l = 0; l < (bytes) / 8; ++l) total += sum[l];        \
    return total;                                                           \
  }
GLYD_SUM_WORDS(sum_words_baseline, , 16)
#if defined(__x86_64__) && !defined(__clang__)
GLYD_SUM_WORDS(sum_words_avx2, [[gnu::target("avx2")]], 32)
GLYD_SUM_WORDS(sum_words_avx512, [[gnu::target("avx512f")]], 64)
#endif
#undef GLYD_SUM_WORDS

std::uint64_t sum_words(const std::uint64_t* data, std::size_t words) {
#if defined(__x86_64__) && !defined(__clang__)
  if (__builtin_cpu_supports("avx512f")) return sum_words_avx512(data, words);
  if (__builtin_cpu_supports("avx2")) return sum_words_avx2(data, words);
#endif
  return sum_words_baseline(data, words);
}

}  // namespace

double read_bandwidth(ThreadPool& pool) {
  constexpr std::size_t kChunk = 1 << 19;  // words a thread takes at a time: 4 MiB
  constexpr int kPasses = 5;
  const std::uint64_t bytes = std::min(std::uint64_t{2} << 30, available_memory() / 8);
  const std::size_t chunks = std::max<std::size_t>(1, bytes / sizeof(std::uint64_t) / kChunk);
  AlignedBuffer<std::uint64_t> buffer(chunks * kChunk, "read bandwidth");
  std::uint64_t* data = buffer.data();
  pool.parallel_for(chunks, 1, [&](std::size_t begin, std::size_t end) {
    std::fill(data + begin * kChunk, data + end * kChunk, begin);
  });

  double best = 0;
  for (int i = 0; i < kPasses; ++i) {
    const Clock::time_point start = Clock::now();
    pool.parallel_for(chunks, 1, [&](std::size_t begin, std::size_t end) {
      const std::uint64_t sum = sum_words(data + begin * kChunk, (end - begin) * kChunk);
      asm volatile("" : : "r"(sum));  // counts as used
    });
    best = std::max(best, static_cast<double>(buffer.size() * sizeof(std::uint64_t)) / seconds_since(start));
  }
  return best;
}

}  // namespace glyd::runner::cpu
