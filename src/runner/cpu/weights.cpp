#include "runner/cpu/weights.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "codec/pack.h"
#include "runner/cpu/packed_rows.h"
#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {
namespace {

constexpr std::uint64_t kChunkBytes = 4 << 20;  // filled by one thread at a time

using model::MatrixPart;

// Fills rows [first, first + count) of a part of a matrix, counted as the part's, given as memory without padding.
using FillRows = std::function<void(const model::MatrixSpec&, const MatrixPart&, std::uint64_t first,
                                    std::uint64_t count, std::span<Bf16>)>;
using FillVector = std::function<void(const model::VectorSpec&, std::span<Bf16>)>;
// The part of a matrix that is to stay packed, or null for one that is to be plain.
using MakePacked = std::function<std::unique_ptr<WeightRows>(const model::MatrixSpec&, const MatrixPart&)>;

// Where weights come from, and who fills the memory.
struct Source {
  FillRows rows;
  FillVector vector;
  ThreadPool& pool;
  Progress& progress;
  MakePacked packed = {};
};

// Packs a part in memory; null when that would not shrink it.
std::unique_ptr<WeightRows> pack_rows(const FillRows& rows, const model::MatrixSpec& spec, const MatrixPart& part,
                                      ThreadPool& pool, Progress& progress) {
  Progress silent;  // pack() reads everything twice
  const codec::RowSource source = [&](std::uint64_t first, std::uint64_t count, std::span<Bf16> out) {
    rows(spec, part, first, count, out);
  };
  auto bytes = codec::pack({part.row_count(), part.cols.size()}, source, {}, pool, silent);
  if (!bytes) return nullptr;
  progress.advance(part.row_count() * part.cols.size() * sizeof(Bf16));
  return std::make_unique<PackedRows>(std::move(*bytes), spec.name, pool);
}

std::unique_ptr<WeightRows> make_matrix(const Source& source, const model::MatrixSpec& spec, const MatrixPart& part) {
  if (source.packed) {
    if (auto packed = source.packed(spec, part)) return packed;
  }
  const std::uint64_t rows = part.row_count(), cols = part.cols.size();
  auto matrix = std::make_unique<PlainMatrix>(rows, cols);
  const std::uint64_t row_bytes = multiply(cols, sizeof(Bf16));
  const std::size_t grain = std::max<std::uint64_t>(1, kChunkBytes / std::max<std::uint64_t>(1, row_bytes));
  source.pool.parallel_for(rows, grain, [&](std::size_t begin, std::size_t end) {
    if (matrix->stride() == cols) {
      source.rows(spec, part, begin, end - begin, {matrix->row(begin), (end - begin) * cols});
    } else {
      std::vector<Bf16> packed((end - begin) * cols);
      source.rows(spec, part, begin, end - begin, packed);
      for (std::size_t r = begin; r < end; ++r) {
        std::copy_n(packed.data() + (r - begin) * cols, cols, matrix->row(r));
        std::fill(matrix->row(r) + cols, matrix->row(r) + matrix->stride(), Bf16{});
      }
    }
    source.progress.advance((end - begin) * row_bytes);
  });
  return matrix;
}

std::vector<float> make_vector(const Source& source, const model::VectorSpec& spec) {
  if (spec.size == 0) return {};
  std::vector<Bf16> narrow(spec.size);
  source.vector(spec, narrow);
  source.progress.advance(spec.size * sizeof(Bf16));
  std::vector<float> wide(spec.size);
  std::transform(narrow.begin(), narrow.end(), wide.begin(), to_float);
  return wide;
}

// The elements that belong to the rows of a part, as a bias's do.
std::vector<float> of_rows(const std::vector<float>& whole, const std::vector<Range>& rows) {
  std::vector<float> part;
  if (whole.empty()) return part;
  for (const Range& range : rows)
    part.insert(part.end(), whole.begin() + static_cast<std::ptrdiff_t>(range.begin),
                whole.begin() + static_cast<std::ptrdiff_t>(range.end));
  return part;
}

Weights make_weights(const Source& source, const model::ModelSpec& whole, const model::Shard& shard) {
  const model::ModelSpec spec = model::shard_spec(whole, shard);
  Weights weights;
  if (shard.first_stage()) weights.embed = make_matrix(source, spec.embed, model::whole(spec.embed));
  for (const model::LayerSpec& layer : spec.layers) {
    LayerWeights w;
    w.input_norm = make_vector(source, layer.input_norm);
    w.qkv = make_matrix(source, layer.qkv, shard.qkv);
    w.qkv_bias = of_rows(make_vector(source, layer.qkv_bias), shard.qkv.rows);
    w.q_norm = make_vector(source, layer.q_norm);
    w.k_norm = make_vector(source, layer.k_norm);
    w.o = make_matrix(source, layer.o, shard.o);
    if (shard.adds_output_biases()) w.o_bias = make_vector(source, layer.o_bias);
    w.post_norm = make_vector(source, layer.post_norm);
    w.gate_up = make_matrix(source, layer.gate_up, shard.gate_up);
    w.gate_up_bias = of_rows(make_vector(source, layer.gate_up_bias), shard.gate_up.rows);
    w.down = make_matrix(source, layer.down, shard.down);
    if (shard.adds_output_biases()) w.down_bias = make_vector(source, layer.down_bias);
    weights.layers.push_back(std::move(w));
  }
  weights.final_norm = make_vector(source, spec.final_norm);
  if (!spec.lm_head.members.empty()) {
    weights.lm_head = make_matrix(source, spec.lm_head, shard.lm_head);
  } else if (shard.last_stage()) {
    weights.head_in_embed = true;
    if (shard.ranks > 1)
      weights.lm_head = std::make_unique<RowsOf>(*weights.embed, shard.vocab.begin, shard.vocab.size());
  }
  return weights;
}

// A part in memory, plain.
std::uint64_t plain_bytes(const MatrixPart& part) {
  return multiply(multiply(part.row_count(), padded(part.cols.size())), sizeof(Bf16));
}

// Bytes of bf16 that a shard has, vectors whole.
std::uint64_t file_bytes(const model::ModelSpec& whole, const model::Shard& shard) {
  const model::ModelSpec spec = model::shard_spec(whole, shard);
  std::uint64_t bytes = 0;
  for (const auto& [matrix, part] : all_parts(spec, shard))
    bytes = add(bytes, multiply(multiply(part.row_count(), part.cols.size()), sizeof(Bf16)));
  for (const auto* v : model::all_vectors(spec)) bytes = add(bytes, multiply(v->size, sizeof(Bf16)));
  return bytes;
}

// Where row `row` of a part is in the matrix.
std::uint64_t row_of(const MatrixPart& part, std::uint64_t row) {
  auto range = part.rows.begin();
  for (; row >= range->size(); ++range) row -= range->size();
  return range->begin + row;
}

std::uint64_t mixed(std::uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t Weights::bytes(const model::ModelSpec& whole, const model::Shard& shard) {
  const model::ModelSpec spec = model::shard_spec(whole, shard);
  std::uint64_t bytes = 0;
  for (const auto& [matrix, part] : all_parts(spec, shard)) bytes = add(bytes, plain_bytes(part));
  for (const auto* v : model::all_vectors(spec)) bytes = add(bytes, multiply(v->size, sizeof(float)));
  return bytes;
}

std::uint64_t Weights::bytes(const model::Checkpoint& checkpoint, const model::Shard& shard, WeightFormat format) {
  std::uint64_t bytes = Weights::bytes(checkpoint.spec(), shard);
  if (format == WeightFormat::Bf16) return bytes;
  const model::ModelSpec spec = model::shard_spec(checkpoint.spec(), shard);
  for (const auto& [matrix, part] : all_parts(spec, shard)) {
    if (const auto packed = checkpoint.packed_part(*matrix, part)) bytes = bytes - plain_bytes(part) + packed->bytes();
  }
  return bytes;
}

std::uint64_t Weights::bytes() const {
  std::uint64_t bytes = final_norm.size() * sizeof(float);
  if (embed) bytes += embed->bytes();
  if (lm_head && !head_in_embed) bytes += lm_head->bytes();
  for (const LayerWeights& w : layers) {
    bytes += w.qkv->bytes() + w.o->bytes() + w.gate_up->bytes() + w.down->bytes();
    for (const auto* v :
         {&w.input_norm, &w.qkv_bias, &w.q_norm, &w.k_norm, &w.o_bias, &w.post_norm, &w.gate_up_bias, &w.down_bias})
      bytes += v->size() * sizeof(float);
  }
  return bytes;
}

Weights Weights::load(const model::Checkpoint& checkpoint, const model::Shard& shard, WeightFormat format,
                      ThreadPool& pool, Progress& progress) {
  const bool pack_rest = format == WeightFormat::Packed;
  progress.begin(pack_rest && !checkpoint.manifest() ? "packing" : "loading", file_bytes(checkpoint.spec(), shard));
  const FillRows rows = [&](const model::MatrixSpec& m, const MatrixPart& part, std::uint64_t first,
                            std::uint64_t count,
                            std::span<Bf16> out) { checkpoint.read_part(m, part, first, count, out); };
  const auto make_packed = [&](const model::MatrixSpec& spec, const MatrixPart& part) -> std::unique_ptr<WeightRows> {
    const auto stored = checkpoint.packed_part(spec, part);
    if (!stored) {
      const bool pack = pack_rest || checkpoint.packed(spec);
      return pack ? pack_rows(rows, spec, part, pool, progress) : nullptr;
    }
    auto packed = std::make_unique<PackedRows>(stored->read(), stored->what(), pool);
    progress.advance(part.row_count() * part.cols.size() * sizeof(Bf16));
    return packed;
  };
  const Source source{rows, [&](const model::VectorSpec& v, std::span<Bf16> out) { checkpoint.read_vector(v, out); },
                      pool, progress, format == WeightFormat::Bf16 ? MakePacked() : make_packed};
  Weights weights = make_weights(source, checkpoint.spec(), shard);
  progress.end();
  return weights;
}

Weights Weights::random(const model::ModelSpec& spec, const model::Shard& shard, WeightFormat format,
                        std::uint64_t seed, ThreadPool& pool, Progress& progress) {
  // Drawing 2^16 values once and choosing among them by a hash is much faster than drawing each weight.
  std::vector<Bf16> values(1 << 16);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (Bf16& v : values) v = to_bf16(normal(engine));

  progress.begin("making random weights", file_bytes(spec, shard));
  const FillRows rows = [&](const model::MatrixSpec& m, const MatrixPart& part, std::uint64_t first,
                            std::uint64_t count, std::span<Bf16> out) {
    const std::uint64_t base = mixed(seed + std::hash<std::string>{}(m.name)), cols = part.cols.size();
    for (std::uint64_t r = 0; r < count; ++r) {
      const std::uint64_t row = base + row_of(part, first + r) * m.cols + part.cols.begin;
      for (std::uint64_t c = 0; c < cols; ++c) out[r * cols + c] = values[mixed(row + c) >> 48];
    }
  };
  const FillVector vector = [](const model::VectorSpec& v, std::span<Bf16> out) {
    const bool norm = v.name.find("norm") != std::string::npos;
    std::fill(out.begin(), out.end(), to_bf16(norm ? 1.0f : 0.01f));
  };
  const auto make_packed = [&](const model::MatrixSpec& m, const MatrixPart& part) {
    return pack_rows(rows, m, part, pool, progress);
  };
  const Source source{rows, vector, pool, progress,
                      format == WeightFormat::Packed ? MakePacked(make_packed) : MakePacked()};
  Weights weights = make_weights(source, spec, shard);
  progress.end();
  return weights;
}

}  // namespace glyd::runner::cpu
