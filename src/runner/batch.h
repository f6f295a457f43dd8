#pragma once
// One step's work as plain host arrays: prompts' chunks and decoding sequences mixed.

#include <cstdint>
#include <optional>
#include <vector>

namespace glyd::runner {

// How the next id of a row is drawn: engine::SamplingParams, with the step's random number in place of the seed.
struct RowSampling {
  double temperature = 1;                     // 0: the largest logit after the penalties
  double top_p = 1, min_p = 0;                // (0, 1]; [0, 1]
  std::int32_t top_k = 0;                     // 0: all
  double repetition_penalty = 1;              // 1: none
  double frequency_penalty = 0;               // 0: none
  double presence_penalty = 0;                // 0: none
  std::uint64_t random = 0;                   // engine::random_bits(seed, step)
  std::int32_t touched = 0, touched_end = 0;  // Batch::touched [touched, touched_end): what the penalties apply to
};

// A distinct id of a row's text. Without a repetition penalty those of the prompt alone may be left out.
struct TouchedId {
  std::int32_t id = 0;
  std::int32_t count = 0;  // in the output; 0: in the prompt alone
};

// Tokens of one sequence lie together, in the order of their positions; sequences lie one after another.
struct Batch {
  std::vector<std::int32_t> token_ids;  // [tokens]
  std::vector<std::int32_t> positions;  // [tokens] place in the sequence, from 0
  std::vector<std::int32_t>
      slot_mapping;  // [tokens] KV slot that takes this token's k and v: block * block_size + place in it
  std::vector<std::int32_t>
      query_start;  // [sequences + 1] first token of each sequence; ends with the number of tokens
  std::vector<std::int32_t> context_lengths;  // [sequences] tokens attended to by the last token: its position + 1
  std::vector<std::int32_t>
      block_tables;             // [sequences * max_blocks] KV blocks of each sequence, in order; -1 behind the end
  std::int32_t max_blocks = 0;  // columns of block_tables
  std::vector<std::int32_t> logits_rows;  // tokens (indices into token_ids) whose logits are wanted, ascending
  // [logits_rows] 1: of this row only the id with the largest logit is wanted. Empty: of no row.
  std::vector<std::uint8_t> greedy;
  // [logits_rows] of a row with a request only the id drawn by it is wanted; none where `greedy` is set. Empty: no
  // requests. A runner that does not sample (Runner::samples) gives logits.
  std::vector<std::optional<RowSampling>> sampling;
  std::vector<TouchedId> touched;  // of the rows with penalties, one after another; distinct within a row

  std::int32_t tokens() const { return static_cast<std::int32_t>(token_ids.size()); }
  std::int32_t sequences() const { return static_cast<std::int32_t>(context_lengths.size()); }
};

}  // namespace glyd::runner
