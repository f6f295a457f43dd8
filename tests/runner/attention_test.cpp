// Attention over the paged cache against a two-pass softmax in double.
#include "runner/cpu/attention.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "runner/numbers.h"

namespace glyd::runner::cpu {
namespace {

using test::Numbers;

// Sequences of random keys and values in a cache whose blocks are handed out in a scattered order.
class Scene {
 public:
  Scene(int heads, int kv_heads, int head_dim, bool bf16, std::vector<int> lengths, const Kernels& kernels,
        float key_bias)
      : pool_(2), context_(pool_, kernels, bf16, 16), q_(0, 0), out_(0, 0) {
    config_.heads = heads;
    config_.kv_heads = kv_heads;
    config_.head_dim = head_dim;
    config_.layers = 2;
    const auto d = static_cast<std::size_t>(head_dim);
    Numbers numbers(static_cast<unsigned>(heads * 1000 + head_dim));
    std::int32_t blocks = 0;
    for (const int n : lengths) batch_.max_blocks = std::max(batch_.max_blocks, (n + kBlockSize - 1) / kBlockSize);
    for (const int n : lengths) blocks += (n + kBlockSize - 1) / kBlockSize;
    cache_ = KvCache(config_, bf16 ? Activations::Bf16 : Activations::Fp32, blocks * 2);
    std::vector<std::int32_t> order(static_cast<std::size_t>(blocks) * 2);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));

    // One query token a sequence, at its last position; the whole context is in the cache.
    batch_.query_start = {0};
    std::size_t next = 0;
    for (const int n : lengths) {
      batch_.token_ids.push_back(0);
      batch_.positions.push_back(n - 1);
      batch_.context_lengths.push_back(n);
      batch_.query_start.push_back(batch_.tokens());
      sequence_of_.push_back(batch_.sequences() - 1);
      std::vector<std::int32_t> table(static_cast<std::size_t>(batch_.max_blocks), -1);
      for (int b = 0; b * kBlockSize < n; ++b) table[static_cast<std::size_t>(b)] = order[next++];
      for (int p = 0; p < n; ++p) {
        const std::int64_t slot =
            std::int64_t{table[static_cast<std::size_t>(p / kBlockSize)]} * kBlockSize + p % kBlockSize;
        for (int h = 0; h < kv_heads; ++h) {
          std::vector<float> k = numbers.floats(d), v = numbers.floats(d);
          for (float& x : k) x = context_.rounded(x * 3 + key_bias);
          for (float& x : v) x = context_.rounded(x);
          cache_.store_key(1, slot, h, k.data());
          cache_.store_value(1, slot, h, v.data());
          keys_.push_back(k);
          values_.push_back(v);
        }
      }
      batch_.block_tables.insert(batch_.block_tables.end(), table.begin(), table.end());
    }
    q_ = FloatBuffer(lengths.size(), static_cast<std::size_t>(heads) * padded(d));
    out_ = FloatBuffer(lengths.size(), static_cast<std::size_t>(heads) * d);
    for (std::size_t t = 0; t < lengths.size(); ++t)
      for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h)
        for (std::size_t i = 0; i < d; ++i) q_.rows().row(t)[h * padded(d) + i] = context_.rounded(numbers.next());
    attention(context_, config_, batch_, sequence_of_, 1, cache_, q_.rows(), out_.rows());
  }

  // The largest difference from the definition, over all outputs.
  double error() {
    const auto d = static_cast<std::size_t>(config_.head_dim);
    double worst = 0;
    std::size_t first = 0;  // of the sequence's keys
    for (std::size_t t = 0; t < batch_.positions.size(); ++t) {
      const auto n = static_cast<std::size_t>(batch_.context_lengths[t]);
      for (std::size_t h = 0; h < static_cast<std::size_t>(config_.heads); ++h) {
        const std::size_t kv = h / static_cast<std::size_t>(config_.heads / config_.kv_heads);
        std::vector<double> s(n);
        for (std::size_t j = 0; j < n; ++j) {
          const auto& k = keys_[first + j * static_cast<std::size_t>(config_.kv_heads) + kv];
          for (std::size_t i = 0; i < d; ++i)
            s[j] += static_cast<double>(q_.rows().row(t)[h * padded(d) + i]) * static_cast<double>(k[i]);
          s[j] /= std::sqrt(static_cast<double>(d));
        }
        const double highest = *std::max_element(s.begin(), s.end());
        double total = 0;
        for (double& x : s) total += x = std::exp(x - highest);
        for (std::size_t i = 0; i < d; ++i) {
          double o = 0;
          for (std::size_t j = 0; j < n; ++j)
            o += s[j] / total *
                 static_cast<double>(values_[first + j * static_cast<std::size_t>(config_.kv_heads) + kv][i]);
          worst = std::max(worst, std::abs(o - static_cast<double>(out_.rows().row(t)[h * d + i])));
        }
      }
      first += n * static_cast<std::size_t>(config_.kv_heads);
    }
    return worst;
  }

 private:
  ThreadPool pool_;
  Context context_;
  model::Config config_;
  Batch batch_;
  std::vector<std::int32_t> sequence_of_;
  KvCache cache_;
  FloatBuffer q_, out_;
  std::vector<std::vector<float>> keys_, values_;  // [token][kv head], sequences one after another
};

TEST_CASE("attention agrees with its definition for every head size and group", "[runner]") {
  for (const Kernels& kernels : supported_kernels()) {
    for (const int head_dim : {2, 4, 10, 64, 80, 128, 256, 1024}) {
      INFO(kernels.name << " head_dim " << head_dim);
      CHECK(Scene(4, 2, head_dim, false, {1, 15, 16, 17, 100}, kernels, 0).error() < 2e-6);
    }
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 40}) {
      INFO(kernels.name << " group " << group);
      CHECK(Scene(2 * group, 2, 64, false, {1, 33}, kernels, 0).error() < 2e-6);
    }
  }
}

TEST_CASE("attention reads a bf16 cache and rounds once", "[runner]") {
  // Values are below 1, so that a result's rounding is at most 2^-9.
  for (const Kernels& kernels : supported_kernels()) {
    const double error = Scene(6, 2, 64, true, {5, 64, 130}, kernels, 0).error();
    INFO(kernels.name);
    CHECK(error < 0x1p-9 + 1e-5);
    CHECK(error > 1e-5);
  }
}

TEST_CASE("attention keeps scores in fp32 and subtracts the largest", "[runner]") {
  // Keys with a large common part, as Qwen2's: scores of some hundred, of which a softmax without the largest
  // subtracted overflows, and whose differences a bf16 score would lose.
  CHECK(Scene(2, 1, 128, false, {50}, best_kernels(), 100).error() < 2e-3);
  CHECK(Scene(2, 1, 128, false, {50}, best_kernels(), -100).error() < 2e-3);
}

}  // namespace
}  // namespace glyd::runner::cpu
