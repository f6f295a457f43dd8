// Times the products of a layer and the head of a model's shape: packed weights, the own kernels on plain weights, and
// cuBLAS. Gaussian weights made and packed on the GPU. Launches are in CUDA graphs over enough copies of the weights
// that no cache holds them, and the graphs of the three kinds are replayed by turns. Everything a product does is in
// the times but adding up the parts, which the next operation does while it reads them.
//
//   product_speed models/qwen3-32b [MODEL ...] [--columns 1,8,32] [--matrix gate_up] [--repeats 15] [--generic]
//                 [--seconds 3] [--anywhere] [-o json]
//
// "layer" is the four products in their order, in one graph. --seconds: the layer's graph without a pause for as long,
// which is when a chip's power limits its clock; with clock, power and energy a layer. --anywhere: pages of packed
// weights are not placed by the halves of the L2 cache.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/sizes.h"
#include "base/text.h"
#include "bench/kernels/sustained.h"
#include "bench/kernels/timing.h"
#include "cuda/packing/packing.h"
#include "cuda/products/products.h"
#include "io/json.h"
#include "model/config.h"
#include "model/weights.h"
#include "runner/cuda/cache_sides.h"
#include "runner/cuda/cublas.h"
#include "runner/cuda/packer.h"

namespace {

using namespace glyd;
using runner::check;

enum Kind { kPacked, kPlain, kCublas };
constexpr std::array<const char*, 3> kKinds{"packed", "plain", "cublas"};

struct Options {
  std::vector<std::string> models;
  std::vector<int> columns{1, 8, 16, 32, 64, 128};
  std::string matrix;
  int repeats = 15;
  int seconds = 0;
  bool json = false, anywhere = false;
  cuda::KernelSet set = cuda::KernelSet::Hopper;
};

// Weights in several copies.
struct Matrix {
  std::string name;
  std::int64_t rows = 0, cols = 0;
  cuda::Partition partition;
  std::vector<cuda::ResidentMatrix> packed;
  std::vector<cuda::PlainMatrix> plain;
  std::uint64_t packed_bytes = 0;  // of a copy, all of it
  std::vector<runner::DeviceMemory> memory;

