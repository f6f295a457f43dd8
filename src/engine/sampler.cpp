#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>

#include "base/error.h"
#include "runner/logits.h"

namespace glyd::engine {

using text::TokenId;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  TokenId id = 0;
  float logit = 0;
  double weight = 0;  // exp((logit - largest) / temperature): a probability that is not normalised; the likeliest has 1
};

// The order of likelihood. Ids break ties, so it is a total order and every selection below has one answer.
bool before(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

std::size_t index(TokenId id) { return static_cast<std::size_t>(id); }

// Finite logits stay finite, however extreme the penalty.
float to_finite(double logit) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(logit, -kLargest, kLargest));
}

void apply_repetition_penalty(std::span<float> logits, double penalty, std::span<const TokenId> prompt,
                              std::span<const TokenId> output) {
  std::vector<bool> seen(logits.size());
  for (const auto ids : {prompt, output}) {
    for (const TokenId id : ids) {
      if (seen[index(id)]) continue;
      seen[index(id)] = true;
      float& logit = logits[index(id)];
      if (logit != -kInfinity) logit = to_finite(logit > 0 ? logit / penalty : logit * penalty);
    }
  }
}

void apply_output_penalties(std::span<float> logits, const SamplingParams& params, std::span<const TokenId> output) {
  std::map<TokenId, int> counts;
  for (const TokenId id : output) ++counts[id];
  for (const auto& [id, count] : counts) {
    float& logit = logits[index(id)];
    if (logit != -kInfinity) logit = to_finite(logit - params.frequency_penalty * count - params.presence_penalty);
  }
}

// The `k` first in the order of likelihood, unsorted; ids with -inf are left out. Linear in the vocabulary for any k:
// the buffer holds up to 2k, and each time it is full the worse half goes and sets the bar for what may still come in.
std::vector<Candidate> select_top(std::span<const float> logits, std::size_t k) {
  std::vector<Candidate> best;
  best.reserve(std::min(2 * k, logits.size()));
  float bar = -kInfinity;
  const auto drop_worse = [&] {
    std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(k - 1), best.end(), before);
    best.resize(k);
    bar = best.back().logit;
  };
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > bar)) continue;  // an equal logit came earlier, with a lower id
    best.push_back({static_cast<TokenId>(i), logits[i], 0});
    if (best.size() == 2 * k) drop_worse();
  }
  if (best.size() > k) drop_worse();
  return best;
}

double total_weight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// Brings the shortest head of the order of likelihood that weighs `target` or more to the front and returns its length,
// at least 1. A binary search that sorts no more than it must: linear in the number of candidates.
std::size_t head_weighing(std::vector<Candidate>& candidates, double target) {
  std::size_t too_short = 0, end = candidates.size();  // the length sought is in (too_short, end]
  double weight = 0;                                   // of the first too_short
  while (end - too_short > 1) {
    const std::size_t middle = too_short + (end - too_short) / 2;
    const auto at = [&](std::size_t i) { return candidates.begin() + static_cast<std::ptrdiff_t>(i); };
    std::nth_element(at(too_short), at(middle), at(end), before);
    const double half = total_weight({at(too_short), at(middle)});
    if (weight + half >= target) {
      end = middle;
    } else {
      weight += half;
      too_short = middle;
    }
  }
  return end;
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  const double total = total_weight(candidates);
  // Candidates lighter than this hold together at most half of the share that top-p gives up, so the others still reach
  // top-p. Of a real model's vocabulary few are left.
  const double light = 0.5 * (1 - top_p) * total / static_cast<double>(candidates.size());
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < light; });
  candidates.resize(head_weighing(candidates, top_p * total));
}

