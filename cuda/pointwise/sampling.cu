// Sampling with the semantics of engine::Sampler, so that only ids leave the device.
//
// One block could go over a row's 151,936 logits, but a single multiprocessor takes tens of microseconds for each pass
// that does more than load. So whatever looks at every logit is spread over the chip, a block a piece of 2048 ids:
//
//   finish_pieces  adds up the partial sums, masks, applies the penalties, and notes each piece's first candidate and
//                  the largest logit of every 32 (a group).
//   sum_pieces     only for rows that need the weight of the whole vocabulary: the sum of each piece's weights.
//   choose         a block a row. Without top-k and top-p: finds the piece, then the id in it, at which the random
//                  number points when all weights are laid end to end in the order of ids. Else it gathers and sorts
//                  the candidates that may be kept, cuts the list, and lays the rest end to end likewise. The k largest
//                  of the groups' maxima are k candidates, so the others need only be sought in groups that reach the
//                  k-th: few.
//
// Sums are in double in an order that the vocabulary alone decides; counts are integers, gathered candidates get
// sorted: nothing depends on timing.

#include <cfloat>

#include "cuda/common/launch.h"
#include "cuda/pointwise/block.cuh"
#include "cuda/pointwise/order.cuh"
#include "cuda/pointwise/pointwise.h"

namespace glyd::cuda {
namespace {

constexpr int kPieceThreads = 256;
constexpr int kPiece = 8 * kPieceThreads;  // ids
constexpr int kGroup = 32;                 // ids: four lanes of eight
constexpr int kThreads = 1024;             // of choose()
constexpr int kCapacity = 2 * kThreads;    // candidates that can be sorted; pieces that a row may have
constexpr int kBins = 2 * kThreads;        // of a histogram: 11 bits
constexpr int kEnough = 1024;              // candidates wanted at least where top-p alone cuts

// The workspace of one row; everything is filled up to whole pieces.
struct RowSpace {
  Key* best;            // [pieces] key of the first candidate
  double* sums;         // [pieces] of weights
  float* logits;        // [pieces][kPiece] -inf where forbidden or behind the vocabulary
  std::uint32_t* tops;  // [pieces][kPiece / kGroup] ordered() of a group's largest logit

  static constexpr std::int64_t kBytes = 16 + kPiece * 4 + kPiece / kGroup * 4;  // a piece

