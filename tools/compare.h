#pragma once
// glyd-run --check: two backends with the same weights, step by step side by side.

#include <cstdint>
#include <string>
#include <vector>

#include "runner/runner.h"
#include "text/tokenizer.h"

namespace glyd::tools {

struct Comparison {
  std::vector<text::TokenId> prompt;
  std::int64_t tokens = 0;    // made after the prompt, each the arg-max of the device
  std::int64_t chunk = 0;     // tokens of the prompt in one step
  std::int64_t context = 0;   // ends it early
  std::int64_t width = 0;     // hidden_size
  std::vector<bool> allowed;  // [vocab_size]
};

struct ComparisonReport {
  bool agrees = false;
  // A line for the embedding, each layer and the logits: the largest difference of a value and the RMS of the
  // differences, of the token where they are largest, as shares of that token's RMS (of the logits' range). Then the
  // first line beyond the tolerance, if any.
  std::string text;
};

// Runs the prompt, then each token that `device` chooses, on both loaded runners. Throws Error(Runtime) when the
// device's logits are no numbers or it shows no layers.
ComparisonReport compare_runners(runner::Runner& device, runner::Runner& reference, const Comparison& what);

}  // namespace glyd::tools
