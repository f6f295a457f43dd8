#include "runner/cpu/heads.h"

#include <algorithm>
#include <vector>

#include "runner/cpu/rms_norm.h"

namespace glyd::runner::cpu {

void split_heads(Context& context, const model::Config& config, FloatRows qkv, const float* q_norm, const float* k_norm,
                 const RopeTable& rope, std::span<const std::int32_t> slots, int layer, KvCache& cache, FloatRows q) {
  const auto d = static_cast<std::size_t>(config.head_dim);
  const auto eps = static_cast<float>(config.rms_norm_eps);

  context.pool().parallel_for(slots.size(), 4, [&](std::size_t begin, std::size_t end) {
    std::vector<float> normed(d), rotated(d);
    // One head of q or k: norm, rotation, one rounding at the end.
    const auto turn = [&](std::size_t t, const float* head, const float* norm, float* out) {
      if (norm) {
        rms_norm(context, head, norm, d, eps, normed.data());
        head = normed.data();
      }
      rope.rotate(t, head, d, out);
      for (std::size_t i = 0; i < d; ++i) out[i] = context.rounded(out[i]);
    };
    for (std::size_t t = begin; t < end; ++t) {
      const float* head = qkv.row(t);
      for (int h = 0; h < config.heads; ++h, head += d)
        turn(t, head, q_norm, q.row(t) + static_cast<std::size_t>(h) * padded(d));
      for (int h = 0; h < config.kv_heads; ++h, head += d) {
        turn(t, head, k_norm, rotated.data());
        cache.store_key(layer, slots[t], h, rotated.data());
      }
      for (int h = 0; h < config.kv_heads; ++h, head += d) cache.store_value(layer, slots[t], h, head);
    }
  });
}

}  // namespace glyd::runner::cpu
