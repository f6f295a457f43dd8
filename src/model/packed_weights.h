#pragma once
// The packed matrices of a packed directory, seen as the tensors of the original that they hold.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/manifest.h"
#include "codec/packed_file.h"
#include "io/safetensors.h"

namespace glyd::model {

class PackedWeights {
 public:
  // An original tensor inside a packed matrix.
  struct Member {
    const io::Safetensors* file = nullptr;  // that holds the packed matrix
    io::Tensor original;                    // name, BF16, shape; begin and end are 0 and its size
    const codec::PackedTensor* matrix = nullptr;
    std::uint64_t first_row = 0;  // of the matrix
  };
  // Finds a stored tensor by name; null when there is none.
  using Find = std::function<std::pair<const io::Safetensors*, const io::Tensor*>(std::string_view name)>;

  // Reads glyd.json of `dir` and checks it against the stored tensors: each matrix is there with the size and shape it
  // says, and none of its members is stored a second time. Throws Error(Model) naming file and tensor.
  PackedWeights(const std::filesystem::path& dir, const Find& find);

  const codec::Manifest& manifest() const { return manifest_; }
  const std::map<std::string, Member, std::less<>>& members() const { return members_; }
  bool holds_matrix(const io::Tensor& stored) const { return stored_.contains(stored.name); }

 private:
  codec::Manifest manifest_;
  std::vector<std::unique_ptr<codec::PackedTensor>> matrices_;
  std::map<std::string, Member, std::less<>> members_;
  std::set<std::string, std::less<>> stored_;  // names of the tensors that hold the packed matrices
};

}  // namespace glyd::model
