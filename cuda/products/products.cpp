#include "cuda/products/products.h"

#include <algorithm>

namespace glyd::cuda {

// The two kernel sets (multiply_packed.cu, multiply_plain.cu, multiply_generic.cu).
cudaError_t multiply_packed_hopper(const ResidentMatrix&, const Partition&, const Activations&, int, float*,
                                   cudaStream_t);
cudaError_t multiply_plain_hopper(const PlainMatrix&, const Partition&, const Activations&, int, float*, cudaStream_t);
cudaError_t multiply_packed_generic(const ResidentMatrix&, const Partition&, const Activations&, int, float*,
                                    cudaStream_t);
cudaError_t multiply_plain_generic(const PlainMatrix&, const Partition&, const Activations&, int, float*, cudaStream_t);

// Time of a step grows with its height; with fewer warps a multiprocessor hides less of its latencies. The factors are
// those of measurements on an H200 (bench/results/products.md).
Partition make_partition(std::int64_t rows, std::int64_t cols, int multiprocessors, std::uint32_t max_block_bytes) {
  constexpr int kMaxHeight = 7;
  constexpr double kFactor[kMaxHeight + 1] = {0, 1.8, 1.3, 1.12, 1.05, 1.02, 1.01, 1.0};
  constexpr std::uint32_t kRing = 2 * 70 * 1024;  // two stages of blocks beside the table and 32 columns' activations
  Partition best;
  double least = 0;
  for (int height = 1; height <= kMaxHeight; ++height) {
    if (height > 1 && 2 * height * max_block_bytes > kRing) break;
    Partition p{rows, cols, height, multiprocessors};
    p.ctas = static_cast<int>(std::min<std::int64_t>(multiprocessors, p.steps()));
    const auto longest = static_cast<double>((p.steps() + p.ctas - 1) / p.ctas);
    const double cost = longest * height * kFactor[height];
    if (least == 0 || cost < least) {
      least = cost;
      best = p;
    }
  }
  return best;
}

int max_splits(const Partition& partition) {
  int most = 0;
  for (std::int64_t row = 0; row < partition.steps_down(); ++row) most = std::max(most, partition.splits(row));
  return most;
}

std::vector<std::uint8_t> split_counts(const Partition& partition) {
  std::vector<std::uint8_t> counts;
  for (std::int64_t row = 0; row < partition.steps_down(); ++row)
    counts.push_back(static_cast<std::uint8_t>(partition.splits(row)));
  return counts;
}

Layout activation_layout(KernelSet set, int tokens) {
  return set == KernelSet::Hopper && tokens > 16 ? Layout::Wgmma : Layout::Mma;
}

int activation_columns(int tokens) {
  int columns = 8;
  while (columns < tokens) columns *= 2;
  return columns;
}

cudaError_t multiply(KernelSet set, const ResidentMatrix& weights, const Partition& partition, const Activations& x,
                     int tokens, float* partials, cudaStream_t stream) {
  return set == KernelSet::Hopper ? multiply_packed_hopper(weights, partition, x, tokens, partials, stream)
                                  : multiply_packed_generic(weights, partition, x, tokens, partials, stream);
}

cudaError_t multiply(KernelSet set, const PlainMatrix& weights, const Partition& partition, const Activations& x,
                     int tokens, float* partials, cudaStream_t stream) {
  return set == KernelSet::Hopper ? multiply_plain_hopper(weights, partition, x, tokens, partials, stream)
                                  : multiply_plain_generic(weights, partition, x, tokens, partials, stream);
}

}  // namespace glyd::cuda
