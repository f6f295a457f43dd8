#include "runner/cuda/cuda_runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "runner/cuda/check.h"
#include "runner/cuda/decode_graphs.h"
#include "runner/cuda/device.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/forward.h"
#include "runner/cuda/memory_plan.h"
#include "runner/cuda/profile.h"
#include "runner/cuda/rank_exchange.h"
#include "runner/cuda/rank_group.h"
#include "runner/cuda/step_input.h"
#include "runner/cuda/weight_source.h"
#include "runner/cuda/weights.h"
#include "runner/validate_batch.h"

namespace glyd::runner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class CudaRunner : public Runner {
 public:
  // `group`, `communicator` null: the only rank.
  CudaRunner(const Options& options, std::shared_ptr<RankGroup> group, Communicator* communicator)
      : options_(options),
        group_(std::move(group)),
        communicator_(communicator),
        index_(group_ ? group_->device(communicator->global_rank()) : device_index(options.device)),
        kernels_(choose_kernels(index_)) {
    if (options.gemm == Gemm::Cublas && options.weights == WeightFormat::Packed)
      fail(Code::Usage, "--gemm cublas: cuBLAS multiplies plain weights only; use it with --weights bf16");
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index_), "the GPU");
  }

  MemoryPlan plan(const model::Checkpoint& checkpoint) const override {
    const auto from = sizes_of(checkpoint);
    return plan_of(checkpoint.config(), sizes(checkpoint.config(), checkpoint.spec(), *from, &checkpoint)).total;
  }
  MemoryPlan plan_random(const model::Config& config) const override {
    const auto from = random_source(0, nullptr);
    return plan_of(config, sizes(config, model::model_spec(config), *from, nullptr)).total;
  }

  void load(const model::Checkpoint& checkpoint, Progress& progress) override {
    ThreadPool pool(options_.threads == 0 ? available_threads() : options_.threads);
    const bool packs = format(&checkpoint) == WeightFormat::Packed && checkpoint.manifest() == nullptr;
    load_with(checkpoint.config(), checkpoint.spec(), &checkpoint, packs ? "packing" : "loading", progress,
              [&](cudaStream_t stream) { return checkpoint_source(checkpoint, pool, stream); });
  }
  void load_random(const model::Config& config, std::uint64_t seed, Progress& progress) override {
    load_with(config, model::model_spec(config), nullptr, "making random weights", progress,
              [&](cudaStream_t stream) { return random_source(seed, stream); });
  }

  StepResult step(const Batch& batch) override;
  bool samples() const override { return model_ && can_sample(model_->config); }

  std::uint64_t bytes_per_step() const override {
    std::uint64_t bytes = model().weights.has_head() ? model().weights.head().bytes : 0;
    for (const DeviceLayer& l : model().weights.layers)
      bytes += l.qkv.bytes + l.o.bytes + l.gate_up.bytes + l.down.bytes;
    return bytes;
  }
  std::uint64_t weight_bytes() const override { return model_ ? model_->weights.bytes : 0; }
  std::int64_t kv_blocks() const override { return model_ ? model_->kv_blocks : 0; }
  std::string device_name() const override { return fmt::format("cuda:{} {}", index_, describe_device(index_)); }
  std::vector<LoadStage> load_stages() const override {
    std::vector<LoadStage> stages = stages_;
    if (capture_seconds_ > 0) stages.push_back({"graphs", capture_seconds_});
    return stages;
  }
  std::uint64_t memory_used() const override {
    if (!model_) return 0;
    const std::uint64_t free = free_memory(index_);
    return kContextBytes + (free < model_->free_before ? model_->free_before - free : 0);
  }
  std::int64_t preferred_chunk() const override { return 2048; }
  double read_bandwidth() override;
  std::vector<std::pair<std::string, std::string>> device_facts() const override {
    auto facts = facts_of_device(index_);
    facts.emplace_back("kernels", kernels_ == cuda::KernelSet::Hopper ? "sm_90a" : "generic");
    if (group_) facts.emplace_back("sums by", group_->describe());
    return facts;
  }
  void set_trace(Trace trace) override { trace_ = std::move(trace); }
  std::vector<std::pair<std::string, double>> step_profile() override;

 private:
  // All that a loaded model has.
  struct Model {
    model::Config config;           // as this rank computes it
    std::uint64_t free_before = 0;  // of the device, before anything was allocated
    model::Shard shard;
    Stream stream;
    Arena arena;
    std::optional<RankExchange> exchange;  // with other ranks, where there are some
    DeviceWeights weights;
    WorkspaceShape shape;
    Workspace work{};
    std::uint16_t *keys = nullptr, *values = nullptr;
    std::int64_t kv_blocks = 0;
    std::optional<Forward> forward;
    std::optional<StepInput> input;
    std::optional<SamplingInput> sampling;
    PinnedMemory output;  // ids chosen, then ids drawn
    std::map<int, DecodeGraphs> graphs;
  };

  WeightFormat format(const model::Checkpoint* checkpoint) const {
    if (options_.gemm == Gemm::Cublas) {
      if (checkpoint != nullptr && checkpoint->manifest() != nullptr && options_.weights == WeightFormat::AsStored)
        fail(Code::Usage,
             "--gemm cublas: the model is packed, and cuBLAS multiplies plain weights only; add --weights bf16");
      return WeightFormat::Bf16;
    }
    return options_.weights;
  }
  model::Shard shard_of(const model::Config& config) const {
    if (communicator_ == nullptr) return model::make_shard(config, 0, 1);
    return model::make_shard(config, communicator_->global_rank(), communicator_->size(), communicator_->stages());
  }
  WeightSizes sizes(const model::Config& config, const model::ModelSpec& spec, const WeightSource& from,
                    const model::Checkpoint* checkpoint) const {
    const model::Shard shard = shard_of(config);
    const bool estimated = checkpoint != nullptr && checkpoint->manifest() == nullptr;
    return weight_sizes(model::shard_spec(spec, shard), shard, from, format(checkpoint), estimated);
  }
  ExchangeShape exchange_shape(const model::Config& config, const WorkspaceShape& shape) const {
    return {config.hidden_size,  shape.columns,     shape.tokens,
            head_columns(shape), config.vocab_size, shard_of(config).vocab};
  }
  DevicePlan plan_of(const model::Config& config, const WeightSizes& sizes) const;
  template <class MakeSource>
  void load_with(const model::Config& config, const model::ModelSpec& spec, const model::Checkpoint* checkpoint,
                 const char* what, Progress& progress, const MakeSource& make_source);
  Model& model() const {
    if (!model_ || !model_->forward) fail(Code::Runtime, "the CUDA runner has no model: load one first");
    return *model_;
  }
  void load_weights(const model::ModelSpec& whole, WeightSource& source, const WeightSizes& sizes, WeightFormat format,
                    const char* what, Progress& progress);
  void fill_tables();
  bool captures() const {  // Ranks that share a GPU wait for each other on the host.
    return !options_.eager && !trace_ && (group_ == nullptr || group_->transport() != Transport::SharedGpu);
  }
  int pass_size(int tokens) const;
  StepResult run_passes(const Batch& batch);
  const Graph* run_decode(int tokens);
  void take_rows(const PassPlan& pass, int first, int count, const Graph* finish_logits, const Batch& batch,
                 std::vector<std::int32_t>& ids, std::vector<std::vector<float>>& logits);
  void take_results(const PassPlan& pass, const Graph* finish_logits, const Batch& batch,
                    std::vector<std::int32_t>& ids, std::vector<std::vector<float>>& logits);
  void sample_rows(const PassPlan& pass, int first, int count, const Batch& batch, std::int32_t* drawn);
  std::function<void(int)> tracer(int tokens);

  Options options_;
  std::shared_ptr<RankGroup> group_;
  Communicator* communicator_;
  int index_;
  cuda::KernelSet kernels_;
  int multiprocessors_ = 0;
  std::unique_ptr<Model> model_;
  std::vector<LoadStage> stages_;
  double capture_seconds_ = 0;
  double bandwidth_ = 0;
  int last_decode_ = 0;  // tokens of the last decode pass
  Trace trace_;
};

