#pragma once
// Writes tensors one after another into safetensors files of limited size, and the index that goes with several.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/output.h"
#include "io/safetensors.h"

namespace glyd::io {

// model.safetensors, or model-0000i-of-0000n.safetensors with model.safetensors.index.json. A file's header has to come
// before data whose sizes are not known yet, so room for it is kept by a plan of what may still come.
class ShardWriter {
 public:
  struct Planned {
    std::uint64_t least_bytes = 0;   // of data
    std::uint64_t header_bytes = 0;  // at most, by header_bytes()
  };
  // At most this many bytes of a header are for a tensor of that name and shape.
  static std::uint64_t header_bytes(const std::string& name, std::span<const std::uint64_t> shape);

  // Files go into `dir`; one holds at most `max_bytes` of data, or a single tensor.
  ShardWriter(std::filesystem::path dir, std::uint64_t max_bytes, std::vector<Planned> plan);

  void next_planned() {
    ++at_;
  }  // the tensors that follow belong to the plan's next entry; called before the first too
  void begin_tensor(const std::string& name, Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t bytes);
  void append(std::span<const std::byte> data);  // to the last tensor, until it has all its bytes

  // Writes the headers, gives the files their names, flushes them to the disk. Returns how many there are.
  std::size_t finish();

 private:
  struct Entry {
    std::string name;
    Dtype dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin, end;
  };
  struct Shard {
    OutputFile file;
    std::uint64_t header_room;
    std::vector<Entry> entries;
    std::uint64_t bytes() const { return entries.empty() ? 0 : entries.back().end; }
  };
  void begin_shard();
  void write_header(Shard& shard);
  void write_index(const std::vector<std::string>& names) const;

  std::filesystem::path dir_;
  std::uint64_t max_bytes_;
  std::vector<Planned> plan_;
  std::size_t at_ = static_cast<std::size_t>(-1);
  std::vector<Shard> shards_;
  std::uint64_t written_ = 0;  // of the last shard's data
};

}  // namespace glyd::io
