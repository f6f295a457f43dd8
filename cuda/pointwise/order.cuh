#pragma once
// The order of choice among logits as unsigned integers: the larger logit first, then the lower id.

#include <cstdint>

namespace glyd::cuda {

using Key = unsigned long long;  // ordered(logit) above, the id's complement below

inline constexpr std::uint32_t kUnusable = 0xFFFFFFFF;       // NaN and +inf: above every number
inline constexpr std::uint32_t kMinusInfinity = 0x007FFFFF;  // -inf
inline constexpr std::uint32_t kForbidden = 0;               // below every number

// One value for both zeros.
__device__ __forceinline__ std::uint32_t ordered(float logit) {
  if (!(logit < __int_as_float(0x7F800000))) return kUnusable;
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ __forceinline__ float logit_of(std::uint32_t order) {
  return __uint_as_float(order ^ (order >> 31 != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

__device__ __forceinline__ Key key_of(std::uint32_t order, std::int64_t id) {
  return Key{order} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(id));
}
__device__ __forceinline__ std::uint32_t order_of(Key key) { return static_cast<std::uint32_t>(key >> 32); }
__device__ __forceinline__ std::int32_t id_of(Key key) {
  return static_cast<std::int32_t>(0xFFFFFFFFu - static_cast<std::uint32_t>(key));
}

__device__ __forceinline__ Key warp_max(Key key) {
  for (int offset = 16; offset > 0; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
  return key;
}

// The id of a row whose first candidate is `key`, or why there is none: -1 not finite, -2 nothing to choose from.
__device__ __forceinline__ std::int32_t choice_of(Key key) {
  return order_of(key) == kUnusable ? -1 : order_of(key) <= kMinusInfinity ? -2 : id_of(key);
}

}  // namespace glyd::cuda