  __device__ RowSpace(void* workspace, std::int64_t row, int pieces) {
    char* at = static_cast<char*>(workspace) + row * pieces * kBytes;
    best = reinterpret_cast<Key*>(at);
    sums = reinterpret_cast<double*>(at + std::int64_t{8} * pieces);
    logits = reinterpret_cast<float*>(at + std::int64_t{16} * pieces);
    tops = reinterpret_cast<std::uint32_t*>(logits + std::int64_t{kPiece} * pieces);
  }
};

int pieces_of(std::int64_t vocab) { return static_cast<int>((vocab + kPiece - 1) / kPiece); }

__device__ __forceinline__ bool ranked(const RowSampling& how, int vocab) { return how.top_k > 0 && how.top_k < vocab; }
__device__ __forceinline__ bool cut(const RowSampling& how, int vocab) { return ranked(how, vocab) || how.top_p < 1; }

// Finite logits stay finite, however extreme the penalty.
__device__ float to_finite(double logit) {
  return static_cast<float>(fmin(fmax(logit, -static_cast<double>(FLT_MAX)), static_cast<double>(FLT_MAX)));
}

// Applies the penalties to the ids of this block's piece that the row's text holds. `piece` is in shared memory.
__device__ void apply_penalties(const RowSampling& how, const TouchedId* touched_ids, int first_id, float* piece) {
  const bool repetition = how.repetition_penalty != 1;
  const bool output = how.frequency_penalty != 0 || how.presence_penalty != 0;
  for (int i = how.touched + static_cast<int>(threadIdx.x); i < how.touched_end; i += kPieceThreads) {
    const TouchedId touched = touched_ids[i];
    if (touched.id < first_id || touched.id >= first_id + kPiece) continue;
    float logit = piece[touched.id - first_id];
    if (!(fabsf(logit) < __int_as_float(0x7F800000))) continue;  // -inf stays; what is not finite shall be seen
    if (repetition) logit = to_finite(logit > 0 ? logit / how.repetition_penalty : logit * how.repetition_penalty);
    if (output && touched.count > 0)
      logit =
          to_finite(__dsub_rn(__dsub_rn(logit, __dmul_rn(how.frequency_penalty, touched.count)), how.presence_penalty));
    piece[touched.id - first_id] = logit;
  }
}

// Block (piece, row).
__global__ void __launch_bounds__(kPieceThreads)
    finish_pieces(Product product, const std::uint8_t* allowed, const RowSampling* rows, const TouchedId* touched_ids,
                  int vocab, void* workspace) {
  __shared__ float4 piece[kPiece / 4];
  let_next_start();
  const auto thread = static_cast<int>(threadIdx.x), first_id = static_cast<int>(blockIdx.x) * kPiece;
  const int id = first_id + thread * 8;
  const int splits = id < vocab ? splits_of(product, id) : 0;
  wait_for_previous();
  const RowSampling how = rows[blockIdx.y];
  float x[8] = {};
  if (id < vocab) load8(product, blockIdx.y, id, splits, x);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (id + j >= vocab || (allowed != nullptr && allowed[id + j] == 0)) x[j] = __int_as_float(0xFF800000);
  }
  if (how.repetition_penalty != 1 || how.frequency_penalty != 0 || how.presence_penalty != 0) {
    piece[2 * thread] = {x[0], x[1], x[2], x[3]};
    piece[2 * thread + 1] = {x[4], x[5], x[6], x[7]};
    __syncthreads();
    apply_penalties(how, touched_ids, first_id, reinterpret_cast<float*>(piece));
    __syncthreads();
    const float4 a = piece[2 * thread], b = piece[2 * thread + 1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  }

  const RowSpace space(workspace, blockIdx.y, static_cast<int>(gridDim.x));
  auto* to = reinterpret_cast<float4*>(space.logits + id);
  to[0] = {x[0], x[1], x[2], x[3]};
  to[1] = {x[4], x[5], x[6], x[7]};
  Key best = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) best = max(best, key_of(ordered(x[j]), id + j));
  std::uint32_t top = order_of(best);
  top = max(top, __shfl_xor_sync(~0u, top, 1));
  top = max(top, __shfl_xor_sync(~0u, top, 2));
  if (thread % 4 == 0) space.tops[id / kGroup] = top;
  best = block_max<kPieceThreads / 32>(best);
  if (thread == 0) space.best[blockIdx.x] = best;
}

// exp((logit - top) / temperature) in fp32. The quotient is a product with the reciprocal in two floats.
struct Weigher {
  float top, inverse, rest;

