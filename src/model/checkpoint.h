#pragma once
// The weights of a model directory: one file or the shards that its index names, every expected tensor exactly once.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/weights.h"

namespace glyd::model {

class Checkpoint {
 public:
  // Opens config and weights of `dir` and checks all of it before any weight is read: missing, extra, misshapen and
  // wrong-dtype tensors, shards that are not there, prefixes, the redundant head. Throws Error(Model) naming file and
  // tensor.
  static Checkpoint open(const std::filesystem::path& dir);

  const std::filesystem::path& dir() const { return dir_; }
  const Config& config() const { return config_; }
  const ModelSpec& spec() const { return spec_; }
  const std::vector<io::Safetensors>& files() const { return files_; }

  // Bytes that reading everything moves, and parameters (tied head counted once).
  std::uint64_t weight_bytes() const;
  std::uint64_t parameters() const;

  // Reads one matrix, or part of it, as bf16 (F16 and F32 are rounded to nearest-even):
  // `out` receives rows [first_row, first_row + rows) of the spec's matrix, row-major. Safe from several threads.
  void read_rows(const MatrixSpec& matrix, std::uint64_t first_row, std::uint64_t rows, std::span<Bf16> out) const;
  void read_vector(const VectorSpec& vector, std::span<Bf16> out) const;

 private:
  Checkpoint() = default;
  struct Place {
    const io::Safetensors* file;
    const io::Tensor* tensor;
  };
  Place place(const std::string& tensor) const;

  std::filesystem::path dir_;
  Config config_;
  ModelSpec spec_;
  std::vector<io::Safetensors> files_;
};

}  // namespace glyd::model
