#pragma once
// Runners on the GPU with the models they are tested with, and how far apart two answers are.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runner/runner.h"
#include "runner/sequences.h"

namespace glyd::test {

// Another directory with the same files; its weights may be changed.
void copy_model(const std::filesystem::path& from, const std::filesystem::path& to);
// Bytes [offset, offset + bytes.size()) of a tensor in dir / model.safetensors. A negative offset counts from its end.
void overwrite_tensor(const std::filesystem::path& dir, const std::string& tensor, std::int64_t offset,
                      const std::string& bytes);

struct GpuSetup {
  runner::WeightFormat weights = runner::WeightFormat::AsStored;
  bool eager = false;
  runner::Gemm gemm = runner::Gemm::Auto;
  bool batch_invariant = false;
  std::int64_t max_sequences = 160, kv_blocks = 512, context = 1024;
  std::uint64_t memory_limit = 0;
  std::vector<bool> allowed = {};
  int tensor_parallel = 1, pipeline_parallel = 1;
  std::string device = {};  // empty: all ranks on the first GPU
};
std::unique_ptr<runner::Runner> gpu_runner(const GpuSetup& setup = {});  // without a model
std::unique_ptr<runner::Runner> load_gpu(const std::filesystem::path& model, const GpuSetup& setup = {});

// Sets GLYD_KERNELS while it lives: runners take it when they are made and loaded.
class KernelsFromEnvironment {
 public:
  explicit KernelsFromEnvironment(const char* name);
  ~KernelsFromEnvironment();
  KernelsFromEnvironment(const KernelsFromEnvironment&) = delete;
  KernelsFromEnvironment& operator=(const KernelsFromEnvironment&) = delete;
};

// Empty when both hold the same bits, all of them finite numbers; else the first place where they do not.
std::string difference(const Rows& a, const Rows& b);

// How far rows are from the reference's, each over the range of the reference's row; the worst of all rows.
struct Distance {
  double largest = 0;  // of one logit
  double rms = 0;      // of a row
};
Distance distance(const Rows& rows, const Rows& reference);

// What two computations may be apart that round in the same places and add in different orders. A sum that lies
// between two bf16 values goes up here and down there, and what follows differs by as much. Measured on the shipped
// models between the CPU's kernels for AVX-512 and for plain SIMD: at most 0.0057 and 0.0015. Prompts on a GPU also
// round the probabilities of attention.
inline constexpr Distance kReordered{0.015, 0.004};
// What bf16 activations may be apart from exact ones: on the CPU at most 0.013 and 0.0028.
inline constexpr Distance kRounded{0.02, 0.006};

}  // namespace glyd::test
