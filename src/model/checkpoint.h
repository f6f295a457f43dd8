#pragma once
// The weights of a model directory: one file or the shards that its index names, every expected tensor exactly once.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/range.h"
#include "codec/packed_part.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/weight_files.h"
#include "model/weights.h"

namespace glyd::model {

struct MatrixPart;  // model/sharding.h

// Movable, not copyable.
class Checkpoint {
 public:
  // Opens config and weights of `dir` and checks all of it before any weight is used: missing, extra, misshapen and
  // wrong-dtype tensors, shards that are not there, prefixes. A redundant head (tied, and yet stored) is ignored, with
  // a warning when it differs from the embedding. Throws Error(Model) naming file and tensor.
  static Checkpoint open(const std::filesystem::path& dir);

  const std::filesystem::path& dir() const { return dir_; }
  const Config& config() const { return config_; }
  const ModelSpec& spec() const { return spec_; }
  const std::vector<io::Safetensors>& files() const { return weights_.files(); }
  const WeightFiles& weights() const { return weights_; }

  std::uint64_t parameters() const;    // of all matrices and vectors; a tied head counts once
  std::uint64_t weight_bytes() const;  // what reading all of them delivers: 2 bytes a parameter
  std::uint64_t stored_bytes() const;  // what they take in the files, in the files' dtypes

  // Reads one matrix, or part of it, as bf16 (F16 and F32 are rounded to nearest-even; BF16 keeps every bit pattern):
  // `out` receives rows [first_row, first_row + rows) of the spec's matrix, row-major. Safe from several threads.
  void read_rows(const MatrixSpec& matrix, std::uint64_t first_row, std::uint64_t rows, std::span<Bf16> out) const;
  // Of these rows the columns `cols` alone: [rows][cols.size()]. Nothing else is read of a plain matrix, and of a
  // packed one only units that have some.
  void read_columns(const MatrixSpec& matrix, std::uint64_t first_row, std::uint64_t rows, Range cols,
                    std::span<Bf16> out) const;
  // Rows [first_row, first_row + rows) of a part, counted as the part's: [rows][part.cols.size()].
  void read_part(const MatrixSpec& matrix, const MatrixPart& part, std::uint64_t first_row, std::uint64_t rows,
                 std::span<Bf16> out) const;
  void read_vector(const VectorSpec& vector, std::span<Bf16> out) const;

  // A packed directory (glyd.json beside the weights) looks the same: read_rows() decodes. What it is made of:
  const codec::Manifest* manifest() const { return weights_.manifest(); }  // null when the directory is a plain one

  // The packed matrix with exactly the rows of `matrix`; null when it is stored plain. Valid as long as this object.
  const codec::PackedTensor* packed(const MatrixSpec& matrix) const;
  // A part of it as a packed matrix, of which only the part's units are read; the part may be everything. Nothing when
  // the matrix is stored plain, and when a unit would be cut: then read_part() decodes. Valid as long as this object.
  std::optional<codec::PackedPart> packed_part(const MatrixSpec& matrix, const MatrixPart& part) const;

 private:
  using Place = WeightFiles::Place;
  explicit Checkpoint(WeightFiles weights) : weights_(std::move(weights)) {}
  void place_tensors(const std::string& prefix);
  void check_redundant_head(const std::string& head) const;
  void read_block(const std::string& tensor, Range rows, std::uint64_t stride, Range cols, std::span<Bf16> out) const;
  const Place& place_of(const std::string& tensor) const;

  std::filesystem::path dir_;
  Config config_;
  ModelSpec spec_;
  WeightFiles weights_;
  std::map<std::string, Place> places_;  // every tensor that spec_ names
};

}  // namespace glyd::model
