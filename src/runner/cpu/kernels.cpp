#include "runner/cpu/kernels.h"

#include <cstdint>
#include <cstring>

// The headers stay above: what they define must not be compiled for a level that the machine may lack. Only GCC
// compiles the higher levels; with other compilers (the fuzz targets' clang) the baseline does all of the work.
#define GLYD_INLINE [[gnu::always_inline]] inline
#if defined(__clang__)
#define GLYD_UNROLL _Pragma("unroll")
#else
#define GLYD_UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GLYD_X86_LEVELS
#endif

namespace glyd::runner::cpu {

namespace baseline {
#define GLYD_WIDTH 4
#define GLYD_ROWS 2
#define GLYD_COLUMNS 1
#include "runner/cpu/kernels.inc"
#undef GLYD_WIDTH
#undef GLYD_ROWS
#undef GLYD_COLUMNS
}  // namespace baseline

#ifdef GLYD_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace v3 {
#define GLYD_WIDTH 8
#define GLYD_ROWS 2
#define GLYD_COLUMNS 2
#include "runner/cpu/kernels.inc"
#undef GLYD_WIDTH
#undef GLYD_ROWS
#undef GLYD_COLUMNS
}  // namespace v3
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace v4 {
#define GLYD_WIDTH 16
#define GLYD_ROWS 4
#define GLYD_COLUMNS 4
#include "runner/cpu/kernels.inc"
#undef GLYD_WIDTH
#undef GLYD_ROWS
#undef GLYD_COLUMNS
}  // namespace v4
#pragma GCC pop_options
#endif

const std::vector<Kernels>& supported_kernels() {
  static const std::vector<Kernels> kernels = [] {
    std::vector<Kernels> k;
#ifdef GLYD_X86_LEVELS
    if (__builtin_cpu_supports("x86-64-v4")) k.push_back(v4::make_kernels(SimdLevel::V4, "AVX-512"));
    if (__builtin_cpu_supports("x86-64-v3")) k.push_back(v3::make_kernels(SimdLevel::V3, "AVX2"));
#endif
    k.push_back(baseline::make_kernels(SimdLevel::Baseline, "baseline SIMD"));
    return k;
  }();
  return kernels;
}

}  // namespace glyd::runner::cpu
