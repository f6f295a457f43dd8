#pragma once
// A fixed piece of memory for weights, KV blocks and workspace: aligned, on huge pages where they help, zeroed only on
// request.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace glyd::runner::cpu {

// `bytes` of uninitialised memory: 64-byte aligned; from 4 MiB on 2 MiB aligned, with huge pages advised. The pages
// become resident when first touched. Throws Error(Memory) naming `what`.
void* allocate_aligned(std::uint64_t bytes, const char* what);

template <class T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(std::uint64_t count, const char* what)
      : data_(static_cast<T*>(allocate_aligned(count * sizeof(T), what))), size_(count) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::uint64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  std::uint64_t size_ = 0;
};

}  // namespace glyd::runner::cpu