DevicePlan CudaRunner::plan_of(const model::Config& config, const WeightSizes& sizes) const {
  DeviceFacts facts;
  facts.multiprocessors = multiprocessors_;
  facts.free = free_memory(index_);
  facts.all = total_memory(index_);
  if (group_) {
    facts.ranks = group_->tensor_parallel();
    facts.sharing = group_->ranks_on(index_);
    facts.exchange = [&](const WorkspaceShape& shape) {
      return RankExchange::bytes(exchange_shape(config, shape), *group_, communicator_->global_rank());
    };
  }
  return plan_device(model::shard_config(config, shard_of(config)), sizes, options_, facts);
}

template <class MakeSource>
void CudaRunner::load_with(const model::Config& config, const model::ModelSpec& spec,
                           const model::Checkpoint* checkpoint, const char* what, Progress& progress,
                           const MakeSource& make_source) {
  check(cudaSetDevice(index_), "choosing the GPU");
  model_.reset();
  stages_.clear();
  capture_seconds_ = 0;
  last_decode_ = 0;
  model_ = std::make_unique<Model>();
  Model& m = *model_;
  try {
    m.free_before = free_memory(index_);
    const std::unique_ptr<WeightSource> source = make_source(m.stream.get());
    const WeightSizes weight_sizes = sizes(config, spec, *source, checkpoint);
    DevicePlan plan = plan_of(config, weight_sizes);
    const std::uint64_t block_bytes = plan.total.kv_cache / static_cast<std::uint64_t>(plan.total.kv_blocks);
    // All ranks have planned, with the memory that was there, before the first one takes any.
    if (communicator_ != nullptr) {
      plan.total.kv_blocks = communicator_->all_min(plan.total.kv_blocks);
      plan.total.kv_cache = block_bytes * static_cast<std::uint64_t>(plan.total.kv_blocks);
      plan.shape.cached = plan.total.kv_blocks * kBlockSize;
    }
    m.shard = shard_of(config);
    m.config = model::shard_config(config, m.shard);
    m.shape = plan.shape;
    m.kv_blocks = plan.total.kv_blocks;
    // A little more than planned: weights that were only estimated, and alignment.
    m.arena = Arena(plan.total.total() + plan.total.weights / 32 + (64 << 20));
    load_weights(spec, *source, weight_sizes, format(checkpoint), what, progress);
    m.work = make_workspace(m.config, m.shape, m.arena);
    const std::uint64_t cache = plan.total.kv_cache / 2 / sizeof(std::uint16_t);
    m.keys = m.arena.take<std::uint16_t>(cache, "the KV cache");
    m.values = m.arena.take<std::uint16_t>(cache, "the KV cache");
    if (group_) m.exchange.emplace(exchange_shape(config, m.shape), *group_, *communicator_, m.stream.get());
    fill_tables();
    m.input.emplace(m.shape);
    if (can_sample(m.config)) m.sampling.emplace(requests_bytes(m.shape));
    m.output = PinnedMemory(2 * static_cast<std::uint64_t>(m.shape.sequences) * sizeof(std::int32_t));
    m.forward.emplace(m.config, m.weights, m.shape, m.work, m.keys, m.values, m.kv_blocks,
                      Forward::Settings{kernels_, options_.gemm, options_.batch_invariant},
                      m.exchange ? &*m.exchange : nullptr, m.stream.get());
    check(cudaStreamSynchronize(m.stream.get()), "loading");
  } catch (...) {
    model_.reset();
    throw;
  }
}

