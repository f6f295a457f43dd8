#pragma once
// The one backend interface: a model on a device that takes steps. Coarse on purpose: a backend is free to fuse.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "model/checkpoint.h"
#include "runner/batch.h"

namespace glyd::runner {

inline constexpr int kBlockSize = 16;  // tokens of one KV block

enum class Activations { Fp32, Bf16 };  // Bf16 rounds where the specification's bf(...) stands

// How the weights are held in memory. AsStored: packed when the model directory is, else bf16.
enum class WeightFormat { AsStored, Bf16, Packed };

struct Options {
  std::string device = "cpu";                   // "cpu", "cuda", "cuda:1"
  int threads = 0;                              // CPU threads; 0: all of the machine's
  Activations activations = Activations::Fp32;  // CPU runner only; a GPU always uses bf16
  WeightFormat weights = WeightFormat::AsStored;
  std::int64_t max_batch_tokens = 2048;  // most tokens of one step
  std::int64_t max_sequences = 64;       // most sequences of one step
  std::int64_t context = 0;              // longest sequence, tokens
  std::int64_t kv_blocks = 0;            // KV blocks to allocate; 0: as many as max_sequences * context needs, or fit
};

// Bytes, before anything is allocated.
struct MemoryPlan {
  std::uint64_t weights = 0, kv_cache = 0, workspace = 0;
  std::int64_t kv_blocks = 0;
  std::uint64_t available = 0;  // what the device has free
  std::uint64_t total() const { return weights + kv_cache + workspace; }
};

struct StepResult {
  std::vector<float> logits;  // [logits_rows][vocab_size], fp32 straight from the accumulators
};

// One model on one device. Methods are called from one thread.
class Runner {
 public:
  virtual ~Runner() = default;

  // What load() would allocate. Throws Error(Memory), with the numbers and what would fit, when it cannot fit.
  virtual MemoryPlan plan(const model::Checkpoint& checkpoint) const = 0;

  // Allocates and reads the weights. Throws Error(Model) or Error(Memory).
  virtual void load(const model::Checkpoint& checkpoint, Progress& progress) = 0;

  // Runs the batch: writes k and v of its tokens into their slots, returns the logits asked for. A sequence's results
  // depend on its own tokens alone: not on its neighbours, its place, or how its prompt was cut into chunks.
  virtual StepResult step(const Batch& batch) = 0;

  // Bytes of weights that a step reads whatever it holds: all but the embedding, of which few rows are looked up, and
  // the head once (which is the embedding when tied). After load().
  virtual std::uint64_t bytes_per_step() const = 0;

  virtual std::uint64_t weight_bytes() const = 0;  // that load() allocated: at most what plan() said
  virtual std::int64_t kv_blocks() const = 0;      // allocated by load()
  virtual std::string device_name() const = 0;     // for people: "CPU, 8 threads"
};

// The backend that options.device names. Throws Error(Usage) for an unknown one or a GPU this build or machine lacks.
std::unique_ptr<Runner> make_runner(const Options& options);

// One line a device that make_runner() would take.
std::vector<std::string> list_devices();

}  // namespace glyd::runner
