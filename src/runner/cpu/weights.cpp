#include "runner/cpu/weights.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "codec/pack.h"
#include "codec/packed_file.h"
#include "runner/cpu/packed_rows.h"
#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {
namespace {

constexpr std::uint64_t kChunkBytes = 4 << 20;  // filled by one thread at a time

// Fills rows [first, first + count) of a matrix, given as memory without padding.
using FillRows =
    std::function<void(const model::MatrixSpec&, std::uint64_t first, std::uint64_t count, std::span<Bf16>)>;
using FillVector = std::function<void(const model::VectorSpec&, std::span<Bf16>)>;
// A matrix that is to stay packed, or null for one that is to be plain.
using MakePacked = std::function<std::unique_ptr<WeightRows>(const model::MatrixSpec&)>;

// Where weights come from, and who fills the memory.
struct Source {
  FillRows rows;
  FillVector vector;
  ThreadPool& pool;
  Progress& progress;
  MakePacked packed = {};
};

// Packs a matrix in memory; null when that would not shrink it.
std::unique_ptr<WeightRows> pack_rows(const FillRows& rows, const model::MatrixSpec& spec, ThreadPool& pool,
                                      Progress& progress) {
  Progress silent;  // pack() reads everything twice
  const codec::RowSource source = [&](std::uint64_t first, std::uint64_t count, std::span<Bf16> out) {
    rows(spec, first, count, out);
  };
  auto bytes = codec::pack({spec.rows, spec.cols}, source, {}, pool, silent);
  if (!bytes) return nullptr;
  progress.advance(spec.rows * spec.cols * sizeof(Bf16));
  return std::make_unique<PackedRows>(std::move(*bytes), spec.name, pool);
}

std::unique_ptr<WeightRows> make_matrix(const Source& source, const model::MatrixSpec& spec) {
  if (source.packed) {
    if (auto packed = source.packed(spec)) return packed;
  }
  auto matrix = std::make_unique<PlainMatrix>(spec.rows, spec.cols);
  const std::uint64_t row_bytes = multiply(spec.cols, sizeof(Bf16));
  const std::size_t grain = std::max<std::uint64_t>(1, kChunkBytes / std::max<std::uint64_t>(1, row_bytes));
  source.pool.parallel_for(spec.rows, grain, [&](std::size_t begin, std::size_t end) {
    if (matrix->stride() == spec.cols) {
      source.rows(spec, begin, end - begin, {matrix->row(begin), (end - begin) * spec.cols});
    } else {
      std::vector<Bf16> packed((end - begin) * spec.cols);
      source.rows(spec, begin, end - begin, packed);
      for (std::size_t r = begin; r < end; ++r) {
        std::copy_n(packed.data() + (r - begin) * spec.cols, spec.cols, matrix->row(r));
        std::fill(matrix->row(r) + spec.cols, matrix->row(r) + matrix->stride(), Bf16{});
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

Weights make_weights(const Source& source, const model::ModelSpec& spec) {
  Weights weights;
  weights.embed = make_matrix(source, spec.embed);
  for (const model::LayerSpec& layer : spec.layers) {
    LayerWeights w;
    w.input_norm = make_vector(source, layer.input_norm);
    w.qkv = make_matrix(source, layer.qkv);
    w.qkv_bias = make_vector(source, layer.qkv_bias);
    w.q_norm = make_vector(source, layer.q_norm);
    w.k_norm = make_vector(source, layer.k_norm);
    w.o = make_matrix(source, layer.o);
    w.o_bias = make_vector(source, layer.o_bias);
    w.post_norm = make_vector(source, layer.post_norm);
    w.gate_up = make_matrix(source, layer.gate_up);
    w.gate_up_bias = make_vector(source, layer.gate_up_bias);
    w.down = make_matrix(source, layer.down);
    w.down_bias = make_vector(source, layer.down_bias);
    weights.layers.push_back(std::move(w));
  }
  weights.final_norm = make_vector(source, spec.final_norm);
  if (!spec.lm_head.members.empty()) weights.lm_head = make_matrix(source, spec.lm_head);
  return weights;
}

// Bytes in the file of all that a spec names.
std::uint64_t file_bytes(const model::ModelSpec& spec) {
  std::uint64_t bytes = 0;
  for (const auto* m : model::all_matrices(spec))
    bytes = add(bytes, multiply(multiply(m->rows, m->cols), sizeof(Bf16)));
  for (const auto* v : model::all_vectors(spec)) bytes = add(bytes, multiply(v->size, sizeof(Bf16)));
  return bytes;
}

std::uint64_t mixed(std::uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t Weights::bytes(const model::ModelSpec& spec) {
  std::uint64_t bytes = 0;
  for (const auto* m : model::all_matrices(spec))
    bytes = add(bytes, multiply(multiply(m->rows, padded(m->cols)), sizeof(Bf16)));
  for (const auto* v : model::all_vectors(spec)) bytes = add(bytes, multiply(v->size, sizeof(float)));
  return bytes;
}

std::uint64_t Weights::bytes(const model::Checkpoint& checkpoint, WeightFormat format) {
  std::uint64_t bytes = Weights::bytes(checkpoint.spec());
  if (format == WeightFormat::Bf16) return bytes;
  for (const auto* m : model::all_matrices(checkpoint.spec())) {
    if (const codec::PackedTensor* packed = checkpoint.packed(*m))
      bytes = bytes - multiply(multiply(m->rows, padded(m->cols)), sizeof(Bf16)) + packed->bytes();
  }
  return bytes;
}

std::uint64_t Weights::bytes() const {
  std::uint64_t bytes = final_norm.size() * sizeof(float) + embed->bytes() + (lm_head ? lm_head->bytes() : 0);
  for (const LayerWeights& w : layers) {
    bytes += w.qkv->bytes() + w.o->bytes() + w.gate_up->bytes() + w.down->bytes();
    for (const auto* v :
         {&w.input_norm, &w.qkv_bias, &w.q_norm, &w.k_norm, &w.o_bias, &w.post_norm, &w.gate_up_bias, &w.down_bias})
      bytes += v->size() * sizeof(float);
  }
  return bytes;
}

Weights Weights::load(const model::Checkpoint& checkpoint, WeightFormat format, ThreadPool& pool, Progress& progress) {
  const bool pack_rest = format == WeightFormat::Packed;
  progress.begin(pack_rest && !checkpoint.manifest() ? "packing" : "loading", file_bytes(checkpoint.spec()));
  const FillRows rows = [&](const model::MatrixSpec& m, std::uint64_t first, std::uint64_t count, std::span<Bf16> out) {
    checkpoint.read_rows(m, first, count, out);
  };
  const auto make_packed = [&](const model::MatrixSpec& spec) -> std::unique_ptr<WeightRows> {
    const codec::PackedTensor* stored = checkpoint.packed(spec);
    if (!stored) return pack_rest ? pack_rows(rows, spec, pool, progress) : nullptr;
    std::vector<std::byte> bytes(stored->bytes());
    stored->read_packed(bytes);
    auto packed = std::make_unique<PackedRows>(std::move(bytes), stored->what(), pool);
    progress.advance(spec.rows * spec.cols * sizeof(Bf16));
    return packed;
  };
  const Source source{rows, [&](const model::VectorSpec& v, std::span<Bf16> out) { checkpoint.read_vector(v, out); },
                      pool, progress, format == WeightFormat::Bf16 ? MakePacked() : make_packed};
  Weights weights = make_weights(source, checkpoint.spec());
  progress.end();
  return weights;
}

Weights Weights::random(const model::ModelSpec& spec, WeightFormat format, std::uint64_t seed, ThreadPool& pool,
                        Progress& progress) {
  // Drawing 2^16 values once and choosing among them by a hash is much faster than drawing each weight.
  std::vector<Bf16> values(1 << 16);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (Bf16& v : values) v = to_bf16(normal(engine));

  progress.begin("making random weights", file_bytes(spec));
  const FillRows rows = [&](const model::MatrixSpec& m, std::uint64_t first, std::uint64_t, std::span<Bf16> out) {
    const std::uint64_t base = mixed(seed + std::hash<std::string>{}(m.name)) + first * m.cols;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[mixed(base + i) >> 48];
  };
  const FillVector vector = [](const model::VectorSpec& v, std::span<Bf16> out) {
    const bool norm = v.name.find("norm") != std::string::npos;
    std::fill(out.begin(), out.end(), to_bf16(norm ? 1.0f : 0.01f));
  };
  const auto make_packed = [&](const model::MatrixSpec& m) { return pack_rows(rows, m, pool, progress); };
  const Source source{rows, vector, pool, progress,
                      format == WeightFormat::Packed ? MakePacked(make_packed) : MakePacked()};
  Weights weights = make_weights(source, spec);
  progress.end();
  return weights;
}

}  // namespace glyd::runner::cpu
