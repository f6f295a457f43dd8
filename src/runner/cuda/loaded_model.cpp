#include "runner/cuda/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/timing.h"
#include "model/rope.h"
#include "runner/cuda/check.h"
#include "runner/cuda/device.h"
#include "runner/cuda/weight_source.h"

namespace glyd::runner {
namespace {

// The format that the weights will have. Throws Error(Usage) where the options exclude each other.
WeightFormat format_of(const Origin& origin, const Options& options) {
  if (options.gemm != Gemm::Cublas) return options.weights;
  if (origin.checkpoint != nullptr && origin.checkpoint->manifest() != nullptr &&
      options.weights == WeightFormat::AsStored)
    fail(Code::Usage,
         "--gemm cublas: the model is packed, and cuBLAS multiplies plain weights only; add --weights bf16");
  return WeightFormat::Bf16;
}

bool is_plain_checkpoint(const Origin& origin) {
  return origin.checkpoint != nullptr && origin.checkpoint->manifest() == nullptr;
}

WeightSizes sizes_of(const Origin& origin, const model::Shard& shard, const WeightSource& source, WeightFormat format) {
  return weight_sizes(model::shard_spec(origin.spec, shard), shard, source, format, is_plain_checkpoint(origin));
}

ExchangeShape exchange_shape(const model::Config& config, const WorkspaceShape& shape, const model::Shard& shard) {
  return {config.hidden_size, shape.columns, shape.tokens, head_columns(shape), config.vocab_size, shard.vocab};
}

DevicePlan plan_of(const Origin& origin, const model::Shard& shard, const WeightSizes& sizes, const Options& options,
                   const Place& place) {
  DeviceFacts facts;
  facts.multiprocessors = place.multiprocessors;
  facts.free = free_memory(place.index);
  facts.all = total_memory(place.index);
  if (shard.last_stage()) facts.head_rows = static_cast<std::int64_t>(shard.vocab.size());
  facts.logits = shard.last_stage() && shard.rank == 0;
  if (place.group != nullptr) {
    facts.ranks = place.group->tensor_parallel();
    facts.sharing = place.group->ranks_on(place.index);
    facts.exchange = [&](const WorkspaceShape& shape) {
      return RankExchange::bytes(exchange_shape(origin.config, shape, shard), *place.group,
                                 place.communicator->global_rank());
    };
  }
  return plan_device(model::shard_config(origin.config, shard), sizes, options, facts);
}

// All ranks have planned, with the memory that was there, before the first one takes any; the one with the fewest KV
// blocks decides.
void agree_on_blocks(DevicePlan& plan, Communicator& communicator) {
  const std::uint64_t block_bytes = plan.total.kv_cache / static_cast<std::uint64_t>(plan.total.kv_blocks);
  plan.total.kv_blocks = communicator.all_min(plan.total.kv_blocks);
  plan.total.kv_cache = block_bytes * static_cast<std::uint64_t>(plan.total.kv_blocks);
  plan.shape.cached = plan.total.kv_blocks * kBlockSize;
}

void load_matrices(LoadedModel& m, const Origin& origin, const Place& place, WeightSource& source,
                   const WeightSizes& sizes, WeightFormat format, Progress& progress, std::vector<LoadStage>& stages) {
  const auto start = Clock::now();
  const model::ModelSpec spec = model::shard_spec(origin.spec, m.shard);
  int shared_bytes = 0;
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, place.index), "the GPU");
  const LoadSettings settings{format, place.multiprocessors, place.kernels,
                              cuda::largest_block_bytes(place.kernels, shared_bytes), m.stream.get()};
  const bool random = origin.checkpoint == nullptr;
  const bool packs = format == WeightFormat::Packed && (random || is_plain_checkpoint(origin));
  double pack_seconds = 0;
  progress.begin(random ? "making random weights" : packs ? "packing" : "loading", file_bytes(spec, m.shard));
  m.weights = load_weights(spec, m.shard, source, settings, sizes, m.arena, progress, pack_seconds);
  progress.end();
  if (random) {
    stages.push_back({"making", seconds_since(start) - pack_seconds});
  } else {
    stages.push_back({"files", source.read_seconds});
    stages.push_back({"copies", source.wait_seconds});
  }
  if (sizes.any_packed) stages.push_back({packs ? "packing" : "checking", pack_seconds});
}

