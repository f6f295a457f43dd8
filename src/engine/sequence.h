#pragma once
// One request on its way through the engine.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/sampler.h"
#include "runner/batch.h"
#include "text/tokenizer.h"

namespace glyd::engine {

using SequenceId = std::int64_t;

// What a caller asks for.
struct Request {
  std::vector<text::TokenId> prompt;  // not empty, every id one with a token
  std::int64_t max_tokens = 256;      // tokens to make at most, 0 or more; the context length bounds it too
  SamplingParams sampling;
  std::vector<text::TokenId> stop_ids;  // end the sequence; not part of the output. Empty: ignore the end
};

// Why a sequence ended: a stop id; max_tokens made; the context (or all of the KV cache) full; for callers that cancel
// and want to say so (the engine reports nothing more about a cancelled sequence); logits that cannot be sampled.
enum class FinishReason { Stop, Length, Context, Cancelled, Error };

// The distinct ids of a text that grows, each with its count in the output. A token is looked at once.
class TouchedIds {
 public:
  void add(text::TokenId id, bool in_output) {
    const auto [place, is_new] = places_.try_emplace(id, ids_.size());
    if (is_new) ids_.push_back({id, 0});
    if (in_output) ++ids_[place->second].count;
  }
  const std::vector<runner::TouchedId>& ids() const { return ids_; }

 private:
  std::vector<runner::TouchedId> ids_;
  std::unordered_map<text::TokenId, std::size_t> places_;
};

// The engine owns it from add() to its end; the scheduler and the block manager keep their notes on it here.
struct Sequence {
  SequenceId id = 0;
  Request request;
  std::vector<text::TokenId> output;      // tokens made so far
  std::vector<std::int32_t> block_table;  // KV blocks it holds, in order
  std::int64_t computed = 0;              // tokens (of prompt, then output) whose k and v are in the cache
  TouchedIds touched;                     // of its first touched_tokens tokens, where a device applies penalties
  std::int64_t touched_tokens = 0;

  std::int64_t length() const { return static_cast<std::int64_t>(request.prompt.size() + output.size()); }
  // Only the token made last is still to be run.
  bool decoding() const { return !output.empty() && computed + 1 == length(); }
  text::TokenId token(std::int64_t i) const {
    const auto n = static_cast<std::int64_t>(request.prompt.size());
    return i < n ? request.prompt[static_cast<std::size_t>(i)] : output[static_cast<std::size_t>(i - n)];
  }
};

}  // namespace glyd::engine
