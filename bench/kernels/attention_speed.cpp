// Times decode attention: one new token of each of some sequences over its cached keys and values. A CUDA graph holds a
// launch for every one of several layers, each with a cache of its own, so that no key or value is in the L2 when it is
// read; the graph is replayed and divided by its layers. Blocks of the caches are dealt out at random. Launches may
// begin while their predecessor drains, as in the runner, but here the predecessor is the layer before.
//
//   attention_speed [--sequences 32] [--tokens 576] [--spread 0] [--heads 64] [--kv-heads 8] [--head-dim 128]
//                   [--repeats 31] [-o json]
//
// --tokens takes a list (576,640). --spread: sequences have from `tokens` to `tokens` + spread of them. GB/s counts the
// keys and values alone; the share is of the bandwidth at which the chip reads its memory.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cuda/attention/attention.h"
#include "cuda/packing/packing.h"
#include "io/json.h"
#include "runner/cuda/check.h"
#include "runner/cuda/decode_graphs.h"
#include "runner/cuda/device.h"
#include "runner/cuda/device_memory.h"

namespace {

using namespace glyd;
using runner::check;

struct Options {
  std::vector<int> tokens{576};
  int sequences = 32, spread = 0, heads = 64, kv_heads = 8, head_dim = 128, repeats = 31;
  bool json = false;
};

template <class T>
runner::DeviceMemory to_device(const std::vector<T>& host) {
  runner::DeviceMemory memory(host.size() * sizeof(T));
  check(cudaMemcpy(memory.get(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "the batch");
  return memory;
}

runner::DeviceMemory random_values(std::uint64_t seed, std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  runner::DeviceMemory memory(static_cast<std::uint64_t>(rows * width) * 2);
  check(cuda::random_weights(seed, 1, {0, rows, 0, width, width}, static_cast<std::uint16_t*>(memory.get()), width,
                             stream),
        "random values");
  return memory;
}

struct Result {
  double microseconds = 0, low = 0, high = 0;  // of a layer: median and quartiles
  std::int64_t bytes = 0;                      // of a layer's keys and values that are seen
  int layers = 0;
};

Result measure(const Options& options, int tokens, cudaStream_t stream) {
  constexpr std::int64_t kBehindCaches = 400 << 20;
  std::mt19937 random(1);
  std::vector<std::int32_t> lengths;
  std::int64_t total = 0, blocks = 0;
  for (int i = 0; i < options.sequences; ++i) {
    lengths.push_back(tokens + options.spread * i / std::max(1, options.sequences - 1));
    total += lengths.back();
    blocks += (lengths.back() + cuda::kCacheBlock - 1) / cuda::kCacheBlock;
  }
  const int longest = lengths.back();
  const std::int64_t stride = (longest + cuda::kCacheBlock - 1) / cuda::kCacheBlock;
  std::vector<std::int32_t> order(static_cast<std::size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::int32_t> tables;
  auto block = order.begin();
  for (const std::int32_t length : lengths) {
    for (int i = 0; i < stride; ++i) tables.push_back(i * cuda::kCacheBlock < length ? *block++ : 0);
  }

  const std::int64_t width = std::int64_t{options.heads} * options.head_dim;
  const std::int64_t kv_width = std::int64_t{options.kv_heads} * options.head_dim;
  Result result;
  result.bytes = total * kv_width * 4;
  result.layers = static_cast<int>(std::max<std::int64_t>(8, kBehindCaches / result.bytes + 1));
  std::vector<runner::DeviceMemory> keys, values;
  for (int i = 0; i < result.layers; ++i) {
    keys.push_back(random_values(static_cast<std::uint64_t>(2 * i), blocks * cuda::kCacheBlock, kv_width, stream));
    values.push_back(
        random_values(static_cast<std::uint64_t>(2 * i + 1), blocks * cuda::kCacheBlock, kv_width, stream));
  }
  const runner::DeviceMemory q = random_values(1u << 20, options.sequences, width, stream);
  const runner::DeviceMemory device_lengths = to_device(lengths), device_tables = to_device(tables);
  int columns = 8;
  while (columns < options.sequences) columns *= 2;
  const runner::DeviceMemory out(static_cast<std::uint64_t>(columns * (width + 32)) * 2);
  const runner::DeviceMemory workspace(
      cuda::attention_decode_workspace(options.sequences, total, longest, options.heads, options.head_dim));
  const cuda::AttentionBatch batch{static_cast<const std::int32_t*>(device_tables.get()), stride,
                                   static_cast<const std::int32_t*>(device_lengths.get()), nullptr};
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(options.head_dim)));
  const auto launch = [&](std::size_t layer) {
    const cuda::PagedCache cache{static_cast<std::uint16_t*>(keys[layer].get()),
                                 static_cast<std::uint16_t*>(values[layer].get()), options.kv_heads, options.head_dim};
    check(cuda::attention_decode(
              static_cast<const std::uint16_t*>(q.get()), width, cache, batch, options.sequences, options.heads, scale,
              {static_cast<std::uint16_t*>(out.get()), cuda::Layout::Mma, columns, 0}, workspace.get(), stream),
          "attention");
  };
  launch(0);  // once outside: for what is set up at first use
  const runner::Graph graph(stream, [&] {
    for (std::size_t layer = 0; layer < keys.size(); ++layer) launch(layer);
  });
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  std::vector<double> times;
  for (int i = -3; i < options.repeats; ++i) {
    check(cudaEventRecord(begin, stream), "an event");
    graph.launch(stream);
    check(cudaEventRecord(end, stream), "an event");
    check(cudaEventSynchronize(end), "attention");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "an event");
    if (i >= 0) times.push_back(ms * 1000.0 / result.layers);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  result.microseconds = times[times.size() / 2];
  result.low = times[times.size() / 4];
  result.high = times[times.size() * 3 / 4];
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] {
      if (i + 1 == argc) fail(Code::Usage, "{} needs a value", option);
      return std::string(argv[++i]);
    };
    const auto number = [&](int least, int most) {
      const std::string text = value();
      const int n = std::atoi(text.c_str());
      if (n < least || n > most) fail(Code::Usage, "{} {}: expected {} to {}", option, text, least, most);
      return n;
    };
    if (option == "--sequences") {
      options.sequences = number(1, 1024);
    } else if (option == "--spread") {
      options.spread = number(0, 1 << 20);
    } else if (option == "--heads") {
      options.heads = number(1, 1024);
    } else if (option == "--kv-heads") {
      options.kv_heads = number(1, 1024);
    } else if (option == "--head-dim") {
      options.head_dim = number(8, 256);
    } else if (option == "--repeats") {
      options.repeats = number(1, 100000);
    } else if (option == "-o") {
      options.json = value() == "json";
    } else if (option == "--tokens") {
      options.tokens.clear();
      const std::string list = value();
      for (std::size_t begin = 0; begin <= list.size();) {
        const std::size_t end = std::min(list.size(), list.find(',', begin));
        const int tokens = std::atoi(list.substr(begin, end - begin).c_str());
        if (tokens < 1 || tokens > 1 << 20) fail(Code::Usage, "--tokens {}: expected 1 to {}", list, 1 << 20);
        options.tokens.push_back(tokens);
        begin = end + 1;
      }
    } else {
      fail(Code::Usage, "{} is not an option; see the head of bench/kernels/attention_speed.cpp", option);
    }
  }
  return options;
}