  __device__ Weigher(float top_logit, double temperature) : top(top_logit) {
    const double reciprocal = fmin(1 / temperature, 1e30);  // by then any other logit weighs nothing
    inverse = static_cast<float>(reciprocal);
    rest = static_cast<float>(reciprocal - inverse);
  }
  __device__ float operator()(float logit) const {
    const float difference = logit - top;
    if (!(difference * inverse > -110)) return 0;  // below the smallest float
    return expf(fmaf(difference, inverse, difference * rest));
  }
  // 0 when min-p drops it.
  __device__ double kept(float logit, double min_p) const {
    const float weight = (*this)(logit);
    return weight >= min_p ? weight : 0.0;
  }
};

// Block (piece, row).
__global__ void __launch_bounds__(kPieceThreads) sum_pieces(const RowSampling* rows, int vocab, void* workspace) {
  __shared__ double of_warps[kPieceThreads / 32];
  let_next_start();
  wait_for_previous();
  const RowSampling how = rows[blockIdx.y];
  if (how.temperature == 0 || ranked(how, vocab)) return;
  const auto thread = static_cast<int>(threadIdx.x), pieces = static_cast<int>(gridDim.x);
  const RowSpace space(workspace, blockIdx.y, pieces);
  const auto* from = reinterpret_cast<const float4*>(space.logits + blockIdx.x * kPiece + thread * 8);
  const float4 a = from[0], b = from[1];
  Key best = 0;
  for (int i = thread; i < pieces; i += kPieceThreads) best = max(best, space.best[i]);
  best = block_max<kPieceThreads / 32>(best);
  if (choice_of(best) < 0) return;

  const Weigher weigh(logit_of(order_of(best)), how.temperature);
  const double min_p = cut(how, vocab) ? 0 : how.min_p;  // top-p is a share of all
  const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  double sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += weigh.kept(x[j], min_p);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (thread % 32 == 0) of_warps[thread / 32] = sum;
  __syncthreads();
  if (thread != 0) return;
  double total = 0;
  for (const double of_warp : of_warps) total += of_warp;
  space.sums[blockIdx.x] = total;
}

struct Shared {
  int counts[kBins];
  Key candidates[kCapacity];
  double scan_double[33];
  int scan_int[33];
  int bin, above, upto;  // what find_bin() found
  int gathered, kept;
  int hit, last;
  double before;
};

// Finds, from the top, the bin with which the count reaches `wanted` (the last one if none does): its number, the
// counts above it and up to it. Returns the count of all bins.
__device__ int find_bin(Shared& shared, int wanted) {
  const int bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x);  // and the one below
  const int first = shared.counts[bin], second = shared.counts[bin - 1];
  int total = 0;
  const int above = exclusive_scan(first + second, shared.scan_int, total);
  const auto found = [&](int at, int before, int count) {
    shared.bin = at, shared.above = before, shared.upto = before + count;
  };
  if (above < wanted && above + first >= wanted) found(bin, above, first);
  if (above + first < wanted && (above + first + second >= wanted || bin == 1)) found(bin - 1, above + first, second);
  __syncthreads();
  return total;
}

// A bound that at least `wanted` of the values reach, and if equal values allow it at most `most`; 0 when there are no
// more than `most` anyway. visit(f) calls f(ordered(logit)) for each value. A radix select by 11, 11 and 10 bits that
// stops as soon as it may.
template <class Visit>
__device__ std::uint32_t bound_of(Shared& shared, int wanted, int most, Visit visit) {
  std::uint32_t bound = 0, known = 0;
  int above = 0;
  for (int shift = 21;; shift = shift == 21 ? 10 : 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.counts[i] = 0;
    __syncthreads();
    const std::uint32_t digit = shift == 0 ? 0x3FF : 0x7FF;
    visit([&](std::uint32_t order) {
      if (order > kMinusInfinity && (order & known) == bound) atomicAdd(&shared.counts[order >> shift & digit], 1);
    });
    __syncthreads();
    const int total = find_bin(shared, wanted - above);
    if (shift == 21 && total <= most) return 0;
    bound |= static_cast<std::uint32_t>(shared.bin) << shift;
    if (shift == 0 || above + shared.upto <= most) return bound;
    above += shared.above;
    known = ~((1u << shift) - 1);
    __syncthreads();
  }
}

// Sorts the first `count` of shared.candidates, the largest in front (bitonic).
__device__ void sort(Shared& shared, int count) {
  const auto thread = static_cast<int>(threadIdx.x);
  int length = 2;
  while (length < count) length *= 2;
  for (int i = count + thread; i < length; i += kThreads) shared.candidates[i] = 0;
  __syncthreads();
  for (int run = 2; run <= length; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      if (thread < length / 2) {
        const int low = thread / distance * 2 * distance + thread % distance, high = low + distance;
        const Key a = shared.candidates[low], b = shared.candidates[high];
        if ((a < b) == ((low & run) == 0)) shared.candidates[low] = b, shared.candidates[high] = a;
      }
      __syncthreads();
    }
  }
}

