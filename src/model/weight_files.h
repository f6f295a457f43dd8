#pragma once
// The safetensors files of a model directory: a single one, or the shards that its index names, and which tensor
// counts.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/safetensors.h"

namespace glyd::model {

class WeightFiles {
 public:
  struct Place {
    const io::Safetensors* file = nullptr;
    const io::Tensor* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };

  // model.safetensors of `dir`, else the files that model.safetensors.index.json names and no others. Everything is
  // checked before anything is read: names that leave the directory, shards that are not there, tensors that a shard
  // lacks. Throws Error(Model).
  static WeightFiles open(const std::filesystem::path& dir);

  const std::vector<io::Safetensors>& files() const { return files_; }
  const std::string& origin() const { return origin_; }  // for messages: the single file, or the index

  // The tensor of that name, from the file that the index names for it; none when the index does not list it.
  Place find(std::string_view name) const;

  // Visits every tensor of every file, except copies of one that the index takes from another file.
  void for_each(const std::function<void(const io::Safetensors&, const io::Tensor&)>& visit) const;

 private:
  struct Listed {
    std::string tensor;
    std::uint32_t file = 0;  // index into files_
  };
  WeightFiles() = default;
  void open_file(const std::filesystem::path& path);
  std::vector<std::string> read_index(const std::filesystem::path& path);
  const Listed* listed(std::string_view name) const;

  std::string origin_;
  std::vector<io::Safetensors> files_;
  bool sharded_ = false;
  std::vector<Listed> index_;  // sorted by tensor
  std::uint64_t entries_ = 0;  // tensors and metadata of all files so far
};

}  // namespace glyd::model
