#include "runner/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace glyd::runner::cpu {
namespace {

constexpr std::size_t kHeadGroup = 16;  // query heads of one kv head that share a pass over the keys and values

// What a pass over one sequence's keys and values of one kv head needs.
template <class Element>
struct Pass {
  const Context& context;
  const KvCache& cache;
  int layer, kv_head;
  const std::int32_t* block_table;
  std::int64_t context_length;  // positions seen: the token's own + 1
  std::size_t head_dim;
  float scale;  // head_dim^-0.5

  // `count` query heads, cache.stride() floats each, to `out`, head_dim floats each. `sums` has room for count padded
  // heads.
  void run(const float* q, std::size_t count, float* sums, float* out) const;
};

template <class Element>
void Pass<Element>::run(const float* q, std::size_t count, float* sums, float* out) const {
  const auto products = context.kernels().products<Element>();
  const auto weighted_sum = context.kernels().weighted_sum<Element>();
  const std::size_t stride = cache.stride();
  float highest[kHeadGroup], total[kHeadGroup], scores[kHeadGroup * kBlockSize];
  std::fill_n(highest, count, -std::numeric_limits<float>::infinity());
  std::fill_n(total, count, 0.0f);
  std::fill_n(sums, count * stride, 0.0f);

  for (std::int64_t first = 0; first < context_length; first += kBlockSize) {
    const std::int64_t block = block_table[first / kBlockSize];
    const auto positions = static_cast<std::size_t>(std::min<std::int64_t>(kBlockSize, context_length - first));
    const Element* keys = cache.keys<Element>(layer, block, kv_head);
    const Element* values = cache.values<Element>(layer, block, kv_head);
    products(keys, positions, stride, q, count, stride, stride, scores, kBlockSize);

    for (std::size_t h = 0; h < count; ++h) {
      float* s = scores + h * kBlockSize;
      float new_highest = highest[h];
      for (std::size_t j = 0; j < positions; ++j) {
        s[j] *= scale;
        new_highest = std::max(new_highest, s[j]);
      }
      const float rescale = std::exp(highest[h] - new_highest);  // 0 for the first block
      highest[h] = new_highest;
      total[h] *= rescale;
      for (std::size_t j = 0; j < positions; ++j) {
        s[j] = std::exp(s[j] - new_highest);
        total[h] += s[j];
      }
      weighted_sum(values, positions, stride, s, rescale, sums + h * stride, stride);
    }
  }
  for (std::size_t h = 0; h < count; ++h)
    for (std::size_t i = 0; i < head_dim; ++i) out[h * head_dim + i] = context.rounded(sums[h * stride + i] / total[h]);
}

template <class Element>
void attend(Context& context, const model::Config& config, const Batch& batch,
            std::span<const std::int32_t> sequence_of, int layer, const KvCache& cache, FloatRows q, FloatRows out) {
  const auto d = static_cast<std::size_t>(config.head_dim);
  const auto kv_heads = static_cast<std::size_t>(config.kv_heads);
  const std::size_t group = static_cast<std::size_t>(config.heads) / kv_heads;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));

  context.pool().parallel_for(sequence_of.size() * kv_heads, 1, [&](std::size_t begin, std::size_t end) {
    std::vector<float> sums(std::min(group, kHeadGroup) * cache.stride());
    for (std::size_t item = begin; item < end; ++item) {
      const std::size_t t = item / kv_heads, kv_head = item % kv_heads;
      const std::size_t table = static_cast<std::size_t>(sequence_of[t]) * static_cast<std::size_t>(batch.max_blocks);
      const Pass<Element> pass{context,
                               cache,
                               layer,
                               static_cast<int>(kv_head),
                               batch.block_tables.data() + table,
                               std::int64_t{batch.positions[t]} + 1,
                               d,
                               scale};
      for (std::size_t i = 0; i < group; i += kHeadGroup) {
        const std::size_t head = kv_head * group + i;
        pass.run(q.row(t) + head * cache.stride(), std::min(kHeadGroup, group - i), sums.data(), out.row(t) + head * d);
      }
    }
  });
}

}  // namespace

void attention(Context& context, const model::Config& config, const Batch& batch,
               std::span<const std::int32_t> sequence_of, int layer, const KvCache& cache, FloatRows q, FloatRows out) {
  if (cache.bf16()) {
    attend<Bf16>(context, config, batch, sequence_of, layer, cache, q, out);
  } else {
    attend<float>(context, config, batch, sequence_of, layer, cache, q, out);
  }
}

}  // namespace glyd::runner::cpu
