#include "runner/cuda/cuda_runner.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "base/timing.h"
#include "runner/cuda/check.h"
#include "runner/cuda/decode_graphs.h"
#include "runner/cuda/device.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/loaded_model.h"
#include "runner/cuda/profile.h"
#include "runner/cuda/rank_group.h"
#include "runner/cuda/step_results.h"
#include "runner/validate_batch.h"

namespace glyd::runner {
namespace {

class CudaRunner : public Runner {
 public:
  // `group`, `communicator` null: the only rank.
  CudaRunner(const Options& options, std::shared_ptr<RankGroup> group, Communicator* communicator)
      : options_(options), group_(std::move(group)) {
    if (options.gemm == Gemm::Cublas && options.weights == WeightFormat::Packed)
      fail(Code::Usage, "--gemm cublas: cuBLAS multiplies plain weights only; use it with --weights bf16");
    place_.index = group_ ? group_->device(communicator->global_rank()) : rank_devices(options.device, 1).front();
    place_.kernels = choose_kernels(place_.index);
    place_.group = group_.get();
    place_.communicator = communicator;
    check(cudaDeviceGetAttribute(&place_.multiprocessors, cudaDevAttrMultiProcessorCount, place_.index), "the GPU");
  }
  ~CudaRunner() override { cudaSetDevice(place_.index); }

