#pragma once
// Keys (after norm and RoPE) and values of all tokens, in blocks of kBlockSize tokens that block tables name.
//
// Layout: [layer][keys, values][block][kv head][place in block][head_dim, padded to whole lanes with zeros], so that
// what attention reads for one head and block is one contiguous tile. Elements are fp32, or bf16 when activations are.

#include <cstddef>
#include <cstdint>

#include "model/config.h"
#include "runner/cpu/aligned_buffer.h"
#include "runner/runner.h"

namespace glyd::runner::cpu {

class KvCache {
 public:
  KvCache() = default;
  KvCache(const model::Config& config, Activations activations, std::int64_t blocks);

  // Bytes of one block, all layers; saturates instead of overflowing.
  static std::uint64_t block_bytes(const model::Config& config, Activations activations);

  bool bf16() const { return bf16_; }
  std::size_t stride() const { return stride_; }  // from token to token of a tile

  // Writes the head_dim values of one kv head, already rounded in bf16, at the place that `slot` names.
  void store_key(int layer, std::int64_t slot, int head, const float* k) { store(tile(layer, 0), slot, head, k); }
  void store_value(int layer, std::int64_t slot, int head, const float* v) { store(tile(layer, 1), slot, head, v); }

  // The tile [kBlockSize][stride] of one block and head. Element is Bf16 if bf16(), else float.
  template <class Element>
  const Element* keys(int layer, std::int64_t block, int head) const {
    return reinterpret_cast<const Element*>(memory_.data()) + tile(layer, 0) + tile_offset(block, head);
  }
  template <class Element>
  const Element* values(int layer, std::int64_t block, int head) const {
    return reinterpret_cast<const Element*>(memory_.data()) + tile(layer, 1) + tile_offset(block, head);
  }

 private:
  // Offsets in elements: the part for a layer's keys or values, and a tile inside it.
  std::size_t tile(int layer, int part) const { return (static_cast<std::size_t>(layer) * 2 + part) * part_size_; }
  std::size_t tile_offset(std::int64_t block, int head) const {
    return (static_cast<std::size_t>(block) * heads_ + static_cast<std::size_t>(head)) * kBlockSize * stride_;
  }
  void store(std::size_t part, std::int64_t slot, int head, const float* values);

  bool bf16_ = false;
  std::size_t heads_ = 0, head_dim_ = 0, stride_ = 0;
  std::size_t part_size_ = 0;  // elements of one layer's keys, or values
  AlignedBuffer<std::byte> memory_;
};

}  // namespace glyd::runner::cpu
