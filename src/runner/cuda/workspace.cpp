#include "runner/cuda/workspace.h"

#include <algorithm>
#include <type_traits>

#include "base/sizes.h"
#include "cuda/pointwise/pointwise.h"
#include "cuda/products/products.h"
#include "model/weights.h"

namespace glyd::runner {
namespace {

std::int64_t widest_input(const model::Config& c) {
  return std::max({c.hidden_size, std::int64_t{c.heads} * c.head_dim, c.intermediate_size});
}

// Calls visit(pointer, bytes, name) for every part: the one list that sizes and allocation share.
template <class Visit>
void visit_parts(const model::Config& c, const WorkspaceShape& s, Workspace& w, const Visit& visit) {
  const std::uint64_t tokens = unsigned_of(s.tokens), results = s.logits ? unsigned_of(head_columns(s)) : 0;
  const std::uint64_t q = unsigned_of(c.heads) * unsigned_of(c.head_dim), half = unsigned_of(c.rope.dim) / 2;
  const std::uint64_t rows = std::max(tokens, unsigned_of(s.columns));
  visit(w.hidden, rows * unsigned_of(c.hidden_size) * 2, "the residual stream");
  visit(w.q, rows * q * 2, "queries");
  visit(w.x, rows * unsigned_of(round_up(widest_input(c), 32)) * 2, "activations");
  visit(w.products, s.products, "products");
  visit(w.rope, rows * half * sizeof(float2), "rotations");
  visit(w.attention, cuda::attention_decode_workspace(s.columns, s.cached, s.context, c.heads, c.head_dim),
        "attention");
  visit(w.choice, s.logits ? cuda::arg_max_workspace(s.columns) : 0, "the choice of tokens");
  visit(w.ids, results * sizeof(std::int32_t), "ids");
  const bool samples = s.logits && can_sample(c);
  visit(w.requests, samples ? requests_bytes(s) : 0, "sampling requests");
  visit(w.sampling,
        samples ? cuda::sample_workspace(static_cast<int>(std::min(results, unsigned_of(kSampledAtOnce))), c.vocab_size)
                : 0,
        "sampling");
  visit(w.sampled, samples ? results * sizeof(std::int32_t) : 0, "sampled ids");
  visit(w.logits, results * unsigned_of(c.vocab_size) * sizeof(float), "logits");
  visit(w.allowed, unsigned_of(c.vocab_size), "the vocabulary's mask");
  visit(w.frequencies, half * sizeof(double), "frequencies");
  visit(w.cublas, kCublasBytes, "cuBLAS");
  visit(w.slices[0], s.scratch, "unpacked weights");
  visit(w.slices[1], s.scratch, "unpacked weights");
  visit(w.input, unsigned_of(InputLayout(s).end) * sizeof(std::int32_t), "a step's input");
}

}  // namespace

std::int64_t head_columns(const WorkspaceShape& s) {
  return cuda::activation_columns(static_cast<int>(std::min<std::int64_t>(s.columns, s.sequences)));
}

std::uint64_t requests_bytes(const WorkspaceShape& s) {
  return unsigned_of(s.columns) * sizeof(cuda::RowSampling) + unsigned_of(s.cached) * sizeof(cuda::TouchedId);
}

bool can_sample(const model::Config& c) {
  constexpr std::int64_t kLargestVocabulary = 4'194'304;  // of cuda::sample()
  return c.vocab_size % 8 == 0 && c.vocab_size <= kLargestVocabulary;
}

InputLayout::InputLayout(const WorkspaceShape& s) {
  table_stride = blocks_for(s.context);
  const std::int64_t most_tokens = std::max<std::int64_t>(s.tokens, s.columns);
  // Of a pass: its columns, or chunks that are longer.
  const std::int64_t sequences = std::max<std::int64_t>(s.columns, s.tokens / (s.columns + 1));
  std::int64_t at = 0;
  const auto take = [&](std::int64_t count) {
    const std::int64_t begin = at;
    at = round_up(at + count, 64);
    return begin;
  };
  tokens = take(most_tokens);
  positions = take(most_tokens);
  slots = take(most_tokens);
  lengths = take(std::max(sequences + 1, most_tokens));  // rows may be as many as tokens
  query_start = take(std::max(sequences + 1, most_tokens));
  rows = take(std::max(sequences + 1, most_tokens));
  tables = take(sequences * table_stride);
  end = at;
}

// One or two waves of 128 x 256 tiles on 132 multiprocessors for 2048 tokens. Larger slices were no faster on an H200,
// smaller ones 2 % slower (bench/results/cuda_runner.md).
std::int64_t slice_rows(std::int64_t cols) {
  constexpr std::int64_t kWave = 2048, kMost = 2 * kWave, kBytes = 128 << 20;
  return std::clamp(kBytes / (cols * 2) / kWave * kWave, kWave, kMost);
}

WorkspaceShape workspace_shape(const model::Config& c, const Options& options, std::int64_t context,
                               int multiprocessors, bool any_packed, std::int64_t head_rows, bool shared) {
  WorkspaceShape s;
  s.tokens = options.max_batch_tokens;
  s.sequences = options.max_sequences;
  s.context = context;
  s.columns = cuda::kMaxColumns;
  const model::ModelSpec spec = model::model_spec(c);
  const auto consider = [&](std::int64_t rows, std::int64_t cols, bool head) {
    if (rows == 0) return;
    const cuda::Partition p = cuda::make_partition(rows, cols, multiprocessors);
    const std::int64_t columns = head ? head_columns(s) : s.columns;
    const std::uint64_t partials =
        unsigned_of(max_splits(p)) * unsigned_of(columns) * unsigned_of(p.stored_rows()) * sizeof(float);
    const std::uint64_t values = head ? unsigned_of(columns) * unsigned_of(round_up(rows, 8)) * sizeof(float)
                                      : unsigned_of(s.tokens) * unsigned_of(round_up(rows, 8)) * 2;
    s.products = std::max({s.products, partials, values});
    if (any_packed && !head)
      s.scratch =
          std::max(s.scratch, unsigned_of(std::min(rows, slice_rows(cols))) * unsigned_of(round_up(cols, 32)) * 2);
  };
  const model::LayerSpec& layer = spec.layers.front();  // all are alike
  for (const auto* m : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
    consider(static_cast<std::int64_t>(m->rows), static_cast<std::int64_t>(m->cols), false);
  consider(head_rows, c.hidden_size, true);
  if (shared)
    s.products =
        std::max(s.products, unsigned_of(std::max<std::int64_t>(s.tokens, s.columns)) * unsigned_of(c.hidden_size) * 4);
  return s;
}

std::uint64_t workspace_bytes(const model::Config& config, const WorkspaceShape& shape) {
  std::uint64_t bytes = 0;
  Workspace none{};
  visit_parts(config, shape, none, [&](auto&, std::uint64_t part, const char*) { bytes += round_up(part, 256); });
  return bytes;
}

Workspace make_workspace(const model::Config& config, const WorkspaceShape& shape, Arena& arena) {
  Workspace w{};
  visit_parts(config, shape, w, [&](auto& pointer, std::uint64_t bytes, const char* what) {
    pointer = bytes == 0 ? nullptr : static_cast<std::remove_reference_t<decltype(pointer)>>(arena.take(bytes, what));
  });
  return w;
}

}  // namespace glyd::runner
