#include "model/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/sharding.h"

namespace glyd::model {
namespace {

constexpr std::array<const char*, 4> kPrefixes = {"model.", "", "model.language_model.", "language_model.model."};

constexpr std::array<std::string_view, 12> kQuantizedEndings = {".weight_scale",
                                                                ".weight_scale_inv",
                                                                ".weight_scale_2",
                                                                ".weight_packed",
                                                                ".weight_zero_point",
                                                                ".qweight",
                                                                ".qzeros",
                                                                ".g_idx",
                                                                ".scales",
                                                                ".absmax",
                                                                ".quant_map",
                                                                ".SCB"};

struct Expected {
  std::string tensor;
  std::vector<std::uint64_t> shape;
};

std::vector<Expected> expected_tensors(const ModelSpec& spec) {
  std::vector<Expected> all;
  for (const MatrixSpec* matrix : all_matrices(spec)) {
    for (const Member& member : matrix->members) all.push_back({member.tensor, {member.rows, matrix->cols}});
  }
  for (const VectorSpec* vector : all_vectors(spec)) {
    for (const Member& member : vector->members) all.push_back({member.tensor, {member.rows}});
  }
  return all;
}

// Some exports leave "model." out, some wrappers put more in front: where the embedding is tells.
std::string find_prefix(const WeightFiles& weights) {
  const char* found = nullptr;
  for (const char* prefix : kPrefixes) {
    if (!weights.find(std::string(prefix) + "embed_tokens.weight")) continue;
    if (found) {
      fail(Code::Model,
           "{}: both '{}embed_tokens.weight' and '{}embed_tokens.weight' are there; expected one embedding",
           weights.origin(), found, prefix);
    }
    found = prefix;
  }
  if (found) return found;
  for (const char* prefix : kPrefixes) weights.require_listed(std::string(prefix) + "embed_tokens.weight");
  return kPrefixes[0];
}

// The first few names, for messages.
std::string name_some(const std::vector<std::string>& names, std::size_t count) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + quote(name);
  if (count > names.size()) text += fmt::format(" and {} more", count - names.size());
  return text;
}

void check_tensor(const Expected& expected, const io::Safetensors& file, const io::Tensor& found) {
  if (found.shape != expected.shape) {
    fail(Code::Model, "{}: tensor {} has shape {}, config.json implies {}", printable(file.path().native()),
         quote(expected.tensor), io::shape_text(found.shape), io::shape_text(expected.shape));
  }
  if (found.dtype != io::Dtype::BF16 && found.dtype != io::Dtype::F16 && found.dtype != io::Dtype::F32) {
    fail(Code::Model, "{}: tensor {} has dtype {}; weights must be BF16, F16 or F32", printable(file.path().native()),
         quote(expected.tensor), io::dtype_name(found.dtype));
  }
}

// Reads elements stored as `Stored` in pieces and rounds them to bf16.
template <class Stored, class Widen>
void read_rounded(const WeightFiles::Place& place, std::uint64_t first, std::span<Bf16> out, Widen widen) {
  constexpr std::size_t kPiece = 1 << 16;
  std::vector<Stored> piece(std::min(kPiece, out.size()));
  for (std::size_t done = 0; done < out.size(); done += kPiece) {
    const auto part = std::span(piece).first(std::min(kPiece, out.size() - done));
    place.file->read(*place.tensor, (first + done) * sizeof(Stored), std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) out[done + i] = to_bf16(widen(part[i]));
  }
}

// Elements [first, first + out.size()) of a plain tensor, rounded to bf16 where the file stores them otherwise.
void read_elements(const WeightFiles::Place& place, std::uint64_t first, std::span<Bf16> out) {
  switch (place.tensor->dtype) {
    case io::Dtype::F16:
      return read_rounded<std::uint16_t>(place, first, out, half_to_float);
    case io::Dtype::F32:
      return read_rounded<float>(place, first, out, [](float x) { return x; });
    default:
      break;
  }
  place.file->read(*place.tensor, first * sizeof(Bf16), std::as_writable_bytes(out));
}

bool same_bytes(const WeightFiles::Place& a, const WeightFiles::Place& b) {
  if (a.tensor->dtype != b.tensor->dtype || a.tensor->shape != b.tensor->shape) return false;
  constexpr std::uint64_t kPiece = 1 << 20;
  std::vector<std::byte> left(kPiece), right(kPiece);
  const std::uint64_t bytes = a.tensor->end - a.tensor->begin;
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    const auto piece = static_cast<std::size_t>(std::min(kPiece, bytes - at));
    a.file->read(*a.tensor, at, std::span(left).first(piece));
    b.file->read(*b.tensor, at, std::span(right).first(piece));
    if (std::memcmp(left.data(), right.data(), piece) != 0) return false;
  }
  return true;
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& dir) {
  const Config config = load_config(dir);  // first: it explains folders that hold no model at all
  Checkpoint checkpoint(WeightFiles::open(dir));
  checkpoint.dir_ = dir;
  checkpoint.config_ = config;
  const std::string prefix = find_prefix(checkpoint.weights_);
  checkpoint.spec_ = model_spec(config, prefix);
  checkpoint.place_tensors(prefix);
  return checkpoint;
}

