#include "bench_series.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/timing.h"
#include "common.h"
#include "io/sha256.h"
#include "model/weights.h"
#include "nvidia_smi.h"
#include "session.h"

namespace glyd::tools {
namespace {

constexpr std::int64_t kWarmUpTokens = 8;  // made by each sequence before anything is timed
constexpr std::int64_t kHashedTokens = 4;  // whose logits go into the hash
constexpr std::size_t kHashDigits = 16;

// The prompt of one sequence: the same for every series, every number of sequences and every machine.
std::vector<text::TokenId> random_prompt(std::uint64_t seed, std::uint64_t sequence, std::int64_t tokens,
                                         std::int64_t vocab_size) {
  const std::uint64_t own = engine::random_bits(seed, sequence);
  std::vector<text::TokenId> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::uint64_t bits = engine::random_bits(own, static_cast<std::uint64_t>(i));
    ids.push_back(static_cast<text::TokenId>(bits % static_cast<std::uint64_t>(vocab_size)));
  }
  return ids;
}

std::string short_hash(io::Sha256& hash) { return io::to_hex(hash.finish()).substr(0, kHashDigits); }

std::string hash_of(const std::vector<std::vector<text::TokenId>>& ids) {
  io::Sha256 hash;
  for (const auto& sequence : ids) hash.update(std::as_bytes(std::span(sequence)));
  return short_hash(hash);
}

}  // namespace

BenchModel::BenchModel(const std::filesystem::path& dir, bool random_weights)
    : checkpoint(open_checkpoint(dir, random_weights)),
      config(checkpoint ? checkpoint->config() : model::load_config(dir)) {}

std::uint64_t BenchModel::parameters() const {
  const model::ModelSpec spec = model::model_spec(config);
  std::uint64_t n = 0;
  for (const auto* m : model::all_matrices(spec)) n += m->rows * m->cols;
  for (const auto* v : model::all_vectors(spec)) n += v->size;
  return n;
}

BenchSeries::BenchSeries(const BenchModel& model, const BenchOptions& options, std::int64_t chunk, SeriesRecord& record)
    : model_(model), options_(options), chunk_(chunk), record_(record) {}

// The memory that the largest point needs, or what there is: sequences then wait for others to end.
runner::Options BenchSeries::runner_options() const {
  runner::Options o = options_.device.runner_options();
  o.weights = record_.weights;
  o.gemm = record_.gemm;
  o.max_sequences = *std::max_element(options_.parallel.begin(), options_.parallel.end());
  o.max_batch_tokens = chunk_ + o.max_sequences - 1;
  o.context = options_.context();
  return o;
}

bool BenchSeries::plan() {
  try {
    const auto runner = runner::make_runner(runner_options());
    record_.plan = model_.checkpoint ? runner->plan(*model_.checkpoint) : runner->plan_random(model_.config);
    return true;
  } catch (const Error& e) {
    if (e.code() != Code::Memory) throw;
    record_.refusal = e.what();
    return false;
  }
}

void BenchSeries::load(Progress& progress) {
  const auto start = Clock::now();
  runner_ = runner::make_runner(runner_options());
  if (model_.checkpoint) {
    runner_->load(*model_.checkpoint, progress);
  } else {
    runner_->load_random(model_.config, options_.seed, progress);
  }
  record_.load_seconds = seconds_since(start);
  record_.load_stages = runner_->load_stages();
  record_.weight_bytes = runner_->weight_bytes();
  const runner::Options o = runner_options();
  const std::int64_t needed = o.max_sequences * ((o.context + runner::kBlockSize - 1) / runner::kBlockSize);
  if (runner_->kv_blocks() < needed) {
    log::warning("{}: the KV cache has room for {} tokens, and {} sequences need {}: some wait for others to end",
                 record_.name(), runner_->kv_blocks() * runner::kBlockSize, o.max_sequences,
                 needed * runner::kBlockSize);
  }
  record_.bytes_per_step = runner_->bytes_per_step();
}

void BenchSeries::unload() { runner_.reset(); }

