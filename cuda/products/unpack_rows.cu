// Rows of packed weights as plain bf16, which a prompt's products multiply by cuBLAS: for sm_90a, by the product
// kernels' way of reading weights, with stores in the place of products.
//
// Bound by memory where the clock is high: 1.34 bytes are read and 2 written for a weight. In a prompt the chip is at
// its power limit and the clock falls to 1600 MHz, and then by what a multiprocessor decodes at a time: cuda/packing's
// unpack(), which runs everywhere, has 20 warps wait for their whole unit, and gives three quarters of this one's
// speed.
//
// CPU reference: src/codec/unpack.h.

#include "cuda/products/weight_stream.cuh"

namespace glyd::cuda {
namespace {

constexpr int kMaxPassGroups = 5;
static_assert(kMaxPassGroups <= kMostPassGroups);
static_assert(plan_stages(1, 1, kTableBytes + kBarrierBytes, 0, kLargestSlotBytes, 0).stages >= 2);

struct UnpackArguments : StreamArguments<ResidentMatrix> {
  std::uint16_t* out;  // [rows][stride]
  std::int64_t stride;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

// The Sink: a lane has 8 columns of two rows of each group.
class RowWriter {
 public:
  static constexpr int kFragments = 2;
  struct X {};

  __device__ __forceinline__ RowWriter(const UnpackArguments& args, int, int place, int warp, int lane)
      : args_(args), place_(place), row_((warp & 3) * 16 + (lane >> 2)), col_((lane & 3) * 8) {
    wait_for_previous();
  }
  __device__ __forceinline__ void open(std::uint32_t, int step_row, int block) {
    const std::int64_t row = args_.partition.row_group(step_row, place_) * kGroupRows + row_;
    upper_ = row < args_.partition.rows;
    lower_ = row + 8 < args_.partition.rows;
    to_ = args_.out + row * args_.stride + block * static_cast<int>(codec::kBlockCols) + col_;
  }
  __device__ __forceinline__ X load(int) { return {}; }
  __device__ __forceinline__ void run(int g, const Fragments (&a)[kFragments], const X&) {
    run_slowly(g, a[g % kFragments]);
  }
  __device__ __forceinline__ void run_slowly(int g, const Fragments& a) {
    std::uint16_t* const to = to_ + g * static_cast<int>(codec::kGroupCols);
    if (upper_) *reinterpret_cast<uint4*>(to) = uint4{a[0][0], a[0][2], a[1][0], a[1][2]};
    if (lower_) *reinterpret_cast<uint4*>(to + 8 * args_.stride) = uint4{a[0][1], a[0][3], a[1][1], a[1][3]};
  }
  __device__ __forceinline__ void close(std::uint32_t barrier) { barrier_arrive(barrier); }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ void end_row(int) {}

 private:
  const UnpackArguments& args_;
  int place_, row_, col_;
  std::uint16_t* to_ = nullptr;
  bool upper_ = false, lower_ = false;
};

#endif

__global__ void __launch_bounds__(kMaxPassGroups * 128 + 32, 1)
    unpack_rows_kernel(const __grid_constant__ UnpackArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, run = blockIdx.x;
  const std::uint32_t full = shared_address(shared_memory) + kTableBytes, ring = full + kBarrierBytes;
  const int begin = args.partition.first[run], end = args.partition.end(run);
  if (begin == end) return;
  if (warp == args.pass_groups * 4) {
    produce<ResidentMatrix, 0>(args, run, ring, full, full + 8 * kMaxStages, begin, end, lane);
  } else {
    consume<0, RegisterQueue<PackedWalk, 8>, RowWriter>(args, run, 0, ring, full, begin, end, warp, lane);
  }
#else
  __trap();
#endif
}

}  // namespace

cudaError_t unpack_rows(const ResidentMatrix& weights, const Partition& partition, std::uint16_t* out,
                        std::int64_t stride, cudaStream_t stream) {
  if (weights.cols % codec::kGroupCols != 0 || stride < weights.cols || stride % 8 != 0) return cudaErrorInvalidValue;
  const std::uint32_t slot = weights.slot_bytes();
  const StagePlan plan = plan_stages(partition.height, kMaxPassGroups, kTableBytes + kBarrierBytes, 0, slot, 0);
  if (plan.stages == 0) return cudaErrorInvalidConfiguration;
  if (const cudaError_t error = cudaFuncSetAttribute(unpack_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(kShared));
      error != cudaSuccess)
    return error;
  const UnpackArguments args{{weights, partition, nullptr, static_cast<int>(slot),
                              plan.pass_groups * static_cast<int>(slot), plan.stages, plan.pass_groups},
                             out,
                             stride};
  return launch(unpack_rows_kernel, dim3(partition.ctas), dim3(plan.pass_groups * 128 + 32), plan.bytes, stream, args);
}

}  // namespace glyd::cuda
