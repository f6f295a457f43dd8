#pragma once
// What the benchmarks of kernels share: options, the chip's bandwidth, graphs timed by turns.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "runner/cuda/check.h"
#include "runner/cuda/decode_graphs.h"
#include "runner/cuda/device.h"
#include "runner/cuda/device_memory.h"

namespace glyd::bench {

// Copies of what a kernel reads take at least so many bytes, so that no cache holds them when they are read again.
inline constexpr std::int64_t kBehindCaches = 400 << 20;

inline int parse_number(const std::string& option, const std::string& text, int least, int most) {
  int n = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), n);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || n < least || n > most)
    fail(Code::Usage, "{} {}: expected {} to {}", option, printable(text), least, most);
  return n;
}

// "1,8,32"
inline std::vector<int> parse_list(const std::string& option, const std::string& text, int least, int most) {
  std::vector<int> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.size(), text.find(',', begin));
    list.push_back(parse_number(option, text.substr(begin, end - begin), least, most));
    begin = end + 1;
  }
  return list;
}

// A command line, argument by argument.
class Arguments {
 public:
  Arguments(int argc, char** argv) : all_(argv + 1, argv + argc) {}

  // The next one: an option, or a thing that is named.
  bool next() { return ++at_ < all_.size(); }
  const std::string& option() const { return all_[at_]; }
  // What follows the option.
  const std::string& value() {
    if (at_ + 1 == all_.size()) fail(Code::Usage, "{} needs a value", option());
    return all_[++at_];
  }
  int number(int least, int most) {
    const std::string name = option();
    return parse_number(name, value(), least, most);
  }
  std::vector<int> list(int least, int most) {
    const std::string name = option();
    return parse_list(name, value(), least, most);
  }
  [[noreturn]] void refuse(const char* program) const {
    fail(Code::Usage, "{} is not an option; see the head of bench/kernels/{}.cpp", printable(option()), program);
  }

 private:
  std::vector<std::string> all_;
  std::size_t at_ = static_cast<std::size_t>(-1);
};

inline bool parse_output(const std::string& text) {
  if (text != "json") fail(Code::Usage, "-o {}: expected json", printable(text));
  return true;
}

// Bytes a second that the chip reads of a memory of 4 GiB.
inline double read_bandwidth(cudaStream_t stream) {
  constexpr std::uint64_t kBytes = std::uint64_t{4} << 30;
  const runner::DeviceMemory memory(kBytes);
  runner::check(cudaMemsetAsync(memory.get(), 0x5A, kBytes, stream), "the bandwidth");
  return runner::measure_read_bandwidth(memory.get(), kBytes, stream);
}

struct Times {
  double median = 0, low = 0, high = 0;  // microseconds: median and quartiles
};

// Of one of the `launches` that each graph holds; the graphs are replayed by turns.
inline std::vector<Times> time_graphs(const std::vector<std::unique_ptr<runner::Graph>>& graphs, int launches,
                                      int repeats, cudaStream_t stream) {
  using runner::check;
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  std::vector<std::vector<double>> all(graphs.size());
  for (int i = 0; i < repeats; ++i) {
    for (std::size_t k = 0; k < graphs.size(); ++k) {
      check(cudaEventRecord(begin, stream), "an event");
      graphs[k]->launch(stream);
      check(cudaEventRecord(end, stream), "an event");
      check(cudaEventSynchronize(end), "a kernel");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "an event");
      all[k].push_back(ms * 1000.0 / launches);
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::vector<Times> times;
  for (std::vector<double>& of_one : all) {
    std::sort(of_one.begin(), of_one.end());
    times.push_back({of_one[of_one.size() / 2], of_one[of_one.size() / 4], of_one[of_one.size() * 3 / 4]});
  }
  return times;
}

// What main() returns.
inline int run_program(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace glyd::bench
