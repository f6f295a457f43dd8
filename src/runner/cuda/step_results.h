#pragma once
// Ids and logits of a pass on their way from the GPU to a step's result.

#include <cstdint>
#include <vector>

#include "runner/batch.h"
#include "runner/cuda/loaded_model.h"
#include "runner/cuda/step_input.h"

namespace glyd::runner {

// By the batch's logits_rows.
struct StepRows {
  std::vector<std::int32_t> ids;           // kNoId where none was asked for
  std::vector<std::vector<float>> logits;  // empty likewise
};

// Of `count` rows of a pass, from `first` on, whose logits were made last. `finish_logits` null: not captured, the
// forward pass does it. Waits for the stream. Does nothing on a rank that gets no logits.
void take_rows(LoadedModel& model, const PassPlan& pass, int first, int count, const Graph* finish_logits,
               const Batch& batch, StepRows& rows);

}  // namespace glyd::runner