void run(const Options& options) {
  constexpr std::uint64_t kRead = std::uint64_t{4} << 30;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "the GPU");
  const runner::Stream stream;
  double bandwidth = 0;  // bytes a second
  {
    const runner::DeviceMemory memory(kRead);
    check(cudaMemsetAsync(memory.get(), 0x5A, kRead, stream.get()), "the bandwidth");
    bandwidth = runner::measure_read_bandwidth(memory.get(), kRead, stream.get());
  }
  if (!options.json) {
    fmt::print("{}, {} multiprocessors, reads {:.2f} TB/s; {} query heads, {} of keys and values, {} dimensions\n",
               properties.name, properties.multiProcessorCount, bandwidth * 1e-12, options.heads, options.kv_heads,
               options.head_dim);
    fmt::print("sequences  tokens  layers   us a layer, median (quartiles)   bytes at full rate   GB/s   share\n");
  }
  io::Json rows = io::Json::array();
  for (const int tokens : options.tokens) {
    const Result r = measure(options, tokens, stream.get());
    const double rate = static_cast<double>(r.bytes) / r.microseconds * 1e6;
    const double ideal = static_cast<double>(r.bytes) / bandwidth * 1e6;
    rows.push_back({{"sequences", options.sequences},
                    {"tokens", tokens},
                    {"spread", options.spread},
                    {"layers", r.layers},
                    {"us", r.microseconds},
                    {"us_quartiles", {r.low, r.high}},
                    {"bytes", r.bytes},
                    {"bandwidth_share", rate / bandwidth}});
    if (options.json) continue;
    fmt::print("{:>9}{:>8}{:>8}   {:8.2f} ({:7.2f}-{:7.2f})      {:13.2f} us   {:8.0f}   {:3.0f} %\n",
               options.sequences, tokens, r.layers, r.microseconds, r.low, r.high, ideal, rate * 1e-9,
               100 * rate / bandwidth);
    std::fflush(stdout);
  }
  if (options.json) {
    const io::Json all{{"gpu", properties.name},
                       {"heads", options.heads},
                       {"kv_heads", options.kv_heads},
                       {"head_dim", options.head_dim},
                       {"read_bandwidth_gb_per_s", bandwidth * 1e-9},
                       {"attention", rows}};
    fmt::print("{}\n", all.dump(2));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
  return 0;
}
