// Sampling with the semantics of engine::Sampler, so that only ids leave the device.
//
// A first kernel adds up the partial sums and masks, over the whole chip; what remains is a block a row, which goes
// over its row (600 KB for 151,936 logits, out of the second level cache) as seldom as it can:
//
//   1. the first candidate, whether all are finite, and a histogram over the upper 11 bits of the logits' order;
//   2. only with top-k or top-p: the candidates that may be kept, down to a bound which the histogram gives (refined by
//      11, then 10 further bits where a bin holds too many), are gathered and sorted; top-k and top-p cut the sorted
//      list, and the last one kept is the bar;
//   3. the draw: the weights of all ids at or above the bar and min-p are laid end to end in the order of the ids, and
//      the random number says where along them.
//
// Sums are in double in an order that the vocabulary alone decides; counts are integers, gathered candidates get
// sorted: nothing depends on timing.

#include <cfloat>

#include "cuda/common/launch.h"
#include "cuda/pointwise/order.cuh"
#include "cuda/pointwise/pointwise.h"

namespace glyd::cuda {
namespace {

constexpr int kFinishThreads = 256;
constexpr int kThreads = 1024;
constexpr int kBins = 2 * kThreads;      // of the histogram: 11 bits
constexpr int kCapacity = 2 * kThreads;  // candidates that can be sorted
constexpr int kEnough = 1024;            // candidates wanted at least where top-p alone cuts

__host__ __device__ constexpr std::int64_t padded(std::int64_t vocab) { return (vocab + 127) / 128 * 128; }

// logits[token][padded(vocab)]; what is forbidden or behind the vocabulary is -inf.
__global__ void __launch_bounds__(kFinishThreads)
    finish_and_mask(Product product, const std::uint8_t* allowed, std::int64_t vocab, float* logits) {
  let_next_start();
  const std::int64_t id = (std::int64_t{blockIdx.x} * kFinishThreads + threadIdx.x) * 8, token = blockIdx.y;
  const int splits = id < vocab ? splits_of(product, id) : 0;
  wait_for_previous();
  if (id >= padded(vocab)) return;
  float x[8] = {};
  if (id < vocab) load8(product, token, id, splits, x);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (id + j >= vocab || (allowed != nullptr && allowed[id + j] == 0)) x[j] = __int_as_float(0xFF800000);
  }
  auto* to = reinterpret_cast<float4*>(logits + token * padded(vocab) + id);
  to[0] = {x[0], x[1], x[2], x[3]};
  to[1] = {x[4], x[5], x[6], x[7]};
}

struct Shared {
  int counts[kBins];
  Key candidates[kCapacity];
  double scan_double[33];
  int scan_int[33];
  Key best[32];
  int bin, above, upto;  // what find_bin() found
  int gathered, kept;
  double total, before;
  int tile, last_tile;
};

// Sum of the values of all threads before this one; `total`: of all. Fixed order. `scratch` [33].
template <class T>
__device__ T exclusive_scan(T value, T* scratch, T& total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = value;  // of the warp's lanes up to this one
  for (int offset = 1; offset < 32; offset *= 2) {
    const T before = __shfl_up_sync(~0u, sum, offset);
    if (static_cast<int>(lane) >= offset) sum += before;
  }
  __syncthreads();  // scratch may still be read
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    T warps = scratch[lane];
    for (int offset = 1; offset < 32; offset *= 2) {
      const T before = __shfl_up_sync(~0u, warps, offset);
      if (static_cast<int>(lane) >= offset) warps += before;
    }
    const T before = __shfl_up_sync(~0u, warps, 1);
    scratch[lane] = lane == 0 ? T{} : before;
    if (lane == 31) scratch[32] = warps;
  }
  __syncthreads();
  const T before = __shfl_up_sync(~0u, sum, 1);
  total = scratch[32];
  return lane == 0 ? scratch[warp] : scratch[warp] + before;
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
};

// Calls f(logit, id) for every logit of the row, in float4s.
template <class F>
__device__ __forceinline__ void for_each(const float* row, int size, F f) {
  const auto* fours = reinterpret_cast<const float4*>(row);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < size / 4; i += kThreads) {
    const float4 x = fours[i];
    f(x.x, 4 * i), f(x.y, 4 * i + 1), f(x.z, 4 * i + 2), f(x.w, 4 * i + 3);
  }
}