void CudaRunner::load_weights(const model::ModelSpec& whole, WeightSource& source, const WeightSizes& sizes,
                              WeightFormat format, const char* what, Progress& progress) {
  const auto start = Clock::now();
  Model& m = *model_;
  const model::ModelSpec spec = model::shard_spec(whole, m.shard);
  int shared_bytes = 0;
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index_), "the GPU");
  const LoadSettings settings{format, multiprocessors_, cuda::largest_block_bytes(kernels_, shared_bytes),
                              m.stream.get()};
  double pack_seconds = 0;
  progress.begin(what, file_bytes(spec, m.shard));
  m.weights = runner::load_weights(spec, m.shard, source, settings, sizes, m.arena, progress, pack_seconds);
  progress.end();
  if (source.read_seconds > 0) {
    stages_.push_back({"files", source.read_seconds});
    stages_.push_back({"copies", source.wait_seconds});
  } else {
    stages_.push_back({"making", seconds_since(start) - pack_seconds});
  }
  if (sizes.any_packed) stages_.push_back({std::string_view(what) == "loading" ? "checking" : "packing", pack_seconds});
}

// What never changes: frequencies and the ids that may be chosen.
void CudaRunner::fill_tables() {
  const Model& m = *model_;
  const std::vector<double> frequencies = model::inverse_frequencies(m.config.rope);
  check(cudaMemcpyAsync(m.work.frequencies, frequencies.data(), frequencies.size() * sizeof(double),
                        cudaMemcpyHostToDevice, m.stream.get()),
        "loading");
  std::vector<std::uint8_t> allowed(static_cast<std::size_t>(m.config.vocab_size), 1);
  for (std::size_t i = 0; i < options_.allowed.size() && i < allowed.size(); ++i) allowed[i] = options_.allowed[i];
  check(cudaMemcpyAsync(m.work.allowed, allowed.data(), allowed.size(), cudaMemcpyHostToDevice, m.stream.get()),
        "loading");
  check(cudaStreamSynchronize(m.stream.get()), "loading");  // before the host vectors go
}

