#pragma once
// wgmma for sm_90a: d += a * b with a (64 x 16, from registers: warp i of the warp group holds rows 16 i .. 16 i + 15,
// each in the fragments of mma.m16n8k16) and b (16 x N, core matrices of 8 x 16 bytes in shared memory, no swizzle).
// fresh == 0 takes d as zero instead.

#include <cstdint>

namespace glyd::cuda {

// Where b lies: its core matrices follow each other along N at 128 bytes, along K at N * 16 bytes. The low word moves
// on by 1 for 16 bytes of the address: shared memory ends before its field does.
template <int kColumns>
__device__ __forceinline__ std::uint32_t wgmma_descriptor_low(std::uint32_t address) {
  return (address >> 4 & 0x3FFF) | (kColumns * 16 >> 4) << 16;
}
__device__ __forceinline__ std::uint64_t wgmma_descriptor(std::uint32_t low) {
  return low | static_cast<std::uint64_t>(128 >> 4) << 32;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Blocks until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// d as operands, by tiles of 8 columns, and the numbers that they have in the instruction.
#define GLYD_TILE(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define GLYD_TILES2(n) GLYD_TILE(n), GLYD_TILE(n + 1)
#define GLYD_TILES4(n) GLYD_TILES2(n), GLYD_TILES2(n + 2)
#define GLYD_D0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define GLYD_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define GLYD_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define GLYD_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define GLYD_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GLYD_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
// a0 to a3, b_at, fresh_at: the numbers of the other operands, behind those of d.
#define GLYD_WGMMA(columns, numbers, a0, a1, a2, a3, b_at, fresh_at, ...)                                \
  template <>                                                                                            \
  struct Wgmma<columns> {                                                                                \
    static __device__ __forceinline__ void step(float (&d)[columns / 8][4], const std::uint32_t (&a)[4], \
                                                std::uint64_t b, int fresh) {                            \
      asm volatile("{ .reg .pred p; setp.ne.s32 p, %" #fresh_at                                          \
                   ", 0; "                                                                               \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" numbers            \
                   "}, "                                                                                 \
                   "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 0; }"                 \
                   : __VA_ARGS__                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh));                    \
    }                                                                                                    \
  };

template <int kColumns>
struct Wgmma;

GLYD_WGMMA(32, GLYD_D0, 16, 17, 18, 19, 20, 21, GLYD_TILES4(0))
GLYD_WGMMA(48, GLYD_D0 GLYD_D16, 24, 25, 26, 27, 28, 29, GLYD_TILES4(0), GLYD_TILES2(4))
GLYD_WGMMA(64, GLYD_D0 GLYD_D16 GLYD_D24, 32, 33, 34, 35, 36, 37, GLYD_TILES4(0), GLYD_TILES4(4))
GLYD_WGMMA(96, GLYD_D0 GLYD_D16 GLYD_D24 GLYD_D32, 48, 49, 50, 51, 52, 53, GLYD_TILES4(0), GLYD_TILES4(4),
           GLYD_TILES4(8))
GLYD_WGMMA(112, GLYD_D0 GLYD_D16 GLYD_D24 GLYD_D32 GLYD_D48, 56, 57, 58, 59, 60, 61, GLYD_TILES4(0), GLYD_TILES4(4),
           GLYD_TILES4(8), GLYD_TILES2(12))
GLYD_WGMMA(128, GLYD_D0 GLYD_D16 GLYD_D24 GLYD_D32 GLYD_D48 GLYD_D56, 64, 65, 66, 67, 68, 69, GLYD_TILES4(0),
           GLYD_TILES4(4), GLYD_TILES4(8), GLYD_TILES4(12))

#undef GLYD_WGMMA
#undef GLYD_D56
#undef GLYD_D48
#undef GLYD_D32
#undef GLYD_D24
#undef GLYD_D16
#undef GLYD_D0
#undef GLYD_TILES4
#undef GLYD_TILES2
#undef GLYD_TILE

}  // namespace glyd::cuda
