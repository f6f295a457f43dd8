#include "model/weight_files.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "io/json_reader.h"
#include "model/directory.h"

namespace glyd::model {
namespace {

using io::JsonReader;

constexpr std::uint64_t kMostIndexBytes = 64 << 20;
constexpr std::size_t kMostShards = 10'000;

// In all headers together: far more than a model has, and little enough to bound memory.
constexpr std::uint64_t kMostEntries = 1'000'000;
constexpr std::uint64_t kMostHeaderBytes = 64 << 20;

}  // namespace

WeightFiles WeightFiles::open(const std::filesystem::path& dir) {
  WeightFiles weights;
  const std::filesystem::path single = dir / "model.safetensors", index = dir / "model.safetensors.index.json";
  if (entry_exists(single)) {  // it wins over an index beside it
    weights.origin_ = printable(single.native());
    weights.open_file(single);
  } else if (entry_exists(index)) {
    weights.open_shards(dir, index);
  } else {
    explain_no_weights(dir);
  }
  if (entry_exists(dir / codec::kManifestName)) {
    weights.packed_ = std::make_unique<PackedWeights>(dir, [&](std::string_view name) {
      const Place place = weights.find_stored(name);
      if (!place && name.ends_with(codec::kPackedEnding)) weights.require_listed(name);
      return std::pair(place.file, place.tensor);
    });
  } else {
    weights.require_plain(dir);
  }
  return weights;
}

// Without glyd.json nothing says which tensors the packed matrices hold.
void WeightFiles::require_plain(const std::filesystem::path& dir) const {
  for (const io::Safetensors& file : files_) {
    for (const io::Tensor& tensor : file.tensors()) {
      if (!tensor.name.ends_with(codec::kPackedEnding)) continue;
      fail(Code::Model, "{}: packed weights ({} in {}), but {} is missing; pack the original again",
           printable(dir.native()), quote(tensor.name), quote(file.path().filename().native()), codec::kManifestName);
    }
  }
}

void WeightFiles::open_shards(const std::filesystem::path& dir, const std::filesystem::path& index) {
  origin_ = printable(index.native());
  sharded_ = true;
  const std::vector<std::string> names = read_index(index);
  for (const std::string& name : names) {
    if (!entry_exists(dir / name)) {
      fail(Code::Model, "{}: weight_map names {}, which is not in the directory; download the missing shard", origin_,
           quote(name));
    }
  }
  files_.reserve(names.size());
  for (const std::string& name : names) open_file(dir / name);
  for (const Listed& entry : index_) {
    const io::Safetensors& file = files_[entry.file];
    if (file.find(entry.tensor) == nullptr) {
      fail(Code::Model, "{}: tensor {} is missing; {} says that it is there", printable(file.path().native()),
           quote(entry.tensor), origin_);
    }
  }
}

void WeightFiles::open_file(const std::filesystem::path& path) {
  files_.push_back(io::Safetensors::open(path));
  const io::Safetensors& file = files_.back();
  entries_ += file.tensors().size() + file.metadata().size();
  header_bytes_ += file.data_begin();
  if (entries_ > kMostEntries || header_bytes_ > kMostHeaderBytes) {
    fail(Code::Model,
         "{}: the headers hold {} entries in {} bytes, more than the {} in {} that any supported model needs",
         printable(path.native()), entries_, header_bytes_, kMostEntries, kMostHeaderBytes);
  }
}

// Fills index_ and returns the distinct file names, in the order of their first use.
std::vector<std::string> WeightFiles::read_index(const std::filesystem::path& path) {
  const std::string text = io::read_text(path, kMostIndexBytes);
  JsonReader reader(text, path.string());
  std::vector<std::string> names;
  std::map<std::string, std::uint32_t, std::less<>> numbers;

  const auto read_map = [&] {
    if (reader.kind() != JsonReader::Kind::Object) {
      fail(Code::Model, "{}: weight_map is {}, expected an object of tensor names and file names", origin_,
           io::kind_name(reader.kind()));
    }
    reader.begin_object();
    std::string tensor, file;
    while (reader.next_key(tensor)) {
      if (reader.kind() != JsonReader::Kind::String) {
        fail(Code::Model, "{}: weight_map: the file of tensor {} is {}, expected a string", origin_, quote(tensor),
             io::kind_name(reader.kind()));
      }
      reader.string(file);
      if (!io::is_plain_name(file)) {
        fail(Code::Model, "{}: weight_map: tensor {} is in {}, which is not a plain file name inside the directory",
             origin_, quote(tensor), quote(file));
      }
      const auto [it, fresh] = numbers.try_emplace(file, static_cast<std::uint32_t>(names.size()));
      if (fresh) names.push_back(file);
      if (names.size() > kMostShards || index_.size() >= kMostEntries) {
        fail(Code::Model, "{}: weight_map lists more than {} files or {} tensors", origin_, kMostShards, kMostEntries);
      }
      index_.push_back({std::move(tensor), it->second});
      tensor.clear();
    }
  };

  if (reader.kind() != JsonReader::Kind::Object) fail(Code::Model, "{}: expected a JSON object", origin_);
  bool found = false;
  std::string key;
  reader.begin_object();
  while (reader.next_key(key)) {
    if (key != "weight_map") {
      reader.skip();  // metadata.total_size is advisory, and often wrong
      continue;
    }
    if (std::exchange(found, true)) fail(Code::Model, "{}: weight_map is given twice", origin_);
    read_map();
  }
  reader.end();
  if (!found) fail(Code::Model, "{}: weight_map is missing", origin_);

  std::sort(index_.begin(), index_.end(), [](const Listed& a, const Listed& b) { return a.tensor < b.tensor; });
  const auto twice = std::adjacent_find(index_.begin(), index_.end(),
                                        [](const Listed& a, const Listed& b) { return a.tensor == b.tensor; });
  if (twice != index_.end()) fail(Code::Model, "{}: weight_map lists tensor {} twice", origin_, quote(twice->tensor));
  return names;
}

const WeightFiles::Listed* WeightFiles::listed(std::string_view name) const {
  const auto it = std::lower_bound(index_.begin(), index_.end(), name,
                                   [](const Listed& entry, std::string_view wanted) { return entry.tensor < wanted; });
  return it != index_.end() && it->tensor == name ? &*it : nullptr;
}

WeightFiles::Place WeightFiles::find(std::string_view name) const {
  if (packed_) {
    const auto member = packed_->members().find(name);
    if (member != packed_->members().end()) {
      const PackedWeights::Member& m = member->second;
      return {m.file, &m.original, m.matrix, m.first_row};
    }
  }
  return find_stored(name);
}

WeightFiles::Place WeightFiles::find_stored(std::string_view name) const {
  if (!sharded_) {
    const io::Tensor* tensor = files_[0].find(name);
    return {.file = tensor ? &files_[0] : nullptr, .tensor = tensor};
  }
  const Listed* entry = listed(name);
  if (entry == nullptr) return {};
  const io::Safetensors& file = files_[entry->file];
  return {.file = &file, .tensor = file.find(name)};
}

void WeightFiles::require_listed(std::string_view name) const {
  if (!sharded_ || listed(name) != nullptr) return;
  const bool packed = packed_ || name.ends_with(codec::kPackedEnding);
  for (const io::Safetensors& file : files_) {
    if (file.find(name) == nullptr) continue;
    fail(Code::Model, "{}: weight_map does not list tensor {}, which is in {}; {}", origin_, quote(name),
         quote(file.path().filename().native()), packed ? "pack the original again" : "fetch the index again");
  }
}

void WeightFiles::for_each(const std::function<void(const io::Safetensors&, const io::Tensor&)>& visit) const {
  for (const io::Safetensors& file : files_) {
    for (const io::Tensor& tensor : file.tensors()) {
      const Listed* entry = sharded_ ? listed(tensor.name) : nullptr;
      if (entry != nullptr && &files_[entry->file] != &file) continue;
      if (!packed_ || !packed_->holds_matrix(tensor)) visit(file, tensor);
    }
  }
  if (!packed_) return;
  for (const auto& [name, member] : packed_->members()) visit(*member.file, member.original);
}

}  // namespace glyd::model
