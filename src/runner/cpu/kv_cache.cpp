#include "runner/cpu/kv_cache.h"

#include <algorithm>

#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {

KvCache::KvCache(const model::Config& config, Activations activations, std::int64_t blocks)
    : bf16_(activations == Activations::Bf16),
      heads_(static_cast<std::size_t>(config.kv_heads)),
      head_dim_(static_cast<std::size_t>(config.head_dim)),
      stride_(padded(head_dim_)),
      part_size_(static_cast<std::size_t>(blocks) * heads_ * kBlockSize * stride_),
      memory_(multiply(block_bytes(config, activations), static_cast<std::uint64_t>(blocks)), "KV cache") {}

std::uint64_t KvCache::block_bytes(const model::Config& config, Activations activations) {
  const std::uint64_t element = activations == Activations::Bf16 ? sizeof(Bf16) : sizeof(float);
  const std::uint64_t head = padded(static_cast<std::size_t>(config.head_dim)) * element;
  return multiply(multiply(head, static_cast<std::uint64_t>(config.kv_heads)),
                  static_cast<std::uint64_t>(config.layers) * 2 * kBlockSize);
}

void KvCache::store(std::size_t part, std::int64_t slot, int head, const float* values) {
  const std::size_t at =
      part + tile_offset(slot / kBlockSize, head) + static_cast<std::size_t>(slot % kBlockSize) * stride_;
  if (bf16_) {
    Bf16* to = reinterpret_cast<Bf16*>(memory_.data()) + at;
    std::transform(values, values + head_dim_, to, [](float x) { return to_bf16(x); });
    std::fill(to + head_dim_, to + stride_, Bf16{});
  } else {
    float* to = reinterpret_cast<float*>(memory_.data()) + at;
    std::copy_n(values, head_dim_, to);
    std::fill(to + head_dim_, to + stride_, 0.0f);
  }
}

}  // namespace glyd::runner::cpu
