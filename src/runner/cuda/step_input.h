#pragma once
// From a batch to passes of the GPU, and a pass's arrays to device memory.

#include <vector>

#include "cuda/pointwise/pointwise.h"
#include "runner/batch.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/forward.h"
#include "runner/cuda/workspace.h"

namespace glyd::runner {

// One pass of a step: some of the batch's sequences, in the batch's order.
struct PassPlan {
  PassShape shape;
  std::vector<int> sequences;  // of the batch
  std::vector<int> rows;       // tokens of the pass whose logits are wanted; Decode: all of them
  std::vector<int> results;    // [rows] the place of each in the batch's logits_rows; -1: not wanted (Decode alone)
};

// Sequences with one token decode together, `columns` at most; chunks of up to `columns` tokens run together up to as
// many; longer ones all at once.
std::vector<PassPlan> plan_passes(const Batch& batch, int columns, bool batch_invariant);

// Writes a pass's arrays into pinned memory and starts their way to the device. The copy before must be done.
class StepInput {
 public:
  explicit StepInput(const WorkspaceShape& shape);

  // `padded`: tokens of the launch, at least the pass's; the ones behind have no sequence (id and slot -1, length 0).
  void copy(const Batch& batch, const PassPlan& pass, int padded, std::int32_t* device, cudaStream_t stream);

 private:
  InputLayout layout_;
  PinnedMemory memory_;
};

// The same for the sampling requests of a pass's rows.
class SamplingInput {
 public:
  explicit SamplingInput(std::uint64_t bytes) : memory_(bytes) {}  // requests_bytes()

  // Where the requests lie on the device.
  struct Requests {
    const cuda::RowSampling* rows = nullptr;
    const cuda::TouchedId* touched = nullptr;
  };
  // Of the rows [first, first + count) of the pass; those without a request get one for the largest logit.
  Requests copy(const Batch& batch, const PassPlan& pass, int first, int count, void* device, cudaStream_t stream);

 private:
  PinnedMemory memory_;
};

}  // namespace glyd::runner