// Finite logits stay finite, however extreme the penalty.
__device__ float to_finite(double logit) {
  return static_cast<float>(fmin(fmax(logit, -static_cast<double>(FLT_MAX)), static_cast<double>(FLT_MAX)));
}

__device__ void apply_penalties(const RowSampling& how, const TouchedId* touched_ids, int vocab, float* row) {
  const bool repetition = how.repetition_penalty != 1;
  const bool output = how.frequency_penalty != 0 || how.presence_penalty != 0;
  if (!repetition && !output) return;
  for (int i = how.touched + static_cast<int>(threadIdx.x); i < how.touched_end; i += kThreads) {
    const TouchedId touched = touched_ids[i];
    if (touched.id < 0 || touched.id >= vocab) continue;
    float logit = row[touched.id];
    if (!(fabsf(logit) < __int_as_float(0x7F800000))) continue;  // -inf stays; what is not finite shall be seen
    if (repetition) logit = to_finite(logit > 0 ? logit / how.repetition_penalty : logit * how.repetition_penalty);
    if (output && touched.count > 0)
      logit =
          to_finite(__dsub_rn(__dsub_rn(logit, __dmul_rn(how.frequency_penalty, touched.count)), how.presence_penalty));
    row[touched.id] = logit;
  }
}

// Finds, from the top, the bin with which the count reaches `wanted` (the last one if none does): its number, the
// counts above it and up to it.
__device__ void find_bin(Shared& shared, int wanted) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int bin = kBins - 1 - 2 * thread;  // and the one below
  const int first = shared.counts[bin], second = shared.counts[bin - 1];
  int total = 0;
  const int above = exclusive_scan(first + second, shared.scan_int, total);
  const auto found = [&](int at, int before, int count) {
    shared.bin = at, shared.above = before, shared.upto = before + count;
  };
  if (above < wanted && above + first >= wanted) found(bin, above, first);
  if (above + first < wanted && (above + first + second >= wanted || bin == 1)) found(bin - 1, above + first, second);
  __syncthreads();
}

// Gathers the candidates down to a bound into shared.candidates, sorted, the first in front: at least `wanted` and at
// most kCapacity, or all there are. False when equal logits make that impossible. On entry shared.counts holds the
// histogram of the upper 11 bits.
__device__ bool gather_first(Shared& shared, const float* row, int size, int wanted) {
  const auto thread = static_cast<int>(threadIdx.x);
  std::uint32_t bound = 0;
  int shift = 21, above = 0;
  while (true) {
    find_bin(shared, wanted - above);
    bound |= static_cast<std::uint32_t>(shared.bin) << shift;
    if (above + shared.upto <= kCapacity) break;
    if (shift == 0) return false;
    above += shared.above;
    const std::uint32_t known = ~((1u << shift) - 1);
    shift = shift == 21 ? 10 : 0;
    const std::uint32_t digit = shift == 10 ? 0x7FF : 0x3FF;
    __syncthreads();
    for (int i = thread; i < kBins; i += kThreads) shared.counts[i] = 0;
    __syncthreads();
    for_each(row, size, [&](float logit, int) {
      const std::uint32_t order = ordered(logit);
      if ((order & known) == bound && order > kMinusInfinity) atomicAdd(&shared.counts[order >> shift & digit], 1);
    });
    __syncthreads();
  }

  if (thread == 0) shared.gathered = 0;
  __syncthreads();
  for_each(row, size, [&](float logit, int id) {
    const std::uint32_t order = ordered(logit);
    if (order >= bound && order > kMinusInfinity) shared.candidates[atomicAdd(&shared.gathered, 1)] = key_of(order, id);
  });
  __syncthreads();

  int length = 2;
  while (length < shared.gathered) length *= 2;
  for (int i = shared.gathered + thread; i < length; i += kThreads) shared.candidates[i] = 0;
  __syncthreads();
  // Bitonic, descending.
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
  return true;
}

