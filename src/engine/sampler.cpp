#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>

#include "base/error.h"

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

TokenId largest(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());  // the first of equals
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

// Keeps what top-p and min-p leave. Both keep a head of the order of likelihood, so the shorter of the two heads
// remains.
void cut_tail(std::vector<Candidate>& candidates, const SamplingParams& params) {
  if (params.top_p >= 1 && params.min_p <= 0) return;
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  // Sorting a whole vocabulary would be slow. Candidates that weigh less than `bar` hold together at most half of the
  // share that top-p gives up, so the others still reach top-p, and only these are sorted.
  const double bar = 0.5 * (1 - params.top_p) * total / static_cast<double>(candidates.size());
  const double floor = std::max(params.min_p, bar);
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < floor; });
  if (params.top_p >= 1) return;
  std::sort(candidates.begin(), candidates.end(), before);
  double reached = 0;
  std::size_t keep = 0;
  while (keep < candidates.size() && reached < params.top_p * total) reached += candidates[keep++].weight;
  candidates.resize(keep);
}

// `uniform` in [0, 1) walks along the weights laid end to end.
TokenId draw(const std::vector<Candidate>& candidates, double uniform) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  const double target = uniform * total;
  double reached = 0;
  TokenId chosen = candidates.front().id;
  for (const Candidate& c : candidates) {
    if (c.weight <= 0) continue;
    chosen = c.id;  // stays on the last one that can occur, should rounding put the target at the very end
    reached += c.weight;
    if (target < reached) break;
  }
  return chosen;
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

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t step) {
  return mix(mix(seed) + (step + 1) * 0x9e3779b97f4a7c15u);
}

Sampler::Sampler(const std::vector<bool>& allowed) {
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed[i]) forbidden_.push_back(static_cast<TokenId>(i));
  }
}

void Sampler::mask(std::span<float> logits, std::int64_t step) const {
  for (const TokenId id : forbidden_) logits[index(id)] = -kInfinity;
  int bad = 0, possible = 0;
  for (const float logit : logits) {
    bad |= !(logit < kInfinity);  // NaN compares false
    possible |= logit > -kInfinity;
  }
  if (bad != 0) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float l) { return !(l < kInfinity); });
    fail(Code::Runtime,
         "step {}: the logit of token {} is {}, expected a finite number: the weights are damaged or the numbers "
         "overflowed",
         step, at - logits.begin(), *at);
  }
  if (possible == 0) {
    fail(Code::Runtime, "step {}: the logits of all {} tokens are -inf or masked, expected at least one finite number",
         step, logits.size());
  }
}

TokenId Sampler::sample(std::span<float> logits, const SamplingParams& params, std::span<const TokenId> prompt,
                        std::span<const TokenId> output, std::int64_t step) const {
  mask(logits, step);
  if (params.repetition_penalty != 1) apply_repetition_penalty(logits, params.repetition_penalty, prompt, output);
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) apply_output_penalties(logits, params, output);

  const TokenId likeliest = largest(logits);
  if (params.temperature == 0) return likeliest;

  const std::size_t k =
      params.top_k == 0 ? logits.size() : std::min(logits.size(), static_cast<std::size_t>(params.top_k));
  std::vector<Candidate> candidates = select_top(logits, k);
  // Differences to the largest, in double: no temperature, however small, makes them overflow upwards.
  const double top = logits[index(likeliest)];
  for (Candidate& c : candidates) c.weight = std::exp((c.logit - top) / params.temperature);
  cut_tail(candidates, params);
  const double uniform =
      static_cast<double>(random_bits(params.seed, static_cast<std::uint64_t>(step)) >> 11) * 0x1p-53;
  return draw(candidates, uniform);
}

}  // namespace glyd::engine
