#pragma once
// KV blocks: who holds which. Blocks are taken a sequence at a time and given back all at once.

#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace glyd::engine {

class BlockManager {
 public:
  // Blocks 0 .. blocks-1 of `block_size` tokens, all free. Throws Error(Usage) when a slot number would not fit 32
  // bits.
  BlockManager(std::int64_t blocks, int block_size);

  std::int64_t blocks() const { return total_; }
  int block_size() const { return block_size_; }
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t blocks_for(std::int64_t tokens) const;  // rounded up

  // Gives `sequence` the blocks it still lacks to hold `tokens` tokens. All or nothing: false, and no change, when too
  // few are free.
  bool reserve(Sequence& sequence, std::int64_t tokens);
  void release(Sequence& sequence) noexcept;  // all of its blocks

 private:
  std::int64_t total_;
  int block_size_;
  std::vector<std::int32_t> free_;  // a stack: the block given back last is the next one taken
};

}  // namespace glyd::engine