std::function<void(int)> CudaRunner::tracer(int tokens) {
  if (!trace_) return {};
  return [this, tokens](int layer) {
    const Model& m = model();
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(tokens * m.config.hidden_size));
    check(cudaMemcpyAsync(narrow.data(), m.work.hidden, narrow.size() * 2, cudaMemcpyDeviceToHost, m.stream.get()),
          "a trace");
    check(cudaStreamSynchronize(m.stream.get()), "a trace");
    std::vector<float> wide(narrow.size());
    std::transform(narrow.begin(), narrow.end(), wide.begin(), [](std::uint16_t x) { return to_float(Bf16{x}); });
    trace_(layer < 0 ? layer : layer + static_cast<int>(m.shard.layers.begin), wide);
  };
}

// Tokens that a decode pass runs with: the same on all ranks.
int CudaRunner::pass_size(int tokens) const { return captures() || group_ ? graph_size(tokens) : tokens; }

// Returns what finishes the pass's logits, null where that is Forward::finish_logits.
const Graph* CudaRunner::run_decode(int tokens) {
  Model& m = model();
  const auto launch = [&](int count) {
    m.forward->run({Pass::Decode, count, count, 1, {}}, tracer(tokens));
    m.forward->choose(count);
  };
  const int size = pass_size(tokens);
  if (!captures()) {
    launch(size);
    return nullptr;
  }
  last_decode_ = size;
  auto graph = m.graphs.find(size);
  if (graph == m.graphs.end()) {
    const auto start = Clock::now();
    launch(size);  // once for what is set up at first use: capturing may not
    m.forward->finish_logits(size);
    check(cudaStreamSynchronize(m.stream.get()), "a step");
    graph = m.graphs
                .try_emplace(
                    size, m.stream.get(), [&] { launch(size); }, [&] { m.forward->finish_logits(size); })
                .first;
    capture_seconds_ += seconds_since(start);
  }
  graph->second.pass.launch(m.stream.get());
  return &graph->second.finish_logits;
}

// Draws the ids of rows whose finished logits are in the workspace, on their way to `drawn` afterwards. Rows that asked
// for no id are drawn from likewise where they lie among others.
void CudaRunner::sample_rows(const PassPlan& pass, int first, int count, const Batch& batch, std::int32_t* drawn) {
  Model& m = model();
  const auto requests = m.sampling->copy(batch, pass, first, count, m.work.requests, m.stream.get());
  for (int at = 0; at < count; at += kSampledAtOnce) {
    cuda::Product logits;
    logits.partials = m.work.logits + at * m.config.vocab_size;
    logits.rows = m.config.vocab_size;
    check(
        cuda::sample(logits, m.work.allowed, requests.rows + at, requests.touched, std::min(kSampledAtOnce, count - at),
                     m.config.vocab_size, m.work.sampled + at, m.work.sampling, m.stream.get()),
        "sampling");
  }
  check(cudaMemcpyAsync(drawn, m.work.sampled, static_cast<std::size_t>(count) * sizeof(std::int32_t),
                        cudaMemcpyDeviceToHost, m.stream.get()),
        "the sampled ids");
}

