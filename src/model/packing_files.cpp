#include "model/packing_files.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "base/bf16.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "codec/packed_file.h"
#include "io/file.h"
#include "io/output.h"
#include "io/sha256.h"

namespace glyd::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPieceBytes = 1 << 20;
constexpr char kIndexName[] = "model.safetensors.index.json";

// Weights in other forms, and what downloads leave behind.
constexpr std::array<std::string_view, 14> kOtherWeights = {
    ".safetensors", ".bin",  ".gguf",      ".ggml", ".pt",      ".pth",    ".ckpt",
    ".h5",          ".onnx", ".onnx_data", ".npz",  ".msgpack", ".tflite", ".incomplete"};

void read_packed(const WeightFiles::Place& place,
                 const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit) {
  const codec::PackedTensor& matrix = *place.packed;
  const std::uint64_t cols = matrix.grid().cols, end = place.first_row + place.tensor->shape[0];
  // Pieces end where row tiles do, so that no tile is decoded twice.
  const std::uint64_t tiles = std::max<std::uint64_t>(1, kPieceBytes / (sizeof(Bf16) * codec::kTileRows * cols));
  std::vector<Bf16> buffer;
  for (std::uint64_t row = place.first_row; row < end;) {
    const std::uint64_t next = std::min(end, (row / codec::kTileRows + tiles) * codec::kTileRows);
    buffer.resize((next - row) * cols);
    matrix.read_rows(row, next - row, buffer);
    visit((row - place.first_row) * cols * sizeof(Bf16), std::as_bytes(std::span(buffer)));
    row = next;
  }
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  const auto [at, rest] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return at == outer.end();
}

}  // namespace

void read_original(const WeightFiles::Place& place,
                   const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit) {
  if (place.packed != nullptr) return read_packed(place, visit);
  const std::uint64_t bytes = place.tensor->end - place.tensor->begin;
  std::vector<std::byte> buffer(std::min(bytes, kPieceBytes));
  for (std::uint64_t at = 0; at < bytes; at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - at));
    place.file->read(*place.tensor, at, piece);
    visit(at, piece);
  }
}

void run_largest_first(const std::vector<std::uint64_t>& sizes, ThreadPool& threads,
                       const std::function<void(std::size_t)>& job) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  threads.parallel_for(order.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) job(order[i]);
  });
}

bool goes_along(const fs::path& dir, const std::string& name) {
  const bool weights = std::any_of(kOtherWeights.begin(), kOtherWeights.end(),
                                   [&](std::string_view ending) { return name.ends_with(ending); });
  return !weights && io::is_regular_file(dir / name);
}

std::vector<std::string> other_files(const fs::path& dir, const std::set<std::string>& weight_files) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == kIndexName || name == codec::kManifestName || weight_files.contains(name)) continue;
    if (goes_along(dir, name)) {
      names.push_back(name);
    } else {
      log::info("left out: {}", quote(name));
    }
  }
  if (error) fail(Code::Model, "{}: cannot be listed: {}", printable(dir.native()), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

codec::Manifest::OtherFile copy_other(const fs::path& from, const fs::path& to) {
  const io::File source = io::File::open(from);
  io::OutputFile copy(to / from.filename());
  io::Sha256 hash;
  std::vector<std::byte> buffer(std::min(kPieceBytes, source.size()));
  for (std::uint64_t at = 0; at < source.size(); at += buffer.size()) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), source.size() - at));
    source.read_at(at, piece);
    hash.update(piece);
    copy.write_at(at, piece);
  }
  copy.close();
  return {from.filename().string(), source.size(), hash.finish()};
}

void require_apart(const fs::path& model, const fs::path& out) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(model, error), to = fs::weakly_canonical(fs::absolute(out), error);
  if (is_inside(to, from)) {
    fail(Code::Usage, "{}: {} the model's own directory; choose another place", printable(out.native()),
         is_inside(from, to) ? "is" : "lies inside");
  }
  if (is_inside(from, to)) {
    fail(Code::Usage, "{}: the model lies inside of it; choose another place", printable(out.native()));
  }
}

}  // namespace glyd::model