// Finds every expected tensor, and refuses the directory when one is missing or wrong or when others are there.
void Checkpoint::place_tensors(const std::string& prefix) {
  const std::vector<Expected> all = expected_tensors(spec_);
  std::string missing;
  std::size_t missing_count = 0;
  for (const Expected& expected : all) {
    if (const Place place = weights_.find(expected.tensor)) {
      places_.emplace(expected.tensor, place);
    } else if (missing_count++ == 0) {
      missing = expected.tensor;
    }
  }

  const std::string head = head_tensor(prefix);
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> extra;
  std::size_t extra_count = 0;
  weights_.for_each([&](const io::Safetensors& file, const io::Tensor& tensor) {
    const auto it = places_.find(tensor.name);
    if (it != places_.end() && it->second.tensor == &tensor) return;
    if (tensor.name.ends_with(".rotary_emb.inv_freq") || (config_.tied_head && tensor.name == head)) return;
    for (const std::string_view ending : kQuantizedEndings) {
      if (!tensor.name.ends_with(ending)) continue;
      fail(Code::Model, "{}: tensor {} belongs to a quantised checkpoint, which is not supported; use the bf16 release",
           printable(file.path().native()), quote(tensor.name));
    }
    if (extra.size() < kNamed) extra.push_back(tensor.name);
    ++extra_count;
  });

  if (missing_count > 0) {
    weights_.require_listed(missing);
    const char* why =
        missing == head ? "tie_word_embeddings is false, so the head must be there" : "config.json implies it";
    const std::string others = missing_count > 1 ? fmt::format(" ({} of {} are)", missing_count, all.size()) : "";
    const std::string instead = extra_count > 0 ? "; not expected, but there: " + name_some(extra, extra_count) : "";
    fail(Code::Model, "{}: tensor {} is missing{}; {}{}", weights_.origin(), quote(missing), others, why, instead);
  }
  for (const Expected& expected : all) {
    const Place& place = places_.at(expected.tensor);
    check_tensor(expected, *place.file, *place.tensor);
  }
  if (extra_count > 0) {
    fail(Code::Model, "{}: {} that config.json ({}) does not imply: {}; does config.json belong to these weights?",
         weights_.origin(), extra_count == 1 ? "a tensor" : fmt::format("{} tensors", extra_count),
         config_.architecture, name_some(extra, extra_count));
  }
  if (config_.tied_head) check_redundant_head(head);
}

// Published files exist that store the head although it is tied; the config decides, and a difference is worth a word.
void Checkpoint::check_redundant_head(const std::string& head) const {
  const Place stored = manifest() ? Place{} : weights_.find(head);  // a packed one was looked at when it was packed
  if (stored && !same_bytes(stored, places_.at(spec_.embed.members[0].tensor))) {
    log::warning("{}: {} differs from the embedding, but tie_word_embeddings is true: it is ignored",
                 printable(stored.file->path().native()), quote(head));
  }
}

std::uint64_t Checkpoint::parameters() const {
  std::uint64_t count = 0;
  for (const MatrixSpec* matrix : all_matrices(spec_)) count += matrix->rows * matrix->cols;
  for (const VectorSpec* vector : all_vectors(spec_)) count += vector->size;
  return count;
}

std::uint64_t Checkpoint::weight_bytes() const { return sizeof(Bf16) * parameters(); }

std::uint64_t Checkpoint::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, place] : places_) bytes += place.packed ? 0 : place.tensor->end - place.tensor->begin;
  if (manifest()) {
    for (const codec::Manifest::Matrix& matrix : manifest()->matrices) bytes += matrix.bytes;
  }
  return bytes;
}

