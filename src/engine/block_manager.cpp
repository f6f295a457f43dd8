#include "engine/block_manager.h"

#include <cstddef>
#include <limits>

#include "base/error.h"

namespace glyd::engine {

BlockManager::BlockManager(std::int64_t blocks, int block_size) : total_(blocks), block_size_(block_size) {
  if (blocks < 1 || block_size < 1 || blocks > std::numeric_limits<std::int32_t>::max() / block_size) {
    fail(Code::Usage, "a KV cache of {} blocks of {} tokens: expected at least 1 and fewer than 2^31 tokens in all",
         blocks, block_size);
  }
  free_.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t b = blocks - 1; b >= 0; --b) free_.push_back(static_cast<std::int32_t>(b));
}

std::int64_t BlockManager::blocks_for(std::int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

bool BlockManager::reserve(Sequence& sequence, std::int64_t tokens) {
  auto& table = sequence.block_table;
  const std::int64_t missing = blocks_for(tokens) - static_cast<std::int64_t>(table.size());
  if (missing <= 0) return true;
  if (missing > free_blocks()) return false;
  table.insert(table.end(), free_.rbegin(), free_.rbegin() + missing);
  free_.resize(free_.size() - static_cast<std::size_t>(missing));
  return true;
}

void BlockManager::release(Sequence& sequence) noexcept {
  // Never allocates: free_ has had room for every block since the constructor.
  free_.insert(free_.end(), sequence.block_table.rbegin(), sequence.block_table.rend());
  sequence.block_table.clear();
}

}  // namespace glyd::engine
