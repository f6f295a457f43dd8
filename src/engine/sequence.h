#pragma once
// One request on its way through the engine.

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/sampler.h"
#include "text/tokenizer.h"

namespace glyd::engine {

using SequenceId = std::int64_t;

// What a caller asks for.
struct Request {
  std::vector<text::TokenId> prompt;     // not empty, every id below the vocabulary's size
  std::int64_t max_tokens = 256;         // tokens to make at most; the context length bounds it too
  SamplingParams sampling;
  std::vector<text::TokenId> stop_ids;   // end the sequence; not part of the output. Empty: ignore the end
};

enum class FinishReason { Stop, Length, Context, Cancelled, Error };

enum class Status { Waiting, Running, Finished };

struct Sequence {
  SequenceId id = 0;
  Request request;
  std::vector<text::TokenId> output;         // tokens made so far
  Status status = Status::Waiting;
  std::optional<FinishReason> finish;
  std::vector<std::int32_t> block_table;     // KV blocks it holds, in order
  std::int64_t computed = 0;                 // tokens (of prompt, then output) whose k and v are in the cache

  std::int64_t length() const { return static_cast<std::int64_t>(request.prompt.size() + output.size()); }
  text::TokenId token(std::int64_t i) const {
    const auto n = static_cast<std::int64_t>(request.prompt.size());
    return i < n ? request.prompt[static_cast<std::size_t>(i)] : output[static_cast<std::size_t>(i - n)];
  }
};

}  // namespace glyd::engine
