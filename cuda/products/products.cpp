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

Partition partition_of_height(std::int64_t rows, std::int64_t cols, int multiprocessors, int height) {
  Partition p;
  p.rows = rows;
  p.cols = cols;
  const int groups = p.row_groups(), blocks = p.col_blocks();
  p.steps_down = (groups + height - 1) / height;
  p.height = (groups + p.steps_down - 1) / p.steps_down;
  p.ctas = std::min({multiprocessors, Partition::kMaxCtas, p.steps()});
  // Every thread block's first step is the one that begins nearest to its share of all blocks, and no other's.
  int step = 0, row = 0;
  for (int cta = 0; cta < p.ctas; ++cta) {
    const std::int64_t share = std::int64_t{groups} * blocks * cta / p.ctas;
    const auto begins_at = [&](int s) {
      return std::int64_t{p.first_group(s / blocks)} * blocks + std::int64_t{p.groups_of(s / blocks)} * (s % blocks);
    };
    while (step + 1 < p.steps() && begins_at(step) + p.groups_of(step / blocks) / 2 < share) ++step;
    if (cta > 0) step = std::max(step, p.first[cta - 1] + 1);
    step = std::min(step, p.steps() - (p.ctas - cta));  // the others need a step each
    p.first[cta] = step;
    row = step / blocks;
    int piece = 0;
    for (int before = cta - 1; step % blocks != 0 && before >= 0; --before) {
      ++piece;
      if (p.first[before] <= row * blocks) break;
    }
    p.split[cta] = static_cast<std::uint8_t>(piece);
  }
  p.first[p.ctas] = p.steps();
  return p;
}

// A thread block's time grows with its blocks of weights; with fewer warps a multiprocessor hides less of its
// latencies. The factors are those of measurements on an H200 (bench/results/products.md).
Partition make_partition(std::int64_t rows, std::int64_t cols, int multiprocessors) {
  constexpr int kMaxHeight = 5;
  constexpr double kFactor[kMaxHeight + 1] = {0, 1.8, 1.3, 1.12, 1.06, 1.0};
  Partition best;
  double least = 0;
  for (int height = 1; height <= kMaxHeight; ++height) {
    const Partition p = partition_of_height(rows, cols, multiprocessors, height);
    int longest = 0;  // blocks of the thread block that has most
    for (int cta = 0; cta < p.ctas; ++cta) {
      int blocks = 0;
      for (int step = p.first[cta]; step < p.first[cta + 1]; ++step) blocks += p.groups_of(step / p.col_blocks());
      longest = std::max(longest, blocks);
    }
    const double cost = longest * kFactor[height];
    if (least == 0 || cost < least) {
      least = cost;
      best = p;
    }
  }
  return best;
}

int max_splits(const Partition& partition) {
  const std::vector<std::uint8_t> counts = split_counts(partition);
  return *std::max_element(counts.begin(), counts.end());
}

std::vector<std::uint8_t> split_counts(const Partition& p) {
  std::vector<std::uint8_t> counts(static_cast<std::size_t>(p.row_groups()), 1);
  for (int cta = 0; cta < p.ctas; ++cta) {
    const int row = p.first[cta] / p.col_blocks();
    for (int group = p.first_group(row); group < p.first_group(row + 1); ++group)
      counts[static_cast<std::size_t>(group)] = static_cast<std::uint8_t>(p.split[cta] + 1);
  }
  return counts;
}

std::uint32_t largest_block_bytes(KernelSet set, int shared_bytes) {
  constexpr std::uint32_t kMost = 24 * 1024, kTable = kTableEntries * 32 * 4;
  const auto shared = static_cast<std::uint32_t>(std::max(shared_bytes, 0));
  if (set == KernelSet::Hopper) return kMost;
  return shared <= kTable ? 0
                          : std::min(kMost, (shared - kTable) / 2 / 128 * 128 - 16);  // two buffers beside the table
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
