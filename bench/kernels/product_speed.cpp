// Times the products of a layer's matrices: packed weights, the own kernel on plain weights, and cuBLAS, one after the
// other in one run, launches inside a CUDA graph over enough copies of the weights that no cache holds them.
//
// product_speed [--shapes qwen3-32b,...] [--columns 1,8,32] [--heights 0] [--matrix gate,up] [--generic] [--repeats 15]
// A height of 0 is the one that make_partition() chooses.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "codec/pack.h"
#include "cuda/packing/gather_reference.h"
#include "cuda/products/products.h"
#include "runner/cuda/cublas.h"

namespace {

using namespace glyd;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* upload(const std::vector<T>& host) {
  T* device = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&device), host.size() * sizeof(T)), "cudaMalloc");
  check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return device;
}

struct Shape {
  const char* model;
  const char* name;
  int rows, cols;
};
constexpr Shape kShapes[] = {
    {"qwen3-32b", "qkv", 10240, 5120},       {"qwen3-32b", "o", 5120, 8192},
    {"qwen3-32b", "gate,up", 51200, 5120},   {"qwen3-32b", "down", 5120, 25600},
    {"qwen3-8b", "qkv", 6144, 4096},         {"qwen3-8b", "o", 4096, 4096},
    {"qwen3-8b", "gate,up", 24576, 4096},    {"qwen3-8b", "down", 4096, 12288},
    {"qwen2.5-7b", "qkv", 4608, 3584},       {"qwen2.5-7b", "o", 3584, 3584},
    {"qwen2.5-7b", "gate,up", 37888, 3584},  {"qwen2.5-7b", "down", 3584, 18944},
    {"qwen2.5-72b", "qkv", 10240, 8192},     {"qwen2.5-72b", "o", 8192, 8192},
    {"qwen2.5-72b", "gate,up", 59136, 8192}, {"qwen2.5-72b", "down", 8192, 29568},
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

// Median of `repeats` replays of a graph of eight launches, microseconds a launch.
double time_launches(cudaStream_t stream, int repeats, const std::function<void(int)>& launch) {
  constexpr int kLaunches = 8;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kLaunches; ++i) launch(i);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&replay, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < repeats; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(replay, stream), "launch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    times.push_back(ms * 1000 / kLaunches);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  return times[times.size() / 2];
}