const codec::PackedTensor* Checkpoint::packed(const MatrixSpec& matrix) const {
  const codec::PackedTensor* packed = nullptr;
  std::uint64_t row = 0;
  for (const Member& member : matrix.members) {
    const Place& place = places_.at(member.tensor);
    if (place.packed == nullptr || (packed && place.packed != packed) || place.first_row != row) return nullptr;
    packed = place.packed;
    row += member.rows;
  }
  return packed && packed->grid().rows == row ? packed : nullptr;
}

std::optional<codec::PackedPart> Checkpoint::packed_part(const MatrixSpec& matrix, const MatrixPart& part) const {
  const codec::PackedTensor* stored = packed(matrix);
  return stored ? codec::PackedPart::of(*stored, part.rows, part.cols) : std::nullopt;
}

void Checkpoint::read_rows(const MatrixSpec& matrix, std::uint64_t first_row, std::uint64_t rows,
                           std::span<Bf16> out) const {
  read_columns(matrix, first_row, rows, {0, matrix.cols}, out);
}

void Checkpoint::read_columns(const MatrixSpec& matrix, std::uint64_t first_row, std::uint64_t rows, Range cols,
                              std::span<Bf16> out) const {
  if (cols.begin > cols.end || cols.end > matrix.cols) {
    fail(Code::Runtime, "{}: columns [{}, {}) asked for, it is {} x {}", matrix.name, cols.begin, cols.end, matrix.rows,
         matrix.cols);
  }
  if (first_row > matrix.rows || rows > matrix.rows - first_row || out.size() != rows * cols.size()) {
    fail(Code::Runtime, "{}: rows [{}, +{}) into {} values asked for, it is {} x {}", matrix.name, first_row, rows,
         out.size(), matrix.rows, matrix.cols);
  }
  std::uint64_t begin = 0;  // the member's first row in the matrix
  for (const Member& member : matrix.members) {
    const std::uint64_t from = std::max(first_row, begin), to = std::min(first_row + rows, begin + member.rows);
    if (from < to) {
      const auto part = out.subspan((from - first_row) * cols.size(), (to - from) * cols.size());
      read_block(member.tensor, {from - begin, to - begin}, matrix.cols, cols, part);
    }
    begin += member.rows;
  }
}

void Checkpoint::read_part(const MatrixSpec& matrix, const MatrixPart& part, std::uint64_t first_row,
                           std::uint64_t rows, std::span<Bf16> out) const {
  const std::uint64_t cols = part.cols.size();
  if (first_row > part.row_count() || rows > part.row_count() - first_row || out.size() != rows * cols) {
    fail(Code::Runtime, "{}: rows [{}, +{}) into {} values asked for, the part is {} x {}", matrix.name, first_row,
         rows, out.size(), part.row_count(), cols);
  }
  std::uint64_t begin = 0;  // the range's first row in the part
  for (const Range& range : part.rows) {
    const std::uint64_t from = std::max(first_row, begin), to = std::min(first_row + rows, begin + range.size());
    if (from < to) {
      read_columns(matrix, range.begin + (from - begin), to - from, part.cols,
                   out.subspan((from - first_row) * cols, (to - from) * cols));
    }
    begin += range.size();
  }
}

void Checkpoint::read_vector(const VectorSpec& vector, std::span<Bf16> out) const {
  if (out.size() != vector.size) {
    fail(Code::Runtime, "{}: {} values asked for, it has {}", vector.name, out.size(), vector.size);
  }
  std::uint64_t begin = 0;
  for (const Member& member : vector.members) {
    read_elements(place_of(member.tensor), 0, out.subspan(begin, member.rows));
    begin += member.rows;
  }
}

const Checkpoint::Place& Checkpoint::place_of(const std::string& tensor) const {
  const auto it = places_.find(tensor);
  if (it == places_.end()) fail(Code::Runtime, "{}: no tensor {} in this model", weights_.origin(), quote(tensor));
  return it->second;
}

// Some columns of a tensor's rows, which are `stride` elements long.
void Checkpoint::read_block(const std::string& tensor, Range rows, std::uint64_t stride, Range cols,
                            std::span<Bf16> out) const {
  const Place& place = place_of(tensor);
  if (place.packed) return place.packed->read_columns(place.first_row + rows.begin, rows.size(), cols, out);
  if (cols.size() == stride) return read_elements(place, rows.begin * stride, out);
  for (std::uint64_t r = 0; r < rows.size(); ++r)
    read_elements(place, (rows.begin + r) * stride + cols.begin, out.subspan(r * cols.size(), cols.size()));
}

}  // namespace glyd::model