// Gathers the first candidates of the row into shared.candidates, sorted: at least `wanted`, or all there are; returns
// how many, and whether that is all. More than kCapacity: equal logits leave no choice, nothing is gathered.
__device__ int gather_first(Shared& shared, const RowSpace& space, int groups, int wanted, bool& all) {
  const auto thread = static_cast<int>(threadIdx.x);
  std::uint32_t bound = bound_of(shared, wanted, wanted + wanted / 4, [&](auto count) {
    for (int group = thread; group < groups; group += kThreads) count(space.tops[group]);
  });
  const auto visit = [&](auto see) {
    for (int group = thread; group < groups; group += kThreads) {
      if (space.tops[group] < bound) continue;
      const auto* fours = reinterpret_cast<const float4*>(space.logits + group * kGroup);
#pragma unroll
      for (int i = 0; i < kGroup / 4; ++i) {
        const float4 x = fours[i];
        const float logits[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t order = ordered(logits[j]);
          if (order >= bound && order > kMinusInfinity) see(order, group * kGroup + 4 * i + j);
        }
      }
    }
  };
  const auto gather = [&] {
    __syncthreads();
    if (thread == 0) shared.gathered = 0;
    __syncthreads();
    visit([&](std::uint32_t order, int id) {
      const int at = atomicAdd(&shared.gathered, 1);
      if (at < kCapacity) shared.candidates[at] = key_of(order, id);
    });
    __syncthreads();
    return shared.gathered;
  };
  int gathered = gather();
  if (gathered > kCapacity) {  // groups hold many of them, or few groups were enough
    const std::uint32_t higher = bound_of(shared, wanted, kCapacity,
                                          [&](auto count) { visit([&](std::uint32_t order, int) { count(order); }); });
    bound = max(bound, higher);
    gathered = gather();
  }
  all = bound == 0;
  if (gathered <= kCapacity) sort(shared, gathered);
  return gathered;
}

// Gathers what top-k and top-p keep at the front of shared.candidates and returns its number; 0 when that cannot be
// said.
__device__ int keep_first(Shared& shared, const RowSampling& how, const RowSpace& space, int vocab, int pieces,
                          const Weigher& weigh) {
  const auto thread = static_cast<int>(threadIdx.x);
  const bool by_rank = ranked(how, vocab);
  if (by_rank && how.top_k > kCapacity) return 0;
  bool all = false;
  const int gathered = gather_first(shared, space, pieces * (kPiece / kGroup), by_rank ? how.top_k : kEnough, all);
  if (gathered > kCapacity) return 0;
  const int count = by_rank ? min(how.top_k, gathered) : gathered;
  if (how.top_p >= 1) return count;

  double weights[2] = {}, total = 0;
  for (int i = 0; i < 2; ++i)
    if (2 * thread + i < count) weights[i] = weigh(logit_of(order_of(shared.candidates[2 * thread + i])));
  double reached = exclusive_scan(weights[0] + weights[1], shared.scan_double, total);
  if (!by_rank) {  // a share of the whole vocabulary
    double sums[2] = {};
    for (int i = 0; i < 2; ++i)
      if (2 * thread + i < pieces) sums[i] = space.sums[2 * thread + i];
    exclusive_scan(sums[0] + sums[1], shared.scan_double, total);
  }
  if (thread == 0) shared.kept = kCapacity + 1;
  __syncthreads();
  for (int i = 0; i < 2; ++i) {
    reached += weights[i];
    if (2 * thread + i < count && reached >= how.top_p * total) atomicMin(&shared.kept, 2 * thread + i + 1);
  }
  __syncthreads();
  if (shared.kept <= kCapacity) return shared.kept;
  // Not reached: no harm where there are no more, or where min-p drops the others.
  const float last = logit_of(order_of(shared.candidates[count - 1]));
  return by_rank || all || weigh(last) < how.min_p ? count : 0;
}

// Where `target` points along weights laid end to end, two a thread, of which `before` lie before the thread's own. A
// target that rounding has pushed over the end means the last one. Leaves what lies before the weight found in
// shared.before.
__device__ int find(Shared& shared, const double (&weights)[2], double before, double target) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared.hit = kCapacity, shared.last = 0;
  __syncthreads();
  double reached = before;
  for (int i = 0; i < 2; ++i) {
    reached += weights[i];
    if (weights[i] <= 0) continue;
    if (target < reached) atomicMin(&shared.hit, 2 * thread + i);
    atomicMax(&shared.last, 2 * thread + i);
  }
  __syncthreads();
  const int found = shared.hit < kCapacity ? shared.hit : shared.last;
  if (thread == found / 2) shared.before = found % 2 == 0 ? before : before + weights[0];
  __syncthreads();
  return found;
}

