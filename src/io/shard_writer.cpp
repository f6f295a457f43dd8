#include "io/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "io/json.h"

namespace glyd::io {
namespace {

constexpr std::size_t kMostShards = 10'000;  // more are not read again
constexpr std::size_t kMostNumberDigits = 20;
constexpr char kStart[] = R"({"__metadata__":{"format":"glyd"})";

std::string entry_text(const std::string& name, Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t begin,
                       std::uint64_t end) {
  return fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", Json(name).dump(),
                     dtype_name(dtype), fmt::join(shape, ","), begin, end);
}

}  // namespace

std::uint64_t ShardWriter::header_bytes(const std::string& name, std::span<const std::uint64_t> shape) {
  return entry_text(name, Dtype::F8E4M3Fnuz, shape, 0, 0).size() + 2 * kMostNumberDigits;
}

ShardWriter::ShardWriter(std::filesystem::path dir, std::uint64_t max_bytes, std::vector<Planned> plan)
    : dir_(std::move(dir)), max_bytes_(max_bytes), plan_(std::move(plan)) {}

void ShardWriter::begin_tensor(const std::string& name, Dtype dtype, std::span<const std::uint64_t> shape,
                               std::uint64_t bytes) {
  const std::uint64_t used = shards_.empty() ? 0 : shards_.back().bytes();
  if (shards_.empty() || used >= max_bytes_ || (used > 0 && bytes > max_bytes_ - used)) begin_shard();
  Shard& shard = shards_.back();
  shard.entries.push_back({name, dtype, {shape.begin(), shape.end()}, shard.bytes(), shard.bytes() + bytes});
}

void ShardWriter::append(std::span<const std::byte> data) {
  Shard& shard = shards_.back();
  if (data.size() > shard.bytes() - written_) {
    fail(Code::Runtime, "{}: more data than was announced", printable(shard.file.path().native()));
  }
  shard.file.write_at(8 + shard.header_room + written_, data);
  written_ += data.size();
}

// The entry of the plan that no longer fits may begin in this file, so its part of the header is counted too.
void ShardWriter::begin_shard() {
  if (shards_.size() == kMostShards) {
    fail(Code::Usage, "--max-shard-size {}: more than {} files would be needed", max_bytes_, kMostShards);
  }
  std::uint64_t room = sizeof(kStart) + 1, bytes = 0;
  for (std::size_t i = at_; i < plan_.size() && bytes <= max_bytes_; ++i) {
    bytes += plan_[i].least_bytes;
    room += plan_[i].header_bytes;
  }
  room += 7 - (room + 7) % 8;  // data begins at a multiple of 8
  const std::string name = fmt::format("model-{:05}.safetensors.partial", shards_.size() + 1);
  shards_.push_back({OutputFile(dir_ / name), room, {}});
  written_ = 0;
}

void ShardWriter::write_header(Shard& shard) {
  std::string text = kStart;
  for (const Entry& e : shard.entries) text += entry_text(e.name, e.dtype, e.shape, e.begin, e.end);
  text += "}";
  if (text.size() > shard.header_room) {
    fail(Code::Runtime, "{}: a header of {} bytes where {} were kept", printable(shard.file.path().native()),
         text.size(), shard.header_room);
  }
  text.resize(shard.header_room, ' ');
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  text.insert(0, length);
  shard.file.write_at(0, std::as_bytes(std::span(text)));
}

void ShardWriter::write_index(const std::vector<std::string>& names) const {
  std::uint64_t total = 0;
  Json map = Json::object();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const Entry& e : shards_[i].entries) {
      map[e.name] = names[i];
      total += e.end - e.begin;
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  write_text(dir_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

std::size_t ShardWriter::finish() {
  if (shards_.empty()) begin_shard();
  std::vector<std::string> names;
  for (Shard& shard : shards_) {
    write_header(shard);
    shard.file.close();
    names.push_back(shards_.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", names.size() + 1, shards_.size()));
    std::filesystem::rename(shard.file.path(), dir_ / names.back());
  }
  if (shards_.size() > 1) write_index(names);
  return shards_.size();
}

}  // namespace glyd::io