// Brings ids and logits of `count` rows of a pass, whose logits were made last, to their places in the result.
void CudaRunner::take_rows(const PassPlan& pass, int first, int count, const Graph* finish_logits, const Batch& batch,
                           std::vector<std::int32_t>& ids, std::vector<std::vector<float>>& logits) {
  Model& m = model();
  if (!m.forward->has_logits()) return;
  enum class Wanted { Nothing, Largest, Sampled, Logits };
  const auto row_of = [&](int i) { return pass.results[static_cast<std::size_t>(first + i)]; };
  const auto wanted = [&](int i) {
    if (row_of(i) < 0) return Wanted::Nothing;
    const auto row = static_cast<std::size_t>(row_of(i));
    if (!batch.greedy.empty() && batch.greedy[row] != 0) return Wanted::Largest;
    return m.sampling && !batch.sampling.empty() && batch.sampling[row] ? Wanted::Sampled : Wanted::Logits;
  };
  const auto any = [&](Wanted what) {
    for (int i = 0; i < count; ++i) {
      if (wanted(i) == what) return true;
    }
    return false;
  };
  const auto copy_logits = [&](int i) {
    const auto vocab = static_cast<std::size_t>(m.config.vocab_size);
    std::vector<float>& to = logits[static_cast<std::size_t>(row_of(i))];
    to.resize(vocab);
    check(cudaMemcpyAsync(to.data(), m.work.logits + static_cast<std::size_t>(i) * vocab, vocab * sizeof(float),
                          cudaMemcpyDeviceToHost, m.stream.get()),
          "the logits");
  };

  auto* chosen = reinterpret_cast<std::int32_t*>(m.output.get());
  std::int32_t* drawn = chosen + m.shape.sequences;
  check(cudaMemcpyAsync(chosen, m.work.ids, static_cast<std::size_t>(count) * sizeof(std::int32_t),
                        cudaMemcpyDeviceToHost, m.stream.get()),
        "the chosen ids");
  const bool any_sampled = any(Wanted::Sampled);
  if (any_sampled || any(Wanted::Logits)) {
    if (finish_logits != nullptr) {
      finish_logits->launch(m.stream.get());
    } else {
      m.forward->finish_logits(count);
    }
  }
  if (any_sampled) sample_rows(pass, first, count, batch, drawn);
  for (int i = 0; i < count; ++i) {
    if (wanted(i) == Wanted::Logits) copy_logits(i);
  }
  check(cudaStreamSynchronize(m.stream.get()), "a step");

  bool left_to_host = false;
  for (int i = 0; i < count; ++i) {
    const Wanted what = wanted(i);
    if (what == Wanted::Largest) ids[static_cast<std::size_t>(row_of(i))] = chosen[i];
    if (what != Wanted::Sampled) continue;
    if (drawn[i] == cuda::kTooManyCandidates) {
      copy_logits(i);
      left_to_host = true;
    } else {
      ids[static_cast<std::size_t>(row_of(i))] = drawn[i];
    }
  }
  if (left_to_host) check(cudaStreamSynchronize(m.stream.get()), "a step");
}

StepResult CudaRunner::step(const Batch& batch) {
  check(cudaSetDevice(index_), "choosing the GPU");
  Model& m = model();
  try {
    if (m.exchange) m.exchange->begin_step();
    return run_passes(batch);
  } catch (...) {
    if (group_) group_->set_stopped(true);  // nobody waits for this rank any more
    cudaStreamSynchronize(m.stream.get());  // what is under way reads buffers that the next step fills
    throw;
  }
}

