// How fast a tokenizer loads, encodes and decodes on one thread: tokenizer_speed MODEL_DIR TEXT_FILE...
//
// Prints the load time and its peak memory, then for each file the bytes, tokens, and MB/s (10^6 bytes of text a
// second) as the best of several runs: the first of a process is slower, as it learns which tokens merge to themselves.
// Time is processor time, so that a busy machine does not count.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "text/tokenizer.h"

namespace {

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// The shortest of the runs that fit into about a second, at least three.
template <class F>
double best_time(F&& run) {
  double best = 1e9, total = 0;
  for (int i = 0; i < 3 || total < 1.0; ++i) {
    const double start = processor_seconds();
    run();
    const double seconds = processor_seconds() - start;
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

void measure(const glyd::text::Tokenizer& tokenizer, const char* path) {
  const std::string text = glyd::to_valid_utf8(glyd::io::read_text(path, 1u << 30));
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const double start = processor_seconds();
  const auto ids = tokenizer.encode(text);
  const double first = processor_seconds() - start;
  const double encode = best_time([&] { (void)tokenizer.encode(text); });
  const double decode = best_time([&] { (void)tokenizer.decode(ids, false); });
  fmt::print("{}: {:.1f} MB, {} tokens, encode {:.1f} MB/s (first run {:.1f}), decode {:.1f} MB/s\n", path, megabytes,
             ids.size(), megabytes / encode, megabytes / first, megabytes / decode);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} MODEL_DIR TEXT_FILE...\n", argv[0]);
    return 2;
  }
  try {
    const double start = processor_seconds();
    const auto tokenizer = glyd::text::Tokenizer::load(argv[1]);
    const double load = processor_seconds() - start;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    fmt::print("load: {:.0f} ms, peak {} MB of memory\n", load * 1e3, usage.ru_maxrss / 1024);
    for (int i = 2; i < argc; ++i) measure(tokenizer, argv[i]);
  } catch (const glyd::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return static_cast<int>(e.code());
  }
  return 0;
}
