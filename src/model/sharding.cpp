#include "model/sharding.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "codec/packed_matrix.h"

namespace glyd::model {
namespace {

constexpr std::uint64_t kHeadRows = 64;  // that stay together: a group of rows of the GPU kernels
static_assert(kHeadRows % codec::kTileRows == 0);

// Part `i` of `parts` nearly equal ones of n things.
Range share(std::uint64_t n, std::uint64_t i, std::uint64_t parts) { return {i * n / parts, (i + 1) * n / parts}; }

// The same of n things that come in blocks; the last block may be short.
Range share_blocks(std::uint64_t n, std::uint64_t block, std::uint64_t i, std::uint64_t parts) {
  const Range blocks = share((n + block - 1) / block, i, parts);
  return {std::min(n, blocks.begin * block), std::min(n, blocks.end * block)};
}

// Whole units where there is one for each rank, else whatever gives each rank something.
Range share_inner(std::uint64_t inner, std::uint64_t rank, std::uint64_t ranks) {
  for (const std::uint64_t block : {std::uint64_t{codec::kBlockCols}, std::uint64_t{8}, std::uint64_t{1}}) {
    if ((inner + block - 1) / block >= ranks) return share_blocks(inner, block, rank, ranks);
  }
  fail(Code::Usage, "-tp {}: the model's intermediate_size is {}; take at most that many ranks", ranks, inner);
}

void share_heads(const Config& config, std::uint64_t rank, std::uint64_t ranks, Shard& shard) {
  const auto heads = static_cast<std::uint64_t>(config.heads), kv_heads = static_cast<std::uint64_t>(config.kv_heads);
  const std::uint64_t group = heads / kv_heads;
  if (ranks <= kv_heads) {
    shard.kv_heads = share(kv_heads, rank, ranks);
    shard.heads = {shard.kv_heads.begin * group, shard.kv_heads.end * group};
    return;
  }
  // Ranks are dealt out to the kv heads, and each head's ranks share out its group of query heads.
  const std::uint64_t kv_head = rank * kv_heads / ranks;
  const std::uint64_t first = (kv_head * ranks + kv_heads - 1) / kv_heads;  // rank that holds it
  const std::uint64_t holders = ((kv_head + 1) * ranks + kv_heads - 1) / kv_heads - first;
  const std::uint64_t most_holders = (ranks + kv_heads - 1) / kv_heads;  // of any kv head: all ranks refuse alike
  if (most_holders > group) {
    fail(Code::Usage,
         "-tp {}: the model's num_attention_heads is {} ({} for each of num_key_value_heads {}), which leaves ranks "
         "without one; take fewer ranks",
         ranks, heads, group, kv_heads);
  }
  const Range part = share(group, rank - first, holders);
  shard.kv_heads = {kv_head, kv_head + 1};
  shard.heads = {kv_head * group + part.begin, kv_head * group + part.end};
}

// The layers of a stage. They are given away one by one, each to the stage that is then the smallest. What is counted
// is bytes of a rank: its part of the layers and the head, and the whole embedding.
Range share_layers(const Config& config, std::uint64_t stage, std::uint64_t stages, std::uint64_t ranks) {
  const auto layers = static_cast<std::uint64_t>(config.layers), vocab = static_cast<std::uint64_t>(config.vocab_size);
  if (layers < stages) {
    fail(Code::Usage, "-pp {}: the model's num_hidden_layers is {}; take at most that many stages", stages, layers);
  }
  // In rows of hidden_size weights, times the ranks of a stage.
  const auto heads = static_cast<std::uint64_t>(config.heads) + static_cast<std::uint64_t>(config.kv_heads);
  const std::uint64_t layer = 2 * heads * static_cast<std::uint64_t>(config.head_dim) +
                              3 * static_cast<std::uint64_t>(config.intermediate_size);
  std::vector<std::uint64_t> sizes(stages, layer), counts(stages, 1);
  sizes.front() += vocab * ranks;
  sizes.back() += vocab;
  for (std::uint64_t given = stages; given < layers; ++given) {
    const auto smallest = std::min_element(sizes.begin(), sizes.end());
    *smallest += layer;
    ++counts[static_cast<std::size_t>(smallest - sizes.begin())];
  }
  const auto own = counts.begin() + static_cast<std::ptrdiff_t>(stage);
  const std::uint64_t begin = std::accumulate(counts.begin(), own, std::uint64_t{0});
  return {begin, begin + *own};
}

Range shifted(Range range, std::uint64_t by) { return {range.begin + by, range.end + by}; }
Range scaled(Range range, std::uint64_t by) { return {range.begin * by, range.end * by}; }

}  // namespace

std::uint64_t MatrixPart::row_count() const {
  std::uint64_t count = 0;
  for (const Range& range : rows) count += range.size();
  return count;
}

MatrixPart whole(const MatrixSpec& matrix) { return {{{0, matrix.rows}}, {0, matrix.cols}}; }

Shard make_shard(const Config& config, int rank, int tensor_parallel, int pipeline_parallel) {
  if (tensor_parallel < 1 || pipeline_parallel < 1 || rank < 0 || rank / tensor_parallel >= pipeline_parallel)
    fail(Code::Usage, "-tp {} -pp {}: there is no rank {}", tensor_parallel, pipeline_parallel, rank);
  Shard s;
  s.rank = rank % tensor_parallel;
  s.ranks = tensor_parallel;
  s.stage = rank / tensor_parallel;
  s.stages = pipeline_parallel;
  const auto r = static_cast<std::uint64_t>(s.rank), n = static_cast<std::uint64_t>(s.ranks);
  const auto hidden = static_cast<std::uint64_t>(config.hidden_size);
  const auto inner = static_cast<std::uint64_t>(config.intermediate_size);
  const auto vocab = static_cast<std::uint64_t>(config.vocab_size);
  const auto d = static_cast<std::uint64_t>(config.head_dim);
  const std::uint64_t q_rows = static_cast<std::uint64_t>(config.heads) * d;
  const std::uint64_t kv_rows = static_cast<std::uint64_t>(config.kv_heads) * d;

  s.layers = share_layers(config, static_cast<std::uint64_t>(s.stage), static_cast<std::uint64_t>(s.stages), n);
  share_heads(config, r, n, s);
  s.inner = share_inner(inner, r, n);
  s.vocab = share_blocks(vocab, kHeadRows, r, n);

  const Range all_inputs{0, hidden}, all_outputs{0, hidden};
  const Range q = scaled(s.heads, d), kv = scaled(s.kv_heads, d);
  s.qkv = {{q, shifted(kv, q_rows), shifted(kv, q_rows + kv_rows)}, all_inputs};
  s.o = {{all_outputs}, q};
  s.gate_up = {{s.inner, shifted(s.inner, inner)}, all_inputs};
  s.down = {{all_outputs}, s.inner};
  s.lm_head = {{s.vocab}, all_inputs};
  return s;
}

Config shard_config(const Config& config, const Shard& shard) {
  Config local = config;
  local.layers = static_cast<int>(shard.layers.size());
  local.heads = static_cast<int>(shard.heads.size());
  local.kv_heads = static_cast<int>(shard.kv_heads.size());
  local.intermediate_size = static_cast<std::int64_t>(shard.inner.size());
  return local;
}

ModelSpec shard_spec(const ModelSpec& spec, const Shard& shard) {
  ModelSpec local;
  local.layers.assign(spec.layers.begin() + static_cast<std::ptrdiff_t>(shard.layers.begin),
                      spec.layers.begin() + static_cast<std::ptrdiff_t>(shard.layers.end));
  if (shard.first_stage()) local.embed = spec.embed;
  if (shard.last_stage()) {
    const bool tied = spec.lm_head.members.empty();
    local.final_norm = spec.final_norm;
    local.lm_head = tied && !shard.first_stage() ? spec.embed : spec.lm_head;
  }
  return local;
}

std::vector<std::pair<const MatrixSpec*, MatrixPart>> all_parts(const ModelSpec& spec, const Shard& shard) {
  std::vector<std::pair<const MatrixSpec*, MatrixPart>> all;
  if (shard.first_stage()) all.emplace_back(&spec.embed, whole(spec.embed));
  for (const LayerSpec& l : spec.layers)
    all.insert(all.end(), {{&l.qkv, shard.qkv}, {&l.o, shard.o}, {&l.gate_up, shard.gate_up}, {&l.down, shard.down}});
  if (!spec.lm_head.members.empty() && shard.vocab.size() > 0) all.emplace_back(&spec.lm_head, shard.lm_head);
  return all;
}

}  // namespace glyd::model