// What never changes: frequencies and the ids that may be chosen.
void fill_tables(const LoadedModel& m, const std::vector<bool>& allowed_ids) {
  const std::vector<double> frequencies = model::inverse_frequencies(m.config.rope);
  check(cudaMemcpyAsync(m.work.frequencies, frequencies.data(), frequencies.size() * sizeof(double),
                        cudaMemcpyHostToDevice, m.stream.get()),
        "loading");
  std::vector<std::uint8_t> allowed(static_cast<std::size_t>(m.config.vocab_size), 1);
  for (std::size_t i = 0; i < allowed_ids.size() && i < allowed.size(); ++i) allowed[i] = allowed_ids[i];
  check(cudaMemcpyAsync(m.work.allowed, allowed.data(), allowed.size(), cudaMemcpyHostToDevice, m.stream.get()),
        "loading");
  check(cudaStreamSynchronize(m.stream.get()), "loading");  // before the host vectors go
}

}  // namespace

model::Shard Place::shard_of(const model::Config& config) const {
  if (communicator == nullptr) return model::make_shard(config, 0, 1);
  return model::make_shard(config, communicator->global_rank(), communicator->size(), communicator->stages());
}

Origin origin_of(const model::Checkpoint& checkpoint) {
  return {checkpoint.config(), checkpoint.spec(), &checkpoint, 0};
}

Origin random_origin(const model::Config& config, std::uint64_t seed) {
  return {config, model::model_spec(config), nullptr, seed};
}

void LoadedModel::synchronize() {
  if (exchange) {
    exchange->synchronize();
  } else {
    check(cudaStreamSynchronize(stream.get()), "a step");
  }
}

DevicePlan plan_model(const Origin& origin, const Options& options, const Place& place) {
  const model::Shard shard = place.shard_of(origin.config);
  const auto source = origin.checkpoint != nullptr ? sizes_of(*origin.checkpoint) : random_source(0, nullptr);
  return plan_of(origin, shard, sizes_of(origin, shard, *source, format_of(origin, options)), options, place);
}

std::unique_ptr<LoadedModel> load_model(const Origin& origin, const Options& options, const Place& place,
                                        Progress& progress, std::vector<LoadStage>& stages) {
  const std::uint64_t free_before = free_memory(place.index);
  auto model = std::make_unique<LoadedModel>();
  LoadedModel& m = *model;
  m.shard = place.shard_of(origin.config);
  m.config = model::shard_config(origin.config, m.shard);
  ThreadPool pool(options.threads == 0 ? available_threads() : options.threads);
  const auto source = origin.checkpoint != nullptr ? checkpoint_source(*origin.checkpoint, pool, m.stream.get())
                                                   : random_source(origin.seed, m.stream.get());
  const WeightFormat format = format_of(origin, options);
  const WeightSizes sizes = sizes_of(origin, m.shard, *source, format);
  DevicePlan plan = plan_of(origin, m.shard, sizes, options, place);
  if (place.communicator != nullptr) agree_on_blocks(plan, *place.communicator);
  m.shape = plan.shape;
  m.kv_blocks = plan.total.kv_blocks;
  // A little more than planned: weights that were only estimated, and alignment.
  m.arena = Arena(plan.total.total() + plan.total.weights / 32 + (64 << 20));
  load_matrices(m, origin, place, *source, sizes, format, progress, stages);
  m.work = make_workspace(m.config, m.shape, m.arena);
  const std::uint64_t cache = plan.total.kv_cache / 2 / sizeof(std::uint16_t);
  m.keys = m.arena.take<std::uint16_t>(cache, "the KV cache");
  m.values = m.arena.take<std::uint16_t>(cache, "the KV cache");
  if (place.group != nullptr) {
    m.exchange.emplace(exchange_shape(origin.config, m.shape, m.shard), *place.group, *place.communicator,
                       m.stream.get());
  }
  fill_tables(m, options.allowed);
  m.input.emplace(m.shape);
  if (m.shape.logits && can_sample(m.config)) m.sampling.emplace(requests_bytes(m.shape));
  m.output = PinnedMemory(2 * static_cast<std::uint64_t>(m.shape.sequences) * sizeof(std::int32_t));
  m.forward.emplace(m.config, m.weights, m.shape, m.work, m.keys, m.values, m.kv_blocks,
                    Forward::Settings{place.kernels, place.multiprocessors, options.gemm, options.batch_invariant},
                    m.exchange ? &*m.exchange : nullptr, m.stream.get());
  check(cudaStreamSynchronize(m.stream.get()), "loading");
  const std::uint64_t free_behind = free_memory(place.index);
  m.taken = free_before - std::min(free_before, free_behind);
  return model;
}

}  // namespace glyd::runner