// Among all ids: first the piece, then the id in it.
__device__ std::int32_t draw_from_all(Shared& shared, const RowSampling& how, const RowSpace& space, int pieces,
                                      double uniform, const Weigher& weigh) {
  const auto thread = static_cast<int>(threadIdx.x);
  double weights[2] = {}, total = 0;
  for (int i = 0; i < 2; ++i)
    if (2 * thread + i < pieces) weights[i] = space.sums[2 * thread + i];
  double before = exclusive_scan(weights[0] + weights[1], shared.scan_double, total);
  const double target = uniform * total;
  const int piece = find(shared, weights, before, target);
  const double rest = target - shared.before;

  for (int i = 0; i < 2; ++i) weights[i] = weigh.kept(space.logits[piece * kPiece + 2 * thread + i], how.min_p);
  before = exclusive_scan(weights[0] + weights[1], shared.scan_double, total);
  return piece * kPiece + find(shared, weights, before, rest);
}

// Among the first `count` of shared.candidates, in the order of ids.
__device__ std::int32_t draw_from_kept(Shared& shared, const RowSampling& how, int count, double uniform,
                                       const Weigher& weigh) {
  const auto thread = static_cast<int>(threadIdx.x);
  const auto halves_swapped = [](Key key) { return key << 32 | key >> 32; };
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) shared.candidates[i] = halves_swapped(shared.candidates[i]);
  sort(shared, count);
  double weights[2] = {}, total = 0;
  for (int i = 0; i < 2; ++i) {
    if (2 * thread + i < count)
      weights[i] = weigh.kept(logit_of(order_of(halves_swapped(shared.candidates[2 * thread + i]))), how.min_p);
  }
  const double before = exclusive_scan(weights[0] + weights[1], shared.scan_double, total);
  return id_of(halves_swapped(shared.candidates[find(shared, weights, before, uniform * total)]));
}

// A block a row.
__global__ void __launch_bounds__(kThreads)
    choose(const RowSampling* rows, int vocab, int pieces, void* workspace, std::int32_t* ids) {
  __shared__ Shared shared;
  let_next_start();
  wait_for_previous();
  const RowSampling how = rows[blockIdx.x];
  const RowSpace space(workspace, blockIdx.x, pieces);
  Key best = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) best = max(best, space.best[i]);
  best = block_max<kThreads / 32>(best);
  std::int32_t id = choice_of(best);
  if (id >= 0 && how.temperature > 0) {
    const Weigher weigh(logit_of(order_of(best)), how.temperature);
    const double uniform = static_cast<double>(how.random >> 11) * 0x1p-53;
    if (!cut(how, vocab)) {
      id = draw_from_all(shared, how, space, pieces, uniform, weigh);
    } else {
      const int kept = keep_first(shared, how, space, vocab, pieces, weigh);
      id = kept == 0 ? kTooManyCandidates : draw_from_kept(shared, how, kept, uniform, weigh);
    }
  }
  if (threadIdx.x == 0) ids[blockIdx.x] = id;
}

}  // namespace

std::size_t sample_workspace(int tokens, std::int64_t vocab) {
  return static_cast<std::size_t>(tokens * pieces_of(vocab) * RowSpace::kBytes);
}

cudaError_t sample(const Product& logits, const std::uint8_t* allowed, const RowSampling* rows,
                   const TouchedId* touched_ids, int tokens, std::int64_t vocab, std::int32_t* ids, void* workspace,
                   cudaStream_t stream) {
  if (vocab <= 0 || vocab > logits.rows || vocab > std::int64_t{kPiece} * kCapacity) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  const int size = static_cast<int>(vocab), pieces = pieces_of(vocab);
  const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(tokens));
  cudaError_t error =
      launch(finish_pieces, grid, kPieceThreads, 0, stream, logits, allowed, rows, touched_ids, size, workspace);
  if (error != cudaSuccess) return error;
  error = launch(sum_pieces, grid, kPieceThreads, 0, stream, rows, size, workspace);
  if (error != cudaSuccess) return error;
  return launch(choose, static_cast<unsigned>(tokens), kThreads, 0, stream, rows, size, pieces, workspace, ids);
}

}  // namespace glyd::cuda