StepResult CudaRunner::run_passes(const Batch& batch) {
  Model& m = model();
  validate(batch, {m.config.vocab_size, m.kv_blocks, options_.max_batch_tokens, options_.max_sequences, m.shape.context,
                   m.shape.cached});
  const std::size_t rows = batch.logits_rows.size();
  std::vector<std::int32_t> ids(rows, kNoId);
  std::vector<std::vector<float>> logits(rows);
  for (const PassPlan& pass : plan_passes(batch, m.shape.columns, options_.batch_invariant)) {
    const bool decode = pass.shape.kind == Pass::Decode;
    const int tokens = decode ? pass_size(pass.shape.tokens) : pass.shape.tokens;
    m.input->copy(batch, pass, tokens, m.work.input, m.stream.get());
    if (!m.shard.first_stage()) m.exchange->receive_hidden(m.work.hidden, tokens);
    const Graph* finish_logits = nullptr;
    if (decode) {
      finish_logits = run_decode(pass.shape.tokens);
    } else {
      m.forward->run(pass.shape, tracer(tokens));
    }
    if (!m.shard.last_stage()) m.exchange->send_hidden(m.work.hidden, tokens);
    if (m.weights.has_head()) take_results(pass, finish_logits, batch, ids, logits);
    check(cudaStreamSynchronize(m.stream.get()), "a step");
  }
  StepResult result;
  if (m.forward->has_logits()) {
    if (!batch.greedy.empty() || !batch.sampling.empty()) result.ids = std::move(ids);
    for (const std::vector<float>& row : logits) result.logits.insert(result.logits.end(), row.begin(), row.end());
  }
  return result;
}

// Ids and logits of a pass that has run: a decode pass has made them, the others do it now, some rows at a time.
void CudaRunner::take_results(const PassPlan& pass, const Graph* finish_logits, const Batch& batch,
                              std::vector<std::int32_t>& ids, std::vector<std::vector<float>>& logits) {
  const Model& m = model();
  const int wanted = static_cast<int>(pass.results.size());
  if (pass.shape.kind == Pass::Decode) {
    take_rows(pass, 0, wanted, finish_logits, batch, ids, logits);
    return;
  }
  const int at_a_time = static_cast<int>(std::min<std::int64_t>(m.shape.columns, m.shape.sequences));
  for (int first = 0; first < wanted; first += at_a_time) {
    const int count = std::min(at_a_time, wanted - first);
    model().forward->head_of_rows(first, count);
    model().forward->choose(count);
    take_rows(pass, first, count, nullptr, batch, ids, logits);
  }
}

// The keys and values of the last tokens are garbage afterwards: no sequence may be under way.
std::vector<std::pair<std::string, double>> CudaRunner::step_profile() {
  if (last_decode_ == 0 || !model_ || !captures()) return {};
  check(cudaSetDevice(index_), "choosing the GPU");
  return profile_decode(*model().forward, last_decode_, model().stream.get());
}

double CudaRunner::read_bandwidth() {
  if (bandwidth_ > 0) return bandwidth_;
  check(cudaSetDevice(index_), "choosing the GPU");
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 30, kMost = std::uint64_t{8} << 30;
  if (model_ && model_->forward && model_->arena.used() >= kLeast) {
    const std::uint64_t bytes = std::min(kMost, model_->arena.used()) / (1 << 20) * (1 << 20);
    bandwidth_ = measure_read_bandwidth(model_->arena.base(), bytes, model_->stream.get());
  } else {
    const std::uint64_t free = free_memory(index_);
    const std::uint64_t bytes = std::min(kMost, free / 2) / (1 << 20) * (1 << 20);
    if (bytes < (64 << 20)) return 0;
    const Stream stream;
    const DeviceMemory memory(bytes);
    check(cudaMemsetAsync(memory.get(), 0x5A, bytes, stream.get()), "measuring the bandwidth");
    bandwidth_ = measure_read_bandwidth(memory.get(), bytes, stream.get());
  }
  return bandwidth_;
}

}  // namespace

std::vector<std::string> list_cuda_devices() {
  std::string why;
  std::vector<std::string> lines;
  const int count = device_count(why);
  for (int i = 0; i < count; ++i) lines.push_back(fmt::format("cuda:{} {}", i, describe_device(i)));
  return lines;
}

std::unique_ptr<Runner> make_cuda_runner(const Options& options) {
  return std::make_unique<CudaRunner>(options, nullptr, nullptr);
}

std::function<std::unique_ptr<Runner>(Communicator&)> cuda_ranks(const Options& options) {
  const int ranks = options.tensor_parallel * options.pipeline_parallel;
  auto group = std::make_shared<RankGroup>(rank_devices(options.device, ranks), options.tensor_parallel);
  Options of_rank = options;
  const int threads = options.threads == 0 ? available_threads() : options.threads;
  of_rank.threads = std::max(1, threads / ranks);
  return [of_rank, group](Communicator& communicator) {
    return std::make_unique<CudaRunner>(of_rank, group, &communicator);
  };
}

}  // namespace glyd::runner
