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
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/kernels/timing.h"
#include "cuda/attention/attention.h"
#include "cuda/packing/packing.h"
#include "io/json.h"

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
  bench::Times times;      // of a layer
  std::int64_t bytes = 0;  // of a layer's keys and values that are seen
  int layers = 0;
};

Result measure(const Options& options, int tokens, cudaStream_t stream) {
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
  result.layers = static_cast<int>(std::max<std::int64_t>(8, bench::kBehindCaches / result.bytes + 1));
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
  std::vector<std::unique_ptr<runner::Graph>> graphs;
  graphs.push_back(std::make_unique<runner::Graph>(stream, [&] {
    for (std::size_t layer = 0; layer < keys.size(); ++layer) launch(layer);
  }));
  bench::time_graphs(graphs, result.layers, 3, stream);  // warms up
  result.times = bench::time_graphs(graphs, result.layers, options.repeats, stream).front();
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  for (bench::Arguments arguments(argc, argv); arguments.next();) {
    const std::string option = arguments.option();
    if (option == "--sequences") {
      options.sequences = arguments.number(1, 1024);
    } else if (option == "--spread") {
      options.spread = arguments.number(0, 1 << 20);
    } else if (option == "--heads") {
      options.heads = arguments.number(1, 1024);
    } else if (option == "--kv-heads") {
      options.kv_heads = arguments.number(1, 1024);
    } else if (option == "--head-dim") {
      options.head_dim = arguments.number(8, 256);
    } else if (option == "--repeats") {
      options.repeats = arguments.number(1, 100000);
    } else if (option == "-o") {
      options.json = bench::parse_output(arguments.value());
    } else if (option == "--tokens") {
      options.tokens = arguments.list(1, 1 << 20);
    } else {
      arguments.refuse("attention_speed");
    }
  }
  if (options.heads % options.kv_heads != 0)
    fail(Code::Usage, "--heads {}: not a multiple of --kv-heads {}", options.heads, options.kv_heads);
  if (options.head_dim % 8 != 0) fail(Code::Usage, "--head-dim {}: expected a multiple of 8", options.head_dim);
  return options;
}

void run(const Options& options) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "the GPU");
  const runner::Stream stream;
  const double bandwidth = bench::read_bandwidth(stream.get());
  if (!options.json) {
    fmt::print("{}, {} multiprocessors, reads {:.2f} TB/s; {} query heads, {} of keys and values, {} dimensions\n",
               properties.name, properties.multiProcessorCount, bandwidth * 1e-12, options.heads, options.kv_heads,
               options.head_dim);
    fmt::print("sequences  tokens  layers   us a layer, median (quartiles)   bytes at full rate   GB/s   share\n");
  }
  io::Json rows = io::Json::array();
  for (const int tokens : options.tokens) {
    const Result r = measure(options, tokens, stream.get());
    const double rate = static_cast<double>(r.bytes) / r.times.median * 1e6;
    const double ideal = static_cast<double>(r.bytes) / bandwidth * 1e6;
    rows.push_back({{"sequences", options.sequences},
                    {"tokens", tokens},
                    {"spread", options.spread},
                    {"layers", r.layers},
                    {"us", r.times.median},
                    {"us_quartiles", {r.times.low, r.times.high}},
                    {"bytes", r.bytes},
                    {"bandwidth_share", rate / bandwidth}});
    if (options.json) continue;
    fmt::print("{:>9}{:>8}{:>8}   {:8.2f} ({:7.2f}-{:7.2f})      {:13.2f} us   {:8.0f}   {:3.0f} %\n",
               options.sequences, tokens, r.layers, r.times.median, r.times.low, r.times.high, ideal, rate * 1e-9,
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
  return bench::run_program([&] { run(parse(argc, argv)); });
}