// The key of the last candidate that top-k and top-p keep; 0 when that cannot be said. `candidates`: how many there are
// in all.
__device__ Key last_kept(Shared& shared, const RowSampling& how, const float* row, int size, int candidates,
                         const Weigher& weigh) {
  const auto thread = static_cast<int>(threadIdx.x);
  const bool by_rank = how.top_k > 0 && how.top_k < candidates;
  if (!by_rank && how.top_p >= 1) return 1;  // below all
  if (!gather_first(shared, row, size, by_rank ? how.top_k : kEnough)) return 0;
  const int gathered = shared.gathered, limit = by_rank ? how.top_k : gathered;
  if (how.top_p >= 1) return shared.candidates[limit - 1];

  double total = 0;  // what top-p is a share of
  if (!by_rank) {
    double mine = 0;
    for_each(row, size, [&](float logit, int) { mine += weigh(logit); });
    exclusive_scan(mine, shared.scan_double, total);
  }
  double weights[2] = {}, gathered_total = 0;
  for (int i = 0; i < 2; ++i)
    if (2 * thread + i < limit) weights[i] = weigh(logit_of(order_of(shared.candidates[2 * thread + i])));
  const double before = exclusive_scan(weights[0] + weights[1], shared.scan_double, gathered_total);
  const double target = how.top_p * (by_rank ? gathered_total : total);
  if (thread == 0) shared.kept = kCapacity + 1;
  __syncthreads();
  double reached = before;
  for (int i = 0; i < 2; ++i) {
    reached += weights[i];
    if (2 * thread + i < limit && reached >= target) atomicMin(&shared.kept, 2 * thread + i + 1);
  }
  __syncthreads();
  if (shared.kept <= kCapacity) return shared.candidates[shared.kept - 1];
  // Not reached: no harm where there are no more, or where min-p drops the others.
  const Key last = shared.candidates[limit - 1];
  return by_rank || gathered == candidates || weigh(logit_of(order_of(last))) < how.min_p ? last : 0;
}

// Walks along the weights of all candidates at or above `bar` and min-p, in the order of ids, in tiles of a warp each.
__device__ std::int32_t draw(Shared& shared, const RowSampling& how, const float* row, int size, Key bar,
                             const Weigher& weigh) {
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto* fours = reinterpret_cast<const float4*>(row);
  const int steps = max(4, (size + 128 * kThreads - 1) / (128 * kThreads));  // of 128 ids: at most kThreads tiles
  const int groups = size / 128, tiles = (groups + steps - 1) / steps;
  const auto min_p = how.min_p;
  const auto weigh_four = [&](int group, double(&weights)[4]) {
    const float4 x = fours[group * 32 + lane];
    const float logits[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = weigh(logits[i]);
      const bool kept = weight > 0 && weight >= min_p && key_of(ordered(logits[i]), group * 128 + lane * 4 + i) >= bar;
      weights[i] = kept ? weight : 0.0;
    }
  };

  auto* tile_sums = reinterpret_cast<double*>(shared.candidates);  // the candidates have served
  __syncthreads();
  tile_sums[thread] = 0;
  __syncthreads();
  for (int tile = warp; tile < tiles; tile += kThreads / 32) {
    double sum = 0;
#pragma unroll 4
    for (int group = tile * steps; group < min(tile * steps + steps, groups); ++group) {
      double weights[4];
      weigh_four(group, weights);
      sum += (weights[0] + weights[1]) + (weights[2] + weights[3]);
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) tile_sums[tile] = sum;
  }
  __syncthreads();

  double total = 0;
  const double sum = tile_sums[thread], before = exclusive_scan(sum, shared.scan_double, total);
  const double target = static_cast<double>(how.random >> 11) * 0x1p-53 * total;
  if (thread == 0) shared.tile = kThreads, shared.last_tile = 0;
  __syncthreads();
  if (sum > 0) {
    if (target < before + sum) atomicMin(&shared.tile, thread);
    atomicMax(&shared.last_tile, thread);
  }
  __syncthreads();
  const int tile = shared.tile < kThreads ? shared.tile : shared.last_tile;  // the last: the sums' rounding
  if (thread == tile) shared.before = before;
  __syncthreads();
  if (warp != 0) return 0;

  double reached = shared.before;
  std::int32_t last = 0;
  for (int group = tile * steps; group < min(tile * steps + steps, groups); ++group) {
    double weights[4];
    weigh_four(group, weights);
    double upto = (weights[0] + weights[1]) + (weights[2] + weights[3]);
    for (int offset = 1; offset < 32; offset *= 2) {
      const double lower = __shfl_up_sync(~0u, upto, offset);
      if (lane >= offset) upto += lower;
    }
    const double lower = __shfl_up_sync(~0u, upto, 1);
    double at = reached + (lane == 0 ? 0 : lower);
    int mine = -1, mine_last = -1;  // the first id behind the target, the last one with a weight
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at += weights[i];
      if (weights[i] <= 0) continue;
      mine_last = group * 128 + lane * 4 + i;
      if (mine < 0 && target < at) mine = mine_last;
    }
    const unsigned hits = __ballot_sync(~0u, mine >= 0), any = __ballot_sync(~0u, mine_last >= 0);
    if (hits != 0) return __shfl_sync(~0u, mine, __ffs(static_cast<int>(hits)) - 1);
    if (any != 0) last = __shfl_sync(~0u, mine_last, 31 - __clz(static_cast<int>(any)));
    reached += __shfl_sync(~0u, upto, 31);
  }
  return last;
}

