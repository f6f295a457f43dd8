#pragma once
// One step's work as plain host arrays: prompts' chunks and decoding sequences mixed.

#include <cstdint>
#include <vector>

namespace glyd::runner {

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
  // [logits_rows] 1: of this row only the id with the largest logit is wanted. Empty: logits of all rows.
  std::vector<std::uint8_t> greedy;

  std::int32_t tokens() const { return static_cast<std::int32_t>(token_ids.size()); }
  std::int32_t sequences() const { return static_cast<std::int32_t>(context_lengths.size()); }
};

}  // namespace glyd::runner
