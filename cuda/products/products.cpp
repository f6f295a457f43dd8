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

namespace {

// A multiprocessor's time for a block of weights, in percent of that with 5 row groups side by side: with fewer warps
// it hides less of its latencies. Measured on an H200 (bench/results/products.md).
constexpr int kMaxHeight = 5;
constexpr int kTime[kMaxHeight + 1] = {0, 180, 130, 112, 106, 100};
std::int64_t block_time(int groups) { return kTime[std::min(groups, kMaxHeight)]; }

// Cuts between row groups so that all runs take the same time to within a block. Every run has to have a block of each
// place at least, so that no piece but the first of a step row is missing for some of the row groups; false: some has
// not, and the matrix has to be cut between steps.
bool cut_inside_steps(Partition& p, int multiprocessors) {
  p.ctas = std::min(multiprocessors, Partition::kMaxCtas);
  const int blocks = p.col_blocks(), high = p.steps_down - p.low_rows();
  const std::int64_t high_step = p.height * block_time(p.height);
  const std::int64_t low_step = (p.height - 1) * block_time(p.height - 1);
  const std::int64_t high_time = high_step * high * blocks;
  const std::int64_t time = high_time + low_step * p.low_rows() * blocks;
  std::int64_t before = 0;  // blocks up to the cut
  for (int cta = 1; cta < p.ctas; ++cta) {
    const std::int64_t share = time * cta / p.ctas, low_share = share - high_time;
    const bool in_low = low_share >= 0;
    const int groups = p.height - (in_low ? 1 : 0);
    const std::int64_t step = in_low ? high * blocks + low_share / low_step : share / high_step;
    const std::int64_t rest = in_low ? low_share % low_step : share % high_step;
    const std::int64_t at = (rest + block_time(groups) / 2) / block_time(groups);  // the nearest cut, up to `groups`
    p.first[cta] = static_cast<std::int32_t>(step + at / groups);
    p.place[cta] = static_cast<std::uint8_t>(at % groups);
    const std::int64_t here =
        (in_low ? std::int64_t{high} * blocks * p.height + (step - high * blocks) * groups : step * groups) + at;
    if (here - before < p.height) return false;
    before = here;
  }
  return std::int64_t{p.row_groups()} * blocks - before >= p.height;
}

// Every thread block's first step is the one that begins nearest to its share of all blocks, and no other's.
void cut_between_steps(Partition& p, int multiprocessors) {
  p.ctas = std::min({multiprocessors, Partition::kMaxCtas, p.steps()});
  const int groups = p.row_groups(), blocks = p.col_blocks();
  int step = 0;
  for (int cta = 0; cta < p.ctas; ++cta) {
    const std::int64_t share = std::int64_t{groups} * blocks * cta / p.ctas;
    const auto begins_at = [&](int s) {
      return std::int64_t{p.first_number(s / blocks)} * blocks + std::int64_t{p.groups_of(s / blocks)} * (s % blocks);
    };
    while (step + 1 < p.steps() && begins_at(step) + p.groups_of(step / blocks) / 2 < share) ++step;
    if (cta > 0) step = std::max(step, p.first[cta - 1] + 1);
    step = std::min(step, p.steps() - (p.ctas - cta));  // the others need a step each
    p.first[cta] = step;
    p.place[cta] = 0;
  }
}

// What the longest run takes.
std::int64_t longest_time(const Partition& p) {
  std::int64_t longest = 0;
  for (int cta = 0; cta < p.ctas; ++cta) {
    std::int64_t time = 0;
    for (int at = 0; at < p.height; ++at) {
      for (int step = p.begin_at(cta, at); step < p.end_at(cta, at); ++step)
        time += block_time(p.groups_of(step / p.col_blocks()));
    }
    longest = std::max(longest, time);
  }
  return longest;
}

}  // namespace

Partition partition_of_height(std::int64_t rows, std::int64_t cols, int multiprocessors, int height) {
  Partition p;
  p.rows = rows;
  p.cols = cols;
  const int blocks = p.col_blocks();
  p.steps_down = (p.row_groups() + height - 1) / height;
  p.height = (p.row_groups() + p.steps_down - 1) / p.steps_down;
  if (!cut_inside_steps(p, multiprocessors)) cut_between_steps(p, multiprocessors);
  p.first[p.ctas] = p.steps();
  p.place[p.ctas] = 0;
  for (int cta = 0; cta < p.ctas; ++cta) {
    // Pieces of the step row in which the run begins: a run before it each, down to the one that reached the row.
    p.row[cta] = p.first[cta] / blocks;
    const int row_begin = p.row[cta] * blocks;
    int piece = 0, less = p.height;
    for (int before = cta; before > 0; --before) {
      if (p.first[before] == row_begin && p.place[before] == 0) break;  // nothing of the row lies before this cut
      if (p.first[before] < row_begin) break;
      ++piece;
      if (p.first[before] == row_begin) less = p.place[before];
    }
    p.split[cta] = static_cast<std::uint8_t>(piece);
    p.less[cta] = static_cast<std::uint8_t>(less);
  }
  return p;
}

Partition make_partition(std::int64_t rows, std::int64_t cols, int multiprocessors) {
  Partition best;
  std::int64_t least = 0;
  for (int height = 1; height <= kMaxHeight; ++height) {
    const Partition p = partition_of_height(rows, cols, multiprocessors, height);
    const std::int64_t time = longest_time(p);
    if (least == 0 || time < least) {
      least = time;
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
    const int row = p.row[cta];
    for (int at = 0; at < p.groups_of(row); ++at) {
      // Where the cut lies in the row's last step, the first row groups have no part in this run.
      if (p.begin_at(cta, at) / p.col_blocks() == row)
        counts[static_cast<std::size_t>(p.row_group(row, at))] = static_cast<std::uint8_t>(p.piece(cta, row, at) + 1);
    }
  }
  return counts;
}

std::uint32_t largest_block_bytes(KernelSet set, int shared_bytes) {
  constexpr std::uint32_t kMost = kLargestBlockBytes, kTable = kTableEntries * 32 * 4;
  const auto shared = static_cast<std::uint32_t>(std::max(shared_bytes, 0));
  if (set == KernelSet::Hopper) return kMost;
  return shared <= kTable ? 0
                          : std::min(kMost, (shared - kTable) / 2 / 128 * 128 - 16);  // two buffers beside the table
}

Layout activation_layout(KernelSet set, int tokens) {
  return set == KernelSet::Hopper && tokens > 16 ? Layout::Wgmma : Layout::Mma;
}

int activation_columns(int tokens) {
  for (const int columns : {8, 16, 32, 48, 64, 96, 112}) {
    if (tokens <= columns) return columns;
  }
  return kMaxColumns;
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