__global__ void __launch_bounds__(kThreads)
    sample_rows(float* logits, const RowSampling* rows, const TouchedId* touched_ids, int vocab, std::int32_t* ids) {
  __shared__ Shared shared;
  let_next_start();
  wait_for_previous();
  const auto thread = static_cast<int>(threadIdx.x);
  const RowSampling how = rows[blockIdx.x];
  const auto size = static_cast<int>(padded(vocab));
  float* row = logits + std::int64_t{blockIdx.x} * size;
  std::int32_t& id = ids[blockIdx.x];
  for (int i = thread; i < kBins; i += kThreads) shared.counts[i] = 0;
  apply_penalties(how, touched_ids, vocab, row);
  __syncthreads();

  const bool cuts = how.temperature > 0 && ((how.top_k > 0 && how.top_k < vocab) || how.top_p < 1);
  Key best = 0;
  int finite = 0;
  for_each(row, size, [&](float logit, int i) {
    const std::uint32_t order = ordered(logit);
    best = max(best, key_of(order, i));
    if (!cuts || order <= kMinusInfinity) return;
    ++finite;
    atomicAdd(&shared.counts[order >> 21], 1);
  });
  best = warp_max(best);
  if (thread % 32 == 0) shared.best[thread / 32] = best;
  __syncthreads();
  best = warp_max(shared.best[thread % 32]);
  const std::int32_t greedy = choice_of(best);
  if (greedy < 0 || how.temperature == 0) {
    if (thread == 0) id = greedy;
    return;
  }

  const Weigher weigh(logit_of(order_of(best)), how.temperature);
  Key bar = 0;
  if (cuts) {
    int candidates = 0;
    exclusive_scan(finite, shared.scan_int, candidates);
    bar = last_kept(shared, how, row, size, candidates, weigh);
    if (bar == 0) {
      if (thread == 0) id = kTooManyCandidates;
      return;
    }
  }
  const std::int32_t drawn = draw(shared, how, row, size, bar, weigh);
  if (thread == 0) id = drawn;
}

}  // namespace

std::size_t sample_workspace(int tokens, std::int64_t vocab) {
  return static_cast<std::size_t>(tokens * padded(vocab)) * sizeof(float);
}

cudaError_t sample(const Product& logits, const std::uint8_t* allowed, const RowSampling* rows,
                   const TouchedId* touched_ids, int tokens, std::int64_t vocab, std::int32_t* ids, void* workspace,
                   cudaStream_t stream) {
  if (vocab <= 0 || vocab > logits.rows || vocab > (1 << 30)) return cudaErrorInvalidValue;
  if (tokens == 0) return cudaSuccess;
  auto* finished = static_cast<float*>(workspace);
  constexpr int kIds = 8 * kFinishThreads;
  const dim3 grid(static_cast<unsigned>((padded(vocab) + kIds - 1) / kIds), static_cast<unsigned>(tokens));
  const cudaError_t error = launch(finish_and_mask, grid, kFinishThreads, 0, stream, logits, allowed, vocab, finished);
  if (error != cudaSuccess) return error;
  return launch(sample_rows, static_cast<unsigned>(tokens), kThreads, 0, stream, finished, rows, touched_ids,
                static_cast<int>(vocab), ids);
}

}  // namespace glyd::cuda
