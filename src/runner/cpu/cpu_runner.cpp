#include "runner/cpu/cpu_runner.h"

#include <algorithm>
#include <fstream>
#include <new>

#include "base/error.h"
#include "base/timing.h"
#include "runner/cpu/attention.h"
#include "runner/cpu/available_memory.h"
#include "runner/cpu/embedding.h"
#include "runner/cpu/heads.h"
#include "runner/cpu/matmul.h"
#include "runner/cpu/memory_plan.h"
#include "runner/cpu/read_bandwidth.h"
#include "runner/cpu/residual.h"
#include "runner/cpu/rms_norm.h"
#include "runner/cpu/swiglu.h"
#include "runner/logits.h"
#include "runner/validate_batch.h"

namespace glyd::runner::cpu {
namespace {

const float* or_null(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

}  // namespace

CpuRunner::CpuRunner(const Options& options, const Kernels& kernels, Communicator* communicator)
    : options_(options),
      kernels_(kernels),
      communicator_(communicator),
      pool_(options.threads == 0 ? available_threads() : options.threads),
      forbidden_(forbidden_ids(options.allowed)) {}

std::string CpuRunner::device_name() const {
  return fmt::format("CPU, {} thread{}, {}", pool_.size(), pool_.size() == 1 ? "" : "s", kernels_.name);
}

double CpuRunner::read_bandwidth() {
  if (read_bandwidth_ == 0) read_bandwidth_ = cpu::read_bandwidth(pool_);
  return read_bandwidth_;
}

std::vector<std::pair<std::string, std::string>> CpuRunner::device_facts() const {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {  // "model name	: Intel(R) ..."
    if (const auto colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
      return {{"processor", line.substr(colon + 2)}};
  }
  return {};
}

model::Shard CpuRunner::shard_of(const model::Config& config) const {
  if (!communicator_) return model::make_shard(config, 0, 1);
  return model::make_shard(config, communicator_->global_rank(), communicator_->size(), communicator_->stages());
}

MemoryPlan CpuRunner::plan(const model::Checkpoint& checkpoint) const {
  const model::Config& config = checkpoint.config();
  return plan(config, Weights::bytes(checkpoint, shard_of(config), options_.weights),
              options_.weights == WeightFormat::Packed && !checkpoint.manifest());
}

MemoryPlan CpuRunner::plan(const model::Config& config, std::uint64_t weight_bytes, bool packs) const {
  const int ranks = communicator_ ? communicator_->global_size() : 1;
  return plan_memory(model::shard_config(config, shard_of(config)), weight_bytes, options_, pool_.size(),
                     available_memory() / static_cast<std::uint64_t>(ranks), ranks, packs);
}

MemoryPlan CpuRunner::plan_random(const model::Config& config) const {
  return plan(config, Weights::bytes(model::model_spec(config), shard_of(config)),
              options_.weights == WeightFormat::Packed);
}

void CpuRunner::load(const model::Checkpoint& checkpoint, Progress& progress) {
  const auto start = Clock::now();
  release();
  allocate(checkpoint.config(), plan(checkpoint));
  weights_ = Weights::load(checkpoint, shard_of(checkpoint.config()), options_.weights, pool_, progress);
  load_stages_ = {{"load", seconds_since(start)}};
}

void CpuRunner::load_random(const model::Config& config, std::uint64_t seed, Progress& progress) {
  const auto start = Clock::now();
  release();
  allocate(config, plan_random(config));
  weights_ = Weights::random(model::model_spec(config), shard_of(config), options_.weights, seed, pool_, progress);
  load_stages_ = {{"load", seconds_since(start)}};
}

void CpuRunner::release() {
  context_.reset();
  weights_ = {};
  work_ = {};
  cache_ = {};
  kv_blocks_ = 0;
}

void CpuRunner::allocate(const model::Config& whole, MemoryPlan plan) {
  // All ranks have planned, with the memory that was there, before the first one takes any.
  if (communicator_) plan.kv_blocks = communicator_->all_min(plan.kv_blocks);
  shard_ = shard_of(whole);
  const model::Config config = model::shard_config(whole, shard_);
  const auto tokens = static_cast<std::size_t>(options_.max_batch_tokens);
  const auto hidden = static_cast<std::size_t>(config.hidden_size);
  const auto inner = static_cast<std::size_t>(config.intermediate_size);
  const auto d = static_cast<std::size_t>(config.head_dim);
  const auto heads = static_cast<std::size_t>(config.heads), kv_heads = static_cast<std::size_t>(config.kv_heads);
  if (!options_.allowed.empty() && options_.allowed.size() != static_cast<std::size_t>(config.vocab_size))
    fail(Code::Usage, "ids are allowed out of {}, the model's vocabulary is {}", options_.allowed.size(),
         config.vocab_size);
  config_ = config;
  kv_blocks_ = plan.kv_blocks;
  work_ = {FloatBuffer(tokens, hidden),
           FloatBuffer(tokens, hidden),
           FloatBuffer(tokens, hidden),
           FloatBuffer(tokens, (heads + 2 * kv_heads) * d),
           FloatBuffer(tokens, heads * padded(d)),
           FloatBuffer(tokens, heads * d),
           FloatBuffer(tokens, 2 * inner),
           FloatBuffer(tokens, inner)};
  cache_ = KvCache(config, options_.activations, plan.kv_blocks);
  rope_ = RopeTable(config.rope, tokens);
  context_.emplace(pool_, kernels_, options_.activations == Activations::Bf16,
                   padded(std::max({hidden, heads * d, inner})));
}

StepResult CpuRunner::step(const Batch& batch) {
  if (weights_.layers.empty()) fail(Code::Runtime, "the CPU runner has no model: load one first");
  validate(batch, {config_.vocab_size, kv_blocks_, options_.max_batch_tokens, options_.max_sequences});

  std::vector<std::int32_t> sequence_of(batch.token_ids.size());
  for (std::int32_t s = 0; s < batch.sequences(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    std::fill(sequence_of.begin() + batch.query_start[i], sequence_of.begin() + batch.query_start[i + 1], s);
  }
  rope_.prepare(*context_, batch.positions);
  const std::span<float> hidden = hidden_states(batch.token_ids.size());
  if (shard_.first_stage()) {
    embed(*context_, *weights_.embed, batch.token_ids, work_.hidden.rows());
    show_hidden(-1, batch);
  } else {
    communicator_->receive_from_previous(std::as_writable_bytes(hidden));
  }
  for (int layer = 0; layer < config_.layers; ++layer) {
    run_layer(layer, batch, sequence_of);
    show_hidden(static_cast<int>(shard_.layers.begin) + layer, batch);
  }
  if (!shard_.last_stage()) {
    communicator_->send_to_next(std::as_bytes(hidden));
    return {};
  }
  StepResult result = logits(batch);
  if (!batch.greedy.empty() && shard_.rank == 0) choose_ids(batch, result);
  return result;
}

// Of the first tokens, with the padding of their rows.
std::span<float> CpuRunner::hidden_states(std::size_t tokens) {
  const FloatRows h = work_.hidden.rows();
  return {h.data, tokens * h.stride};
}

// The arg-max that a GPU would take, on the host: rows that asked for it become ids, the others move together.
void CpuRunner::choose_ids(const Batch& batch, StepResult& result) const {
  const auto vocab = static_cast<std::size_t>(config_.vocab_size);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < batch.greedy.size(); ++i) {
    const std::span<float> row = std::span(result.logits).subspan(i * vocab, vocab);
    result.ids.push_back(batch.greedy[i] != 0 ? choose_id(row, forbidden_) : kNoId);
    if (batch.greedy[i] == 0) std::copy(row.begin(), row.end(), result.logits.data() + kept++ * vocab);
  }
  result.logits.resize(kept * vocab);
}

void CpuRunner::show_hidden(int layer, const Batch& batch) {
  if (!trace_) return;
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  std::vector<float> rows;
  for (std::size_t t = 0; t < batch.token_ids.size(); ++t)
    rows.insert(rows.end(), work_.hidden.rows().row(t), work_.hidden.rows().row(t) + hidden);
  trace_(layer, rows);
}

void CpuRunner::run_layer(int layer, const Batch& batch, std::span<const std::int32_t> sequence_of) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const auto inner = static_cast<std::size_t>(config_.intermediate_size);
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const std::size_t tokens = batch.token_ids.size();
  const FloatRows h = work_.hidden.rows(), normed = work_.normed.rows(), projected = work_.projected.rows();
  const FloatRows qkv = work_.qkv.rows(), q = work_.q.rows(), attended = work_.attended.rows();
  const FloatRows gate_up = work_.gate_up.rows(), activated = work_.activated.rows();
  Context& c = *context_;

  rms_norm_rows(c, h, tokens, w.input_norm.data(), hidden, eps, normed);
  matmul(c, *w.qkv, normed, tokens, or_null(w.qkv_bias), Rounding::Activation, qkv);
  split_heads(c, config_, qkv, or_null(w.q_norm), or_null(w.k_norm), rope_, batch.slot_mapping, layer, cache_, q);
  attention(c, config_, batch, sequence_of, layer, cache_, q, attended);
  matmul(c, *w.o, attended, tokens, or_null(w.o_bias), Rounding::None, projected);
  add_ranks(projected, tokens);
  add_residual(c, projected, tokens, hidden, h);

  rms_norm_rows(c, h, tokens, w.post_norm.data(), hidden, eps, normed);
  matmul(c, *w.gate_up, normed, tokens, or_null(w.gate_up_bias), Rounding::Activation, gate_up);
  swiglu(c, gate_up, tokens, inner, activated);
  matmul(c, *w.down, activated, tokens, or_null(w.down_bias), Rounding::None, projected);
  add_ranks(projected, tokens);
  add_residual(c, projected, tokens, hidden, h);
}

void CpuRunner::add_ranks(FloatRows sums, std::size_t tokens) {
  if (communicator_) communicator_->all_reduce_sum({sums.data, tokens * sums.stride});
}

StepResult CpuRunner::logits(const Batch& batch) {
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const auto vocab = static_cast<std::size_t>(config_.vocab_size);
  const std::size_t rows = batch.logits_rows.size();
  StepResult result;
  if (rows == 0) return result;
  const std::size_t own = weights_.head().rows();  // of the vocabulary
  std::vector<float> part;
  try {
    if (shard_.rank == 0) result.logits.resize(rows * vocab);
    if (communicator_) part.resize(rows * own);
  } catch (const std::bad_alloc&) {
    fail(Code::Memory, "logits of {} tokens: the system gave no memory for {} bytes", rows,
         rows * vocab * sizeof(float));
  }
  const FloatRows h = work_.hidden.rows(), normed = work_.normed.rows();
  for (std::size_t i = 0; i < rows; ++i)
    rms_norm(*context_, h.row(static_cast<std::size_t>(batch.logits_rows[i])), weights_.final_norm.data(), hidden,
             static_cast<float>(config_.rms_norm_eps), normed.row(i));
  float* const out = communicator_ ? part.data() : result.logits.data();
  matmul(*context_, weights_.head(), normed, rows, nullptr, Rounding::None, {out, own});
  for (std::size_t i = 0; communicator_ && i < rows; ++i) {
    const std::span<float> row =
        shard_.rank == 0 ? std::span(result.logits).subspan(i * vocab, vocab) : std::span<float>();
    communicator_->all_gather(std::span(part).subspan(i * own, own), row);
  }
  return result;
}

std::uint64_t CpuRunner::bytes_per_step() const {
  std::uint64_t bytes = shard_.last_stage() ? weights_.head().bytes() : 0;
  for (const LayerWeights& w : weights_.layers)
    bytes += w.qkv->bytes() + w.o->bytes() + w.gate_up->bytes() + w.down->bytes();
  return bytes;
}

}  // namespace glyd::runner::cpu
