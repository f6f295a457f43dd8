#include "runner/cpu/aligned_buffer.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"

namespace glyd::runner::cpu {

void* allocate_aligned(std::uint64_t bytes, const char* what) {
  constexpr std::uint64_t kHugePage = 2 << 20;
  const std::uint64_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  const std::uint64_t size = (std::max<std::uint64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* memory = size < bytes ? nullptr : std::aligned_alloc(alignment, size);
  if (!memory) fail(Code::Memory, "{}: the system gave no memory for {} bytes", what, bytes);
  if (alignment == kHugePage) madvise(memory, size, MADV_HUGEPAGE);  // advice: a refusal costs speed only
  return memory;
}

}  // namespace glyd::runner::cpu
