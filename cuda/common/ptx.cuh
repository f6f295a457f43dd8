#pragma once
// The PTX instructions that kernels share, each behind a name. Shared memory addresses are 32-bit (shared_address()).

#include <cstdint>

namespace glyd::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_u16(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("{ .reg .u16 t; ld.shared.u16 t, [%1]; cvt.u32.u16 %0, t; }" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_u8(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("{ .reg .u16 t; ld.shared.u8 t, [%1]; cvt.u32.u16 %0, t; }" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
// Leaves v as it is where `wanted` is false.
__device__ __forceinline__ void load_shared_16_if(bool wanted, std::uint32_t address, uint4& v) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "r"(address), "r"(static_cast<int>(wanted)));
}

// What the L2 cache is to do with lines. Weights are read once a step: they are to go first, or what kernels leave for
// each other would be written to memory before it is overwritten. That, and what all multiprocessors read, is to stay.
__device__ __forceinline__ std::uint64_t read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t used_again() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Of what is read once: nothing is pushed out of the caches for it.
__device__ __forceinline__ uint4 load_streaming_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(read_once()));
  return v;
}
// The same where it is wanted, zeros elsewhere, without a branch.
__device__ __forceinline__ uint4 load_streaming_16_if(bool wanted, const void* p) {
  uint4 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %6, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
      "@q ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "l"(read_once()), "r"(static_cast<std::uint32_t>(wanted)));
  return v;
}
// The same of what a kernel before may have written.
__device__ __forceinline__ uint4 load_streaming_coherent_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(read_once()));
  return v;
}
__device__ __forceinline__ void store_used_again(float* to, float v) {
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(v), "l"(used_again()) : "memory");
}

// Copies of 16 bytes that are read once to shared memory, for which a thread does not wait, in groups that end in their
// order.
__device__ __forceinline__ void copy_streaming_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(read_once())
               : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Blocks until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Of the multiprocessor that the thread runs on.
__device__ __forceinline__ std::uint32_t processor_number() {
  std::uint32_t number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

// Each bit from a where the mask has 1, from b elsewhere.
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t a, std::uint32_t b, std::uint32_t mask) {
  std::uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
  return d;
}

// d += a * b: a is 16 x 16 (rows g and g + 8 of lane 4 g + q), b 16 x 8, bf16; d fp32.
__device__ __forceinline__ void mma_16816(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                          std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Barriers in shared memory, and bulk copies that arrive on them.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// What this thread has read of shared memory is over before a bulk copy writes there that is asked for by someone who
// waits for this thread's arrival. Without it an arrival overtakes reads that the memory pipe holds back.
__device__ __forceinline__ void reads_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra done; bra again; done: }" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}
// Whether barrier_wait() would come back at once: asked for early, the answer's way costs no time.
__device__ __forceinline__ bool barrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
// `bytes` (a multiple of 16) from global to shared memory, both 16-byte aligned. `policy`: read_once() or used_again().
__device__ __forceinline__ void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

#endif

}  // namespace glyd::cuda
