#pragma once
// The one backend interface: a model on a device that takes steps. Coarse on purpose: a backend is free to fuse.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "base/sizes.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "runner/batch.h"

namespace glyd::runner {

inline constexpr int kBlockSize = 16;  // tokens of one KV block
inline constexpr int kMaxRanks = 64;   // of all stages

// KV blocks that hold so many tokens.
constexpr std::int64_t blocks_for(std::int64_t tokens) { return round_up(tokens, kBlockSize) / kBlockSize; }

enum class Activations { Fp32, Bf16 };  // Bf16 rounds where the specification's bf(...) stands

// How the weights are held in memory. AsStored: packed when the model directory is, else bf16.
enum class WeightFormat { AsStored, Bf16, Packed };

// What multiplies on a GPU. Auto: the own kernels for decode steps, cuBLAS for prompts. Cublas: cuBLAS for everything,
// as a baseline (bf16 weights only).
enum class Gemm { Auto, Cublas };

struct Options {
  std::string device = "cpu";                   // "cpu", "cuda", "cuda:1", or a GPU for each rank: "cuda:0,cuda:2"
  int threads = 0;                              // CPU threads; 0: all of the machine's
  int tensor_parallel = 1;                      // ranks to split each layer over
  int pipeline_parallel = 1;                    // stages of so many ranks to deal the layers out to
  Activations activations = Activations::Fp32;  // CPU runner only; a GPU always uses bf16
  WeightFormat weights = WeightFormat::AsStored;
  std::int64_t max_batch_tokens = 2048;  // most tokens of one step
  std::int64_t max_sequences = 64;       // most sequences of one step
  std::int64_t context = 0;              // longest sequence, tokens
  std::int64_t kv_blocks = 0;            // KV blocks to allocate; 0: as many as max_sequences * context needs, or fit

  // A GPU's alone.
  std::uint64_t memory_limit = 0;  // bytes that the runner may take at most; 0: no such limit
  double memory_share = 0;         // share of the GPU's memory that it may take; 0: the backend's own choice
  bool eager = false;              // no CUDA graphs
  Gemm gemm = Gemm::Auto;
  bool batch_invariant = false;    // a prompt's results too depend on nothing else in its step, at a cost in speed
  std::vector<bool> allowed = {};  // [vocab_size] ids that rows may be given in place of logits; empty: all
};

// Bytes, before anything is allocated.
struct MemoryPlan {
  std::uint64_t weights = 0, kv_cache = 0, workspace = 0;
  std::int64_t kv_blocks = 0;
  std::int64_t most_kv_blocks = 0;  // that would fit; 0 where nothing is known
  std::uint64_t available = 0;      // what the runner may take: what the device has free, or less by the options
  std::uint64_t total() const { return weights + kv_cache + workspace; }
};

// In place of an id in StepResult::ids.
inline constexpr std::int32_t kNotFinite = -1;  // an allowed id's logit is NaN or +inf
inline constexpr std::int32_t kAllMasked = -2;  // all logits are -inf or of ids that are not allowed
inline constexpr std::int32_t kNoId = -3;       // the row's logits are in `logits` instead: no id was asked for, or the
                                                // row has more candidates than the device samples from

struct StepResult {
  // [logits_rows] the id of each row that asked for it: of the largest logit, the lowest on ties (Batch::greedy), or
  // drawn as engine::Sampler does (Batch::sampling); or one of the values above. Empty: every row's logits are in
  // `logits`.
  std::vector<std::int32_t> ids;
  std::vector<float> logits;  // [rows without an id][vocab_size], in order; fp32 straight from the accumulators
};

// How long a part of load() took: "files", "copies", "packing", "graphs".
struct LoadStage {
  std::string name;
  double seconds = 0;
};

// Receives the residual stream [tokens][hidden_size] of a step: after the embedding (layer -1) and after each layer.
using Trace = std::function<void(int layer, std::span<const float> hidden)>;

// One model on one device. Methods are called from one thread.
class Runner {
 public:
  virtual ~Runner() = default;

  // What load() would allocate. Throws Error(Memory), with the numbers and what would fit, when it cannot fit.
  virtual MemoryPlan plan(const model::Checkpoint& checkpoint) const = 0;

  // Allocates and reads the weights. Throws Error(Model) or Error(Memory).
  virtual void load(const model::Checkpoint& checkpoint, Progress& progress) = 0;

  // The same for made-up weights of this shape (normal, deviation 0.02; norms 1), for measurements without files. The
  // same seed gives the same weights in every WeightFormat.
  virtual MemoryPlan plan_random(const model::Config& config) const = 0;
  virtual void load_random(const model::Config& config, std::uint64_t seed, Progress& progress) = 0;

  // Runs the batch: writes k and v of its tokens into their slots, returns the logits asked for. A sequence's results
  // depend on its own tokens alone: not on its neighbours, its place, or how its prompt was cut into chunks. The one
  // exception is a step of more than 128 tokens on a GPU without `batch_invariant`: cuBLAS multiplies there, and may
  // add up in another order where the number of rows differs.
  virtual StepResult step(const Batch& batch) = 0;

  // Whether rows of Batch::sampling get ids. After load().
  virtual bool samples() const { return false; }

  // Bytes of weights that a step reads whatever it holds: all but the embedding, of which few rows are looked up, and
  // the head once (which is the embedding when tied). After load().
  virtual std::uint64_t bytes_per_step() const = 0;

  virtual std::uint64_t weight_bytes() const = 0;  // that load() allocated; plan() estimates those packed at load
  virtual std::int64_t kv_blocks() const = 0;      // allocated by load()
  virtual std::string device_name() const = 0;     // for people: "CPU, 8 threads"

  virtual std::vector<LoadStage> load_stages() const { return {}; }  // of the last load, in order

  // Memory of the device that this runner really holds; 0: unknown.
  virtual std::uint64_t memory_used() const { return 0; }

  // Tokens of a prompt that are best run in one step.
  virtual std::int64_t preferred_chunk() const { return 512; }

  // Bytes a second that the device reads from its memory, measured at the first call; 0: unknown.
  virtual double read_bandwidth() { return 0; }

  // What a benchmark's record should say of the device: driver, clocks, and the like; a name and a value each.
  virtual std::vector<std::pair<std::string, std::string>> device_facts() const { return {}; }

  // Calls `trace` in every step from now on; an empty one ends that. Steps are slower meanwhile. A backend that cannot
  // never calls it.
  virtual void set_trace(Trace) {}

  // Where the last step's time went, seconds by name; empty where the backend does not measure it.
  virtual std::vector<std::pair<std::string, double>> step_profile() { return {}; }
};

// The backend that options.device names. Throws Error(Usage) for an unknown one or a GPU this build or machine lacks.
std::unique_ptr<Runner> make_runner(const Options& options);

// "cuda" when this build has the CUDA backend and finds a GPU that it can use, else "cpu".
std::string default_device();

// One line a device that make_runner() would take.
std::vector<std::string> list_devices();

}  // namespace glyd::runner
