#pragma once
// The safetensors files of a model directory: a single one, or the shards that its index names, and which tensor
// counts.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "model/packed_weights.h"

namespace glyd::model {

class WeightFiles {
 public:
  struct Place {
    const io::Safetensors* file = nullptr;
    const io::Tensor* tensor = nullptr;  // of a packed one: as it was in the original, its data is not at `begin`
    const codec::PackedTensor* packed = nullptr;  // the packed matrix that holds it
    std::uint64_t first_row = 0;                  // of that matrix
    explicit operator bool() const { return tensor != nullptr; }
  };

  // model.safetensors of `dir`, else the files that model.safetensors.index.json names and no others. Everything is
  // checked before anything is read: names that leave the directory, shards that are not there, tensors that a shard
  // lacks. With glyd.json beside them they are those of a packed directory. Throws Error(Model).
  static WeightFiles open(const std::filesystem::path& dir);

  const std::vector<io::Safetensors>& files() const { return files_; }
  const std::string& origin() const { return origin_; }  // for messages: the single file, or the index
  const codec::Manifest* manifest() const { return packed_ ? &packed_->manifest() : nullptr; }  // null: not packed

  // The tensor of that name, from the file that the index names for it; none when the index does not list it.
  Place find(std::string_view name) const;

  // Throws Error(Model) when a file has that tensor all the same, but the index does not list it.
  void require_listed(std::string_view name) const;

  // Visits every tensor of every file, except copies of one that the index takes from another file; tensors of the
  // original where they are packed.
  void for_each(const std::function<void(const io::Safetensors&, const io::Tensor&)>& visit) const;

 private:
  struct Listed {
    std::string tensor;
    std::uint32_t file = 0;  // index into files_
  };
  WeightFiles() = default;
  void open_shards(const std::filesystem::path& dir, const std::filesystem::path& index);
  void open_file(const std::filesystem::path& path);
  std::vector<std::string> read_index(const std::filesystem::path& path);
  const Listed* listed(std::string_view name) const;
  Place find_stored(std::string_view name) const;
  void require_plain(const std::filesystem::path& dir) const;

  std::string origin_;
  std::vector<io::Safetensors> files_;
  std::unique_ptr<PackedWeights> packed_;  // null: not a packed directory
  bool sharded_ = false;
  std::vector<Listed> index_;                     // sorted by tensor
  std::uint64_t entries_ = 0, header_bytes_ = 0;  // of all files so far
};

}  // namespace glyd::model