void BenchSeries::warm_up(std::int64_t parallel) {
  record_.points.emplace_back().parallel = parallel;
  generate(parallel, std::min(options_.generated, kHashedTokens), true);
  generate(parallel, std::min(options_.generated, kWarmUpTokens), false);
  record_.memory_used = runner_->memory_used();
  if (options_.device.on_gpu()) record_.driver_memory_used = driver_memory_used(runner_->device_facts());
}

void BenchSeries::run() {
  BenchPoint& point = record_.points.back();
  Outcome outcome = generate(point.parallel, options_.generated, false);
  const std::string hash = hash_of(outcome.ids);
  if (point.runs.empty()) {
    point.ids_hash = hash;
  } else if (point.repeatable && hash != point.ids_hash) {
    point.repeatable = false;
    log::warning("{}, {} sequences: run {} made other ids than the first", record_.name(), point.parallel,
                 point.runs.size() + 1);
  }
  point.runs.push_back(outcome.run);
  if (static_cast<std::int64_t>(point.runs.size()) == options_.repeats) point.step_profile = runner_->step_profile();
}

// The engine's own loop. A step that runs tokens of the depth beside tokens of the measured prompt counts by the share
// of the latter.
BenchSeries::Outcome BenchSeries::generate(std::int64_t parallel, std::int64_t tokens, bool hash_logits) {
  io::Sha256 logits_hash;
  std::int64_t step_tokens = 0, measured_tokens = 0;  // of the present step
  engine::EngineOptions e;
  e.scheduler.max_sequences = parallel;
  e.scheduler.prefill_chunk = chunk_;
  e.scheduler.max_batch_tokens = chunk_ + parallel - 1;
  e.scheduler.prompts_apart = true;
  e.context = options_.context();
  e.allowed.assign(static_cast<std::size_t>(model_.config.vocab_size), true);
  e.on_batch = [&](const runner::Batch& batch) {
    step_tokens = batch.tokens();
    measured_tokens = std::ranges::count_if(batch.positions, [&](std::int32_t p) { return p >= options_.depth; });
  };
  if (hash_logits) {
    e.on_logits = [&](engine::SequenceId, std::span<const float> row) { logits_hash.update(std::as_bytes(row)); };
  }
  engine::Engine engine(*runner_, std::move(e));
  std::map<engine::SequenceId, std::vector<text::TokenId>> made;
  for (std::int64_t s = 0; s < parallel; ++s) {
    engine::Request request;
    request.prompt = random_prompt(options_.seed, static_cast<std::uint64_t>(s), options_.depth + options_.prompt,
                                   model_.config.vocab_size);
    request.max_tokens = tokens;
    request.sampling.temperature = 0;
    made[engine.add(std::move(request))];
  }

  double prompt_seconds = 0, generation_seconds = 0;
  std::int64_t prompt_tokens = 0, generated = 0, steps = 0;
  while (!engine.idle()) {
    if (interrupted()) fail(Code::Interrupted, "interrupted");
    const std::int64_t before = engine.stats().prompt_tokens;
    const auto start = Clock::now();
    const std::vector<engine::Output> outputs = engine.step();
    const double seconds = seconds_since(start);
    if (engine.stats().prompt_tokens > before) {
      prompt_seconds += seconds * static_cast<double>(measured_tokens) / static_cast<double>(step_tokens);
      prompt_tokens += measured_tokens;
    } else {
      generation_seconds += seconds;
      generated += step_tokens;
      ++steps;
    }
    for (const engine::Output& output : outputs) {
      if (output.finish == engine::FinishReason::Error) fail(Code::Runtime, "{}: {}", record_.name(), output.error);
      if (output.token) made[output.id].push_back(*output.token);
    }
  }

  Outcome outcome;
  outcome.run.prompt_rate = static_cast<double>(prompt_tokens) / prompt_seconds;
  if (steps > 0) {
    outcome.run.generation_rate = static_cast<double>(generated) / generation_seconds;
    outcome.run.step_seconds = generation_seconds / static_cast<double>(steps);
  }
  for (auto& [id, ids] : made) outcome.ids.push_back(std::move(ids));
  if (hash_logits) record_.points.back().logits_hash = short_hash(logits_hash);
  return outcome;
}

}  // namespace glyd::tools