struct Totals {
  double packed = 0, plain = 0, cublas = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::string models = "qwen3-32b", columns = "1,8,16,32,64,128", heights = "0";
  std::string matrix;
  int repeats = 15;
  cuda::KernelSet set = cuda::KernelSet::Hopper;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--generic") {
      set = cuda::KernelSet::Generic;
    } else if (i + 1 < argc && option == "--shapes") {
      models = argv[++i];
    } else if (i + 1 < argc && option == "--matrix") {
      matrix = argv[++i];
    } else if (i + 1 < argc && option == "--columns") {
      columns = argv[++i];
    } else if (i + 1 < argc && option == "--heights") {
      heights = argv[++i];
    } else if (i + 1 < argc && option == "--repeats") {
      repeats = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "error: option %s is not known; see the head of bench/kernels/product_speed.cpp\n", argv[i]);
      return 2;
    }
  }
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s, %d multiprocessors, %s kernels\n", device.name, device.multiProcessorCount,
              set == cuda::KernelSet::Hopper ? "Hopper" : "generic");
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  void* workspace = nullptr;
  check(cudaMalloc(&workspace, 64 << 20), "cudaMalloc");
  runner::Cublas cublas(stream, workspace, 64 << 20);
  ThreadPool pool(available_threads());

  for (const std::string& model : split(models)) {
    std::vector<Totals> totals(split(columns).size());
    for (const Shape& shape : kShapes) {
      if (model != shape.model || (!matrix.empty() && matrix != shape.name)) continue;
      // Some rows are made and packed, and repeated until the matrix is full; the last rows are what is left over.
      const int unique = shape.rows % 1024 == 0 ? 1024 : shape.rows % 512 == 0 ? 512 : shape.rows % 256 == 0 ? 256 : 64;
      std::vector<Bf16> weights(static_cast<std::size_t>(unique) * shape.cols);
      std::mt19937 random(1);
      std::normal_distribution<float> normal(0.0f, 0.02f);
      std::vector<Bf16> values(1 << 16);
      for (Bf16& v : values) v = to_bf16(normal(random));
      for (Bf16& w : weights) w = values[random() >> 16];
      const auto packed =
          codec::pack({static_cast<std::uint64_t>(unique), static_cast<std::uint64_t>(shape.cols)}, weights, {}, pool);
      const cuda::HostResident host = cuda::gather_reference(*packed, shape.rows / unique);
      const std::size_t bytes = host.sign_mantissa.size() + host.streams.size();
      const double bits =
          8.0 * (static_cast<double>(bytes) + 4.0 * host.block_offsets.size()) / shape.rows / shape.cols;
      const int copies = static_cast<int>(std::max<std::size_t>(2, (400u << 20) / bytes + 1));
      std::vector<cuda::ResidentMatrix> resident;
      std::vector<cuda::PlainMatrix> plain;
      const std::uint32_t* table = upload(host.table);
      for (int i = 0; i < copies; ++i) {
        resident.push_back({shape.rows, shape.cols, upload(host.sign_mantissa), upload(host.streams),
                            upload(host.block_offsets), table, host.max_block_bytes});
        std::uint16_t* data = nullptr;
        check(cudaMalloc(reinterpret_cast<void**>(&data), std::size_t{2} * shape.rows * shape.cols), "cudaMalloc");
        for (int r = 0; r < shape.rows; r += unique)
          check(cudaMemcpy(data + static_cast<std::size_t>(r) * shape.cols, weights.data(), weights.size() * 2,
                           cudaMemcpyHostToDevice),
                "cudaMemcpy");
        plain.push_back({data, shape.rows, shape.cols, shape.cols});
      }
      std::vector<Bf16> x(static_cast<std::size_t>(cuda::kMaxColumns) * shape.cols);
      for (Bf16& v : x) v = to_bf16(50 * to_float(values[random() >> 16]));
      const Bf16* image = upload(x);  // any numbers serve as an image
      float* partials = nullptr;
      check(cudaMalloc(reinterpret_cast<void**>(&partials), std::size_t{1} << 30), "cudaMalloc");

      int column = 0;
      for (const std::string& text : split(columns)) {
        const int tokens = std::atoi(text.c_str());
        Totals& total = totals[static_cast<std::size_t>(column++)];
        const cuda::Activations activations{reinterpret_cast<std::uint16_t*>(const_cast<Bf16*>(image)),
                                            cuda::activation_layout(set, tokens), cuda::activation_columns(tokens), 0};
        const double t_cublas = time_launches(stream, repeats, [&](int i) {
          cublas.multiply(plain[static_cast<std::size_t>(i % copies)].data, shape.rows, shape.cols, shape.cols,
                          activations.data, shape.cols, tokens, partials, shape.rows, false);
        });
        bool first = true;
        for (const std::string& height : split(heights)) {
          cuda::Partition p = cuda::make_partition(shape.rows, shape.cols, device.multiProcessorCount);
          if (height != "0")
            p = cuda::partition_of_height(shape.rows, shape.cols, device.multiProcessorCount,
                                          std::atoi(height.c_str()));
          const double t_packed = time_launches(stream, repeats, [&](int i) {
            check(cuda::multiply(set, resident[static_cast<std::size_t>(i % copies)], p, activations, tokens, partials,
                                 stream),
                  "packed product");
          });
          const double t_plain = time_launches(stream, repeats, [&](int i) {
            check(cuda::multiply(set, plain[static_cast<std::size_t>(i % copies)], p, activations, tokens, partials,
                                 stream),
                  "plain product");
          });
          std::printf(
              "%-11s %-8s %6d x %5d  %.3f bits, height %d, up to %d splits, N %3d: packed %7.1f us %.2f TB/s | "
              "plain %7.1f us %.2f TB/s | cuBLAS %7.1f us | packed x %.3f, plain x %.3f\n",
              shape.model, shape.name, shape.rows, shape.cols, bits, p.height, cuda::max_splits(p), tokens, t_packed,
              static_cast<double>(bytes) / t_packed * 1e-6, t_plain, 2.0 * shape.rows * shape.cols / t_plain * 1e-6,
              t_cublas, t_cublas / t_packed, t_cublas / t_plain);
          std::fflush(stdout);
          if (!first) continue;
          first = false;
          total.packed += t_packed;
          total.plain += t_plain;
          total.cublas += t_cublas;
        }
      }
      for (int i = 0; i < copies; ++i) {
        const auto& r = resident[static_cast<std::size_t>(i)];
        cudaFree(const_cast<std::uint8_t*>(r.sign_mantissa));
        cudaFree(const_cast<std::uint8_t*>(r.streams));
        cudaFree(const_cast<std::uint32_t*>(r.block_offsets));
        cudaFree(const_cast<std::uint16_t*>(plain[static_cast<std::size_t>(i)].data));
      }
      cudaFree(partials);
      cudaFree(const_cast<Bf16*>(image));
    }
    int column = 0;
    for (const std::string& text : split(columns)) {
      const Totals& t = totals[static_cast<std::size_t>(column++)];
      std::printf("%-11s layer, N %3s: packed %7.1f us, plain %7.1f us, cuBLAS %7.1f us: packed x %.3f, plain x %.3f\n",
                  model.c_str(), text.c_str(), t.packed, t.plain, t.cublas, t.cublas / t.packed, t.cublas / t.plain);
    }
  }
  return 0;
}