// `uniform` in [0, 1) walks along the weights laid end to end. In ascending order of ids, as a device that samples
// does: both choose the same one.
TokenId draw(const std::vector<Candidate>& candidates, double uniform) {
  const double target = uniform * total_weight(candidates);  // below the total: `uniform` is at most 1 - 2^-53
  double reached = 0;
  for (const Candidate& c : candidates) {
    reached += c.weight;
    if (target < reached) return c.id;
  }
  return candidates.back().id;  // not reached: the same sums in the same order end at the total
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void require(bool ok, const char* name, double value, const char* expected) {
  if (!ok) fail(Code::Usage, "{} is {}: expected {}", name, value, expected);
}

}  // namespace

void check(const SamplingParams& params) {
  require(std::isfinite(params.temperature) && params.temperature >= 0, "temperature", params.temperature,
          "a number of 0 or more (0 takes the likeliest token)");
  require(params.top_k >= 0, "top-k", params.top_k, "0 (all tokens) or more");
  require(params.top_p > 0 && params.top_p <= 1, "top-p", params.top_p, "more than 0 and at most 1 (all tokens)");
  require(params.min_p >= 0 && params.min_p <= 1, "min-p", params.min_p, "0 (all tokens) to 1");
  require(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0, "repeat-penalty",
          params.repetition_penalty, "a number above 0 (1 is none)");
  require(std::isfinite(params.frequency_penalty), "frequency-penalty", params.frequency_penalty, "a finite number");
  require(std::isfinite(params.presence_penalty), "presence-penalty", params.presence_penalty, "a finite number");
}

bool takes_largest(const SamplingParams& params) { return params.temperature == 0 && !has_penalties(params); }

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t step) {
  return mix(mix(seed) + (step + 1) * 0x9e3779b97f4a7c15u);
}

Sampler::Sampler(const std::vector<bool>& allowed) : forbidden_(runner::forbidden_ids(allowed)) {}

void Sampler::mask(std::span<float> logits, std::int64_t step) const {
  for (const TokenId id : forbidden_) logits[index(id)] = -kInfinity;
  const runner::LogitsScan found = runner::scan_logits(logits);
  if (!found.usable) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float l) { return !(l < kInfinity); });
    fail(Code::Runtime,
         "step {}: the logit of token {} is {}, expected a finite number: the weights are damaged or the numbers "
         "overflowed",
         step, at - logits.begin(), *at);
  }
  if (found.largest == -kInfinity) {
    fail(Code::Runtime, "step {}: the logits of all {} tokens are -inf or masked, expected at least one finite number",
         step, logits.size());
  }
}

TokenId Sampler::sample(std::span<float> logits, const SamplingParams& params, std::span<const TokenId> prompt,
                        std::span<const TokenId> output, std::int64_t step) const {
  mask(logits, step);
  if (params.repetition_penalty != 1) apply_repetition_penalty(logits, params.repetition_penalty, prompt, output);
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) apply_output_penalties(logits, params, output);

  const float top = runner::scan_logits(logits).largest;
  if (params.temperature == 0)
    return static_cast<TokenId>(std::find(logits.begin(), logits.end(), top) - logits.begin());

  const std::size_t k =
      params.top_k == 0 ? logits.size() : std::min(logits.size(), static_cast<std::size_t>(params.top_k));
  std::vector<Candidate> candidates = select_top(logits, k);
  // The difference to the largest, in double: no temperature, however small, overflows upwards. What is below -1000 has
  // weight 0 anyway.
  for (Candidate& c : candidates) {
    c.weight =
        std::exp(static_cast<float>(std::max((static_cast<double>(c.logit) - top) / params.temperature, -1000.0)));
  }
  if (params.top_p < 1) keep_top_p(candidates, params.top_p);
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < params.min_p; });
  // The cuts leave them in an order of their own.
  if (k < logits.size() || params.top_p < 1)
    std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const double uniform =
      static_cast<double>(random_bits(params.seed, static_cast<std::uint64_t>(step)) >> 11) * 0x1p-53;
  return draw(candidates, uniform);
}

}  // namespace glyd::engine
