#pragma once
// A row of logits looked through on the host: the largest, and whether all are numbers that can be compared.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runner/runner.h"

namespace glyd::runner {

struct LogitsScan {
  float largest = -std::numeric_limits<float>::infinity();  // NaN aside
  bool usable = true;                                       // neither NaN nor +inf
};

// One pass over a vocabulary, in lanes of a fixed number so that the compiler makes SIMD of it.
inline LogitsScan scan_logits(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float largest[kLanes];
  int bad[kLanes] = {};
  std::fill(largest, largest + kLanes, -kInfinity);
  const std::size_t whole = logits.size() / kLanes * kLanes;
  const float* x = logits.data();
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
    for (std::size_t j = 0; j < kLanes; ++j) bad[j] |= !(x[i + j] < kInfinity);  // NaN compares false
  }
  for (std::size_t i = whole; i < logits.size(); ++i) {
    largest[0] = x[i] > largest[0] ? x[i] : largest[0];
    bad[0] |= !(x[i] < kInfinity);
  }
  return {*std::max_element(largest, largest + kLanes), std::find(bad, bad + kLanes, 1) == bad + kLanes};
}

// Ids that `allowed` [vocab_size] leaves out: few, the padding rows of the embedding.
inline std::vector<std::int32_t> forbidden_ids(const std::vector<bool>& allowed) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed[i]) ids.push_back(static_cast<std::int32_t>(i));
  }
  return ids;
}

// What StepResult::ids holds for a row: the id of its largest logit, or why there is none. Sets the forbidden ones to
// -inf.
inline std::int32_t choose_id(std::span<float> logits, std::span<const std::int32_t> forbidden) {
  for (const std::int32_t id : forbidden)
    logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  const LogitsScan found = scan_logits(logits);
  if (!found.usable) return kNotFinite;
  if (found.largest == -std::numeric_limits<float>::infinity()) return kAllMasked;
  return static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), found.largest) - logits.begin());
}

}  // namespace glyd::runner
