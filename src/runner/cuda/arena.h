#pragma once
// Device memory of one runner: a single range of addresses, backed by memory as far as it is used. So the sizes that
// only packing can tell need not be known before, and nothing is allocated or freed while steps run.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace glyd::runner {

class Arena {
 public:
  Arena() = default;
  // Reserves addresses for at most `capacity` bytes on the current device; takes no memory yet. Throws Error.
  explicit Arena(std::uint64_t capacity);
  ~Arena();
  Arena(Arena&& other) noexcept { *this = static_cast<Arena&&>(other); }
  Arena& operator=(Arena&& other) noexcept;

  // `bytes` of memory, aligned to 256, valid as long as this object. Throws Error(Memory) naming `what`.
  void* take(std::uint64_t bytes, const char* what);
  template <class T>
  T* take(std::uint64_t count, const char* what) {
    return static_cast<T*>(take(count * sizeof(T), what));
  }

  const void* base() const { return reinterpret_cast<const void*>(base_); }
  std::uint64_t used() const { return used_; }            // bytes handed out, alignment included
  std::uint64_t committed() const { return committed_; }  // bytes of device memory behind them

 private:
  void release();

  std::uint64_t base_ = 0, capacity_ = 0, used_ = 0, committed_ = 0, granularity_ = 0;
  int device_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces_;  // handle, bytes
};

}  // namespace glyd::runner
