#include "runner/cuda/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/sizes.h"

namespace glyd::runner {
namespace {

constexpr double kUsualShare = 0.92;
constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max() - kBlockSize;  // slots are int32

std::string gigabytes(std::uint64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9); }

std::uint64_t block_bytes(const model::Config& c) {
  return unsigned_of(c.layers) * 2 * kBlockSize * unsigned_of(c.kv_heads) * unsigned_of(c.head_dim) *
         sizeof(std::uint16_t);
}

void check_model(const model::Config& c, int ranks) {
  const auto require = [&](bool ok, const char* name, std::int64_t value, const char* expected) {
    if (!ok)
      fail(Code::Model, "config.json: {} is {}: a GPU runs models where it is {}; use --device cpu", name, value,
           expected);
  };
  require(c.hidden_size % 8 == 0 && c.hidden_size <= 32768, "hidden_size", c.hidden_size,
          "a multiple of 8, at most 32768");
  if (ranks > 1 && c.intermediate_size % 8 != 0)
    fail(Code::Usage,
         "-tp {}: a rank's part of intermediate_size would be {}: a GPU runs models where it is a multiple of 8; use "
         "fewer ranks or --device cpu",
         ranks, c.intermediate_size);
  require(c.intermediate_size % 8 == 0, "intermediate_size", c.intermediate_size, "a multiple of 8");
  require(c.head_dim % 8 == 0 && c.head_dim <= 256, "head_dim", c.head_dim, "a multiple of 8, at most 256");
}

}  // namespace

DevicePlan plan_device(const model::Config& c, const WeightSizes& weights, const Options& options,
                       const DeviceFacts& device) {
  check_model(c, device.ranks);
  const auto sharing = static_cast<std::uint64_t>(device.sharing);
  const std::uint64_t free = device.free / sharing, all = device.all / sharing;
  DevicePlan plan;
  plan.context = options.context == 0 ? c.max_positions : options.context;
  if (plan.context < 1 || plan.context > kMaxTokens)
    fail(Code::Usage, "context {}: expected 1 to {}", plan.context, kMaxTokens);
  if (options.max_batch_tokens < 1 || options.max_batch_tokens > 1 << 16)
    fail(Code::Usage, "max_batch_tokens {}: expected 1 to 65536", options.max_batch_tokens);
  if (options.max_sequences < 1 || options.max_sequences > 1 << 12)
    fail(Code::Usage, "max_sequences {}: expected 1 to 4096", options.max_sequences);

  MemoryPlan& total = plan.total;
  const double share = options.memory_share > 0 ? options.memory_share : kUsualShare;
  const std::uint64_t limit = options.memory_limit > 0 ? options.memory_limit / sharing
                                                       : static_cast<std::uint64_t>(share * static_cast<double>(all));
  // The context may be there already (then it is not free any more) or not.
  total.available = std::min(limit, free + std::min(kContextBytes, all - free));
  total.weights = weights.weights;
  plan.shape = workspace_shape(c, options, plan.context, device.multiprocessors, weights.any_packed, device.head_rows,
                               device.ranks > 1);
  plan.shape.logits = device.logits;
  const auto workspace = [&](std::int64_t blocks) {
    plan.shape.cached = blocks * kBlockSize;
    return workspace_bytes(c, plan.shape) + kContextBytes + kGraphBytes +
           (device.exchange ? device.exchange(plan.shape) : 0);
  };
  const std::int64_t one_sequence = blocks_for(plan.context);
  const std::int64_t wanted =
      options.kv_blocks > 0
          ? options.kv_blocks
          : static_cast<std::int64_t>(std::min<std::uint64_t>(
                unsigned_of(options.max_sequences) * unsigned_of(one_sequence), unsigned_of(kMaxTokens / kBlockSize)));
  const std::int64_t needed = options.kv_blocks > 0 ? options.kv_blocks : one_sequence;
  // What the user can do about a limit that is the GPU's own, or another program's, is not to raise the option.
  const bool limited = total.available == limit;
  const bool can_pack = !weights.any_packed && options.gemm != Gemm::Cublas;
  const std::string more =
      fmt::format("{}{}", limited ? "raise --gpu-memory" : "close other programs on the GPU, or take a larger one",
                  can_pack ? ", or use --weights packed, which takes a third less" : "");
  // Loading needs memory that steps do not, and that they take over.
  const std::uint64_t loading = total.weights + weights.load_scratch + kContextBytes;
  const auto fits = [&](std::int64_t blocks) {
    return total.weights + workspace(blocks) + unsigned_of(blocks) * block_bytes(c) <= total.available;
  };
  const auto most = [&](std::int64_t low, std::int64_t high) {  // fits(low), or low is 0
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      (fits(middle) ? low : high) = fits(middle) ? middle : middle - 1;
    }
    return low;
  };
  if (!fits(needed)) {
    const std::int64_t fitting = std::min(most(0, needed) * kBlockSize, plan.context);
    const std::uint64_t cache = unsigned_of(needed) * block_bytes(c);
    const std::uint64_t work = workspace(needed);
    const std::string numbers = fmt::format(
        "not enough GPU memory: weights {}, KV cache {} ({} tokens), workspace {}: {} in all, but {} are available",
        gigabytes(total.weights), gigabytes(cache), needed * kBlockSize, gigabytes(work),
        gigabytes(total.weights + cache + work), gigabytes(total.available));
    if (fitting == 0 || options.kv_blocks > 0) {
      fail(Code::Memory, "{}; {}{}", numbers, fitting == 0 ? "no context fits: " : "", more);
    }
    fail(Code::Memory, "{}; a context of {} tokens would fit (-c {})", numbers, fitting, fitting);
  }
  if (loading > total.available) {
    fail(Code::Memory,
         "not enough GPU memory to load: weights {}, {} to read and pack a matrix in, {} for CUDA: {} in all, but {} "
         "are available; {}",
         gigabytes(total.weights), gigabytes(weights.load_scratch), gigabytes(kContextBytes), gigabytes(loading),
         gigabytes(total.available), more);
  }
  total.most_kv_blocks = most(needed, kMaxTokens / kBlockSize);
  total.kv_blocks = std::min(wanted, total.most_kv_blocks);
  total.workspace = workspace(total.kv_blocks);
  total.kv_cache = unsigned_of(total.kv_blocks) * block_bytes(c);
  return plan;
}

}  // namespace glyd::runner
