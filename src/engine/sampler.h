#pragma once
// Logits to the next token. Seeded by sequence and place, so that neighbours in the batch change nothing.

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace glyd::engine {

// Order of application: repetition, frequency and presence penalties, temperature, top-k, top-p, min-p.
struct SamplingParams {
  double temperature = 1.0;         // 0: the largest logit, lowest id on ties
  int top_k = 0;                    // exactly this many ids, the lowest on ties; 0: all
  double top_p = 1.0;               // (0, 1]; of the distribution after top-k, at least one token
  double min_p = 0.0;               // [0, 1]; share of the likeliest token's probability
  double repetition_penalty = 1.0;  // > 0; l / r for l > 0, else l * r, once for each distinct id of prompt and output
  double frequency_penalty = 0.0;   // times the id's count in the output, subtracted
  double presence_penalty = 0.0;    // subtracted once for each distinct id of the output
  std::uint64_t seed = 0;
};

// Throws Error(Usage) naming the option and its value when one is out of range or not finite.
void check(const SamplingParams& params);

// Whether the next id is that of the largest logit, whatever the others are: a device can choose it then.
bool takes_largest(const SamplingParams& params);

bool has_penalties(const SamplingParams& params);

// The random number of step `step` of a sequence, 64 bits: element `step` of the SplitMix64 stream that starts at the
// mixed seed. A pure function: nothing is carried from one step to the next, so preemption and batching cannot shift
// it.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t step);

// Chooses ids by `params`. `allowed` masks the vocabulary: ids without a token are never sampled.
class Sampler {
 public:
  explicit Sampler(const std::vector<bool>& allowed);  // [vocab_size]

  // The next id of a sequence: `logits` [vocab_size] (changed in place), its prompt and output so far (ids below
  // vocab_size), and `step`, the number of the token being made (from 0), which with the seed determines the random
  // number. Throws Error(Runtime) naming `step` when mask() does.
  text::TokenId sample(std::span<float> logits, const SamplingParams& params, std::span<const text::TokenId> prompt,
                       std::span<const text::TokenId> output, std::int64_t step) const;

  // Sets the logits of ids that are not allowed to -inf, whatever they were. Throws Error(Runtime) naming `step` when
  // an allowed one is NaN or +inf, or all are -inf.
  void mask(std::span<float> logits, std::int64_t step) const;

 private:
  std::vector<text::TokenId> forbidden_;  // few: the padding rows of the embedding
};

}  // namespace glyd::engine