  std::uint64_t bytes(Kind kind) const {
    return kind == kPacked ? packed_bytes : static_cast<std::uint64_t>(rows * cols) * 2;
  }
};

struct Device {
  cudaDeviceProp properties{};
  runner::Stream stream;
  runner::DeviceMemory workspace{64 << 20}, partials{std::uint64_t{3} << 28}, x;
  runner::Cublas cublas{stream.get(), workspace.get(), 64 << 20};
  double bandwidth = 0;  // bytes a second
  std::optional<runner::CacheSides> sides;
};

Matrix make_matrix(const std::string& name, std::int64_t rows, std::int64_t cols, Device& device) {
  cudaStream_t stream = device.stream.get();
  Matrix m{name, rows, cols, cuda::make_partition(rows, cols, device.properties.multiProcessorCount), {}, {}, 0, {}};
  const std::int64_t stride = round_up(cols, 32);
  const auto plain_bytes = static_cast<std::uint64_t>(rows * stride) * 2;
  const auto copies = std::max<std::uint64_t>(2, bench::kBehindCaches / (plain_bytes / 3 * 2) + 1);
  const auto scratch_bytes = runner::Packer::scratch_bytes(rows, cols);
  const runner::DeviceMemory scratch(scratch_bytes);
  runner::Packer packer(scratch.get(), scratch_bytes);
  std::optional<runner::ResidentBytes> sizes;
  for (std::uint64_t i = 0; i < copies; ++i) {
    auto* data = static_cast<std::uint16_t*>(m.memory.emplace_back(plain_bytes + cuda::kPlainReadAhead).get());
    check(cuda::random_weights(1, 0.02f, {0, rows, 0, cols, cols}, data, stride, stream), "making weights");
    if (!sizes) sizes = packer.prepare_from_bf16(data, rows, cols, stride, stream);
    if (!sizes) fail(Code::Runtime, "{} does not shrink", name);
    m.plain.push_back({data, rows, cols, stride});
    m.packed.push_back(
        packer.finish(m.memory.emplace_back(sizes->total).get(), stream, device.sides ? &*device.sides : nullptr));
  }
  check(cudaStreamSynchronize(stream), "packing");
  m.packed_bytes = sizes->sign_mantissa + sizes->streams + sizes->offsets;
  return m;
}

void launch(Device& device, const Matrix& m, Kind kind, cuda::KernelSet set, int tokens, std::size_t copy) {
  copy %= m.packed.size();
  auto* x = static_cast<std::uint16_t*>(device.x.get());
  auto* partials = static_cast<float*>(device.partials.get());
  const cuda::Activations image{x, cuda::activation_layout(set, tokens), cuda::activation_columns(tokens), 0};
  if (kind == kCublas) {
    device.cublas.multiply(m.plain[copy].data, m.rows, m.cols, m.plain[copy].stride, x, m.plain[copy].stride, tokens,
                           partials, m.rows, false);
  } else if (kind == kPacked) {
    check(cuda::multiply(set, m.packed[copy], m.partition, image, tokens, partials, device.stream.get()), "a product");
  } else {
    check(cuda::multiply(set, m.plain[copy], m.partition, image, tokens, partials, device.stream.get()), "a product");
  }
}

// Of one of the `launches` that each graph holds; the graphs are replayed by turns.
std::array<bench::Times, 3> time_kinds(Device& device, int repeats, int launches,
                                       const std::function<void(Kind)>& capture) {
  std::vector<std::unique_ptr<runner::Graph>> graphs;
  for (const Kind kind : {kPacked, kPlain, kCublas}) {
    capture(kind);  // once outside: for what is set up at first use
    graphs.push_back(std::make_unique<runner::Graph>(device.stream.get(), [&] { capture(kind); }));
  }
  const std::vector<bench::Times> times = bench::time_graphs(graphs, launches, repeats, device.stream.get());
  return {times[kPacked], times[kPlain], times[kCublas]};
}

io::Json report(const Options& options, const Device& device, const std::string& name, int tokens,
                const std::array<bench::Times, 3>& times, const std::function<std::uint64_t(Kind)>& bytes,
                double bits) {
  io::Json row{{"matrix", name}, {"columns", tokens}, {"bits_per_weight", bits}};
  for (const Kind kind : {kPacked, kPlain, kCublas}) {
    const bench::Times& t = times[kind];
    row[kKinds[kind]] = {{"us", t.median},
                         {"us_quartiles", {t.low, t.high}},
                         {"bandwidth_share", static_cast<double>(bytes(kind)) / t.median * 1e6 / device.bandwidth}};
  }
  row["cublas_over_packed"] = times[kCublas].median / times[kPacked].median;
  if (!options.json) {
    const auto cell = [&](Kind kind) {
      const bench::Times& t = times[kind];
      return fmt::format("{:7.1f} ({:6.1f}-{:6.1f}) {:3.0f} %", t.median, t.low, t.high,
                         100 * static_cast<double>(bytes(kind)) / t.median * 1e6 / device.bandwidth);
    };
    fmt::print("{:<9}{:>4}  {:6.3f}   {}   {}   {}   {:.3f}\n", name, tokens, bits, cell(kPacked), cell(kPlain),
               cell(kCublas), times[kCublas].median / times[kPacked].median);
    std::fflush(stdout);
  }
  return row;
}

io::Json measure(const Options& options, const std::string& path, Device& device) {
  constexpr int kLaunches = 8, kLayers = 4;
  const model::Config config = model::load_config(path);
  const model::ModelSpec spec = model::model_spec(config);
  const model::LayerSpec& layer = spec.layers.front();
  std::vector<Matrix> matrices;
  for (const auto* m :
       {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, config.tied_head ? &spec.embed : &spec.lm_head}) {
    const std::string name = m->name.substr(m->name.rfind('.') + 1);
    if (!options.matrix.empty() && name != options.matrix) continue;
    matrices.push_back(
        make_matrix(name, static_cast<std::int64_t>(m->rows), static_cast<std::int64_t>(m->cols), device));
  }
  if (matrices.empty()) fail(Code::Usage, "--matrix {}: expected qkv, o, gate_up, down or lm_head", options.matrix);
  if (!options.json) {
    fmt::print("\n{}: microseconds a product, median (quartiles), share of the read bandwidth\n", path);
    fmt::print(
        "matrix  columns  bits   packed                         own plain                      cuBLAS         "
        "                cuBLAS / packed\n");
  }
  io::Json rows = io::Json::array();
  const auto bits = [](std::uint64_t bytes, std::int64_t weights) {
    return 8 * static_cast<double>(bytes) / static_cast<double>(weights);
  };
  for (const int tokens : options.columns) {
    for (const Matrix& m : matrices) {
      const auto times = time_kinds(device, options.repeats, kLaunches, [&](Kind kind) {
        for (std::size_t i = 0; i < kLaunches; ++i) launch(device, m, kind, options.set, tokens, i);
      });
      rows.push_back(report(
          options, device, m.name, tokens, times, [&](Kind kind) { return m.bytes(kind); },
          bits(m.packed_bytes, m.rows * m.cols)));
    }
    if (matrices.size() < 4) continue;
    const auto layers = [&](Kind kind) {
      for (std::size_t i = 0; i < kLayers; ++i)
        for (std::size_t j = 0; j < 4; ++j) launch(device, matrices[j], kind, options.set, tokens, i);
    };
    const auto layer_bytes = [&](Kind kind) {
      std::uint64_t sum = 0;
      for (std::size_t j = 0; j < 4; ++j) sum += matrices[j].bytes(kind);
      return sum;
    };
    const auto times = time_kinds(device, options.repeats, kLayers, layers);
    io::Json row = report(options, device, "layer", tokens, times, layer_bytes,
                          bits(layer_bytes(kPacked), static_cast<std::int64_t>(layer_bytes(kPlain)) / 2));
    for (const Kind kind : {kPacked, kPlain, kCublas}) {
      if (options.seconds <= 0) break;
      bench::Sustained s = bench::run_without_pause(device.stream.get(), options.seconds, [&] { layers(kind); });
      s.microseconds /= kLayers;
      row[kKinds[kind]]["sustained_us"] = s.microseconds;
      if (s.clock) row[kKinds[kind]]["sustained_mhz"] = *s.clock;
      if (s.watts) row[kKinds[kind]]["sustained_watts"] = *s.watts;
      if (!options.json)
        fmt::print("  {} s of {}: {:.1f} us a layer{}\n", options.seconds, kKinds[kind], s.microseconds, s.text());
    }
    rows.push_back(row);
  }
  return {{"model", path}, {"products", rows}};
}

Options parse(int argc, char** argv) {
  Options options;
  for (bench::Arguments arguments(argc, argv); arguments.next();) {
    const std::string option = arguments.option();
    if (option == "--generic") {
      options.set = cuda::KernelSet::Generic;
    } else if (option == "--anywhere") {
      options.anywhere = true;
    } else if (option == "--matrix") {
      options.matrix = arguments.value();
    } else if (option == "--repeats") {
      options.repeats = arguments.number(1, 100000);
    } else if (option == "--seconds") {
      options.seconds = arguments.number(1, 3600);
    } else if (option == "-o") {
      options.json = bench::parse_output(arguments.value());
    } else if (option == "--columns") {
      options.columns = arguments.list(1, cuda::kMaxColumns);
    } else if (option.starts_with("-")) {
      arguments.refuse("product_speed");
    } else {
      options.models.push_back(option);
    }
  }
  if (options.models.empty()) fail(Code::Usage, "no model; a directory with a config.json, models/qwen3-32b");
  return options;
}

void run(const Options& options) {
  Device device;
  check(cudaGetDeviceProperties(&device.properties, 0), "the GPU");
  device.bandwidth = bench::read_bandwidth(device.stream.get());
  if (!options.anywhere && options.set == cuda::KernelSet::Hopper)
    device.sides.emplace(device.properties.multiProcessorCount, device.stream.get());
  // Any numbers serve as activations, in every layout.
  constexpr std::int64_t kWidest = 65536;
  device.x = runner::DeviceMemory(std::uint64_t{2} * cuda::kMaxColumns * kWidest);
  check(cuda::random_weights(2, 1, {0, cuda::kMaxColumns, 0, kWidest, kWidest},
                             static_cast<std::uint16_t*>(device.x.get()), kWidest, device.stream.get()),
        "activations");
  const char* const kernels = options.set == cuda::KernelSet::Hopper ? "sm_90a" : "generic";
  if (!options.json) {
    fmt::print("{}, {} multiprocessors, {} kernels, reads {:.2f} TB/s", device.properties.name,
               device.properties.multiProcessorCount, kernels, device.bandwidth * 1e-12);
    if (device.sides && device.sides->known())
      fmt::print(", pages near to {} + {}", device.sides->processors(0), device.sides->processors(1));
    fmt::print("\n");
  }
  io::Json models = io::Json::array();
  for (const std::string& path : options.models) models.push_back(measure(options, path, device));
  if (options.json) {
    const io::Json all{{"gpu", device.properties.name},
                       {"kernels", kernels},
                       {"read_bandwidth_gb_per_s", device.bandwidth * 1e-9},
                       {"models", models}};
    fmt::print("{}\n", all.dump(2));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program([&] { run(parse(argc, argv)); });
}