  MemoryPlan plan(const model::Checkpoint& checkpoint) const override {
    return plan_model(origin_of(checkpoint), options_, place_).total;
  }
  MemoryPlan plan_random(const model::Config& config) const override {
    return plan_model(random_origin(config, 0), options_, place_).total;
  }
  void load(const model::Checkpoint& checkpoint, Progress& progress) override {
    load_from(origin_of(checkpoint), progress);
  }
  void load_random(const model::Config& config, std::uint64_t seed, Progress& progress) override {
    load_from(random_origin(config, seed), progress);
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
  std::string device_name() const override {
    return fmt::format("cuda:{} {}", place_.index, describe_device(place_.index));
  }
  std::vector<LoadStage> load_stages() const override {
    std::vector<LoadStage> stages = stages_;
    if (capture_seconds_ > 0) stages.push_back({"graphs", capture_seconds_});
    return stages;
  }
  std::uint64_t memory_used() const override { return model_ ? kContextBytes + model_->taken : 0; }
  std::int64_t preferred_chunk() const override { return 2048; }
  double read_bandwidth() override;
  std::vector<std::pair<std::string, std::string>> device_facts() const override {
    auto facts = facts_of_device(place_.index);
    facts.emplace_back("kernels", place_.kernels == cuda::KernelSet::Hopper ? "sm_90a" : "generic");
    if (group_) facts.emplace_back("sums by", group_->describe());
    return facts;
  }
  void set_trace(Trace trace) override { trace_ = std::move(trace); }
  std::vector<std::pair<std::string, double>> step_profile() override;

 private:
  void load_from(const Origin& origin, Progress& progress);
  template <class Body>
  auto with_ranks(const Body& body);
  LoadedModel& model() const {
    if (!model_) fail(Code::Runtime, "the CUDA runner has no model: load one first");
    return *model_;
  }
  bool captures() const {  // Ranks that share a GPU wait for each other on the host.
    return !options_.eager && !trace_ && (group_ == nullptr || group_->transport() != Transport::SharedGpu);
  }
  int pass_size(int tokens) const;
  StepResult run_passes(const Batch& batch);
  void launch_decode(int tokens, const std::function<void(int)>& tracer = {});
  const DecodeGraphs& decode_graphs(int tokens);
  void take_results(const PassPlan& pass, const Graph* finish_logits, const Batch& batch, StepRows& rows);
  std::function<void(int)> tracer(int tokens);

  Options options_;
  std::shared_ptr<RankGroup> group_;
  Place place_;
  std::unique_ptr<LoadedModel> model_;
  std::vector<LoadStage> stages_;
  double capture_seconds_ = 0;
  double bandwidth_ = 0;
  int last_decode_ = 0;  // tokens of the last decode pass
  Trace trace_;
};

void CudaRunner::load_from(const Origin& origin, Progress& progress) {
  check(cudaSetDevice(place_.index), "choosing the GPU");
  model_.reset();
  stages_.clear();
  capture_seconds_ = 0;
  last_decode_ = 0;
  if (group_) place_.communicator->all_min(0);  // a GPU that ranks share is empty
  try {
    model_ = load_model(origin, options_, place_, progress, stages_);
  } catch (...) {
    if (group_) group_->set_stopped(true);  // other ranks' models know this one's memory
    throw;
  }
}

std::function<void(int)> CudaRunner::tracer(int tokens) {
  if (!trace_) return {};
  return [this, tokens](int layer) {
    LoadedModel& m = model();
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(tokens * m.config.hidden_size));
    check(cudaMemcpyAsync(narrow.data(), m.work.hidden, narrow.size() * 2, cudaMemcpyDeviceToHost, m.stream.get()),
          "a trace");
    m.synchronize();
    std::vector<float> wide(narrow.size());
    std::transform(narrow.begin(), narrow.end(), wide.begin(), [](std::uint16_t x) { return to_float(Bf16{x}); });
    trace_(layer < 0 ? layer : layer + static_cast<int>(m.shard.layers.begin), wide);
  };
}

// Tokens that a decode pass runs with: the same on all ranks.
int CudaRunner::pass_size(int tokens) const { return captures() || group_ ? graph_size(tokens) : tokens; }

void CudaRunner::launch_decode(int tokens, const std::function<void(int)>& tracer) {
  LoadedModel& m = model();
  m.forward->run({Pass::Decode, tokens, tokens, 1, {}}, tracer);
  m.forward->choose(tokens);
}

// Captured at first use. That runs the pass once, whose residual stream is garbage afterwards.
const DecodeGraphs& CudaRunner::decode_graphs(int tokens) {
  LoadedModel& m = model();
  last_decode_ = tokens;
  auto graphs = m.graphs.find(tokens);
  if (graphs == m.graphs.end()) {
    const auto start = Clock::now();
    const std::uint64_t free_before = free_memory(place_.index);
    launch_decode(tokens);  // for what is set up at first use: capturing may not
    m.forward->finish_logits(tokens);
    m.synchronize();
    graphs = m.graphs
                 .try_emplace(
                     tokens, m.stream.get(), [&] { launch_decode(tokens); }, [&] { m.forward->finish_logits(tokens); })
                 .first;
    graphs->second.pass.upload(m.stream.get());
    m.forward->meet_ranks();
    m.taken += free_before - std::min(free_before, free_memory(place_.index));
    capture_seconds_ += seconds_since(start);
  }
  return graphs->second;
}

// Runs `body` with the other ranks, after putting right what a failed call left. When this rank fails, nobody waits for
// it any more, and nothing is under way that reads what the next call fills.
template <class Body>
auto CudaRunner::with_ranks(const Body& body) {
  try {
    check(cudaSetDevice(place_.index), "choosing the GPU");
    LoadedModel& m = model();
    if (m.exchange && m.exchange->mend()) {
      m.graphs.clear();  // of which other ranks may have fewer
      last_decode_ = 0;
    }
    return body();
  } catch (...) {
    if (model_ && model_->exchange) {
      model_->exchange->stop();
    } else if (group_) {
      group_->set_stopped(true);
    }
    if (model_) cudaStreamSynchronize(model_->stream.get());
    throw;
  }
}

StepResult CudaRunner::step(const Batch& batch) {
  return with_ranks([&] { return run_passes(batch); });
}

StepResult CudaRunner::run_passes(const Batch& batch) {
  LoadedModel& m = model();
  validate(batch, {m.config.vocab_size, m.kv_blocks, options_.max_batch_tokens, options_.max_sequences, m.shape.context,
                   m.shape.cached});
  const std::size_t rows = batch.logits_rows.size();
  StepRows wanted{std::vector<std::int32_t>(rows, kNoId), std::vector<std::vector<float>>(rows)};
  for (const PassPlan& pass : plan_passes(batch, m.shape.columns, options_.batch_invariant)) {
    const bool decode = pass.shape.kind == Pass::Decode;
    const int tokens = decode ? pass_size(pass.shape.tokens) : pass.shape.tokens;
    m.input->copy(batch, pass, tokens, m.work.input, m.stream.get());
    const DecodeGraphs* const graphs = decode && captures() ? &decode_graphs(tokens) : nullptr;
    if (!m.shard.first_stage()) m.exchange->receive_hidden(m.work.hidden, tokens);
    if (graphs != nullptr) {
      graphs->pass.launch(m.stream.get());
    } else if (decode) {
      launch_decode(tokens, tracer(pass.shape.tokens));
    } else {
      m.forward->run(pass.shape, tracer(tokens));
    }
    if (!m.shard.last_stage()) m.exchange->send_hidden(m.work.hidden, tokens);
    if (m.weights.has_head()) take_results(pass, graphs != nullptr ? &graphs->finish_logits : nullptr, batch, wanted);
    m.synchronize();
  }
  StepResult result;
  if (m.forward->has_logits()) {
    if (!batch.greedy.empty() || !batch.sampling.empty()) result.ids = std::move(wanted.ids);
    for (const std::vector<float>& row : wanted.logits)
      result.logits.insert(result.logits.end(), row.begin(), row.end());
  }
  return result;
}

// Ids and logits of a pass that has run: a decode pass has made them, the others do it now, some rows at a time.
void CudaRunner::take_results(const PassPlan& pass, const Graph* finish_logits, const Batch& batch, StepRows& rows) {
  LoadedModel& m = model();
  const int wanted = static_cast<int>(pass.results.size());
  if (pass.shape.kind == Pass::Decode) {
    take_rows(m, pass, 0, wanted, finish_logits, batch, rows);
    return;
  }
  const int at_a_time = static_cast<int>(std::min<std::int64_t>(m.shape.columns, m.shape.sequences));
  for (int first = 0; first < wanted; first += at_a_time) {
    const int count = std::min(at_a_time, wanted - first);
    m.forward->head_of_rows(first, count);
    m.forward->choose(count);
    take_rows(m, pass, first, count, nullptr, batch, rows);
  }
}

// The keys and values of the last tokens are garbage afterwards: no sequence may be under way.
std::vector<std::pair<std::string, double>> CudaRunner::step_profile() {
  if (!model_) return {};
  return with_ranks([&]() -> std::vector<std::pair<std::string, double>> {
    if (last_decode_ == 0 || !captures()) return {};
    return profile_decode(*model_->forward, last_decode_, model_->stream.get(), [this] { model_->synchronize(); });
  });
}

double CudaRunner::read_bandwidth() {
  if (bandwidth_ > 0) return bandwidth_;
  check(cudaSetDevice(place_.index), "choosing the GPU");
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 30, kMost = std::uint64_t{8} << 30;
  if (model_ && model_->arena.used() >= kLeast) {
    const std::uint64_t bytes = std::min(kMost, model_->arena.used()) / (1 << 20) * (1 << 20);
    bandwidth_ = measure_read_bandwidth(model_->arena.base(), bytes, model_->stream.get());
  } else {
    const std::uint64_t free = free_memory(place_.index);
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
