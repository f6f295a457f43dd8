#pragma once
// The checks that every backend makes before it runs a batch: an index out of range must be an error, never a stray
// access.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "runner/batch.h"
#include "runner/runner.h"

namespace glyd::runner {

struct BatchLimits {
  std::int64_t vocab_size = 0, kv_blocks = 0, max_batch_tokens = 0, max_sequences = 0;
  std::int64_t context = 0;  // longest sequence; 0: any
  std::int64_t cached = 0;   // tokens of all sequences together, shared blocks counted for each; 0: any
};

// The part of validate() that looks at Batch::sampling and Batch::touched.
inline void validate_sampling(const Batch& batch, const BatchLimits& limits) {
  const auto require = [](bool ok, const char* what) {
    if (!ok) fail(Code::Runtime, "bad batch: {}", what);
  };
  require(batch.sampling.empty() || batch.sampling.size() == batch.logits_rows.size(),
          "sampling needs one entry a row");
  require(static_cast<std::int64_t>(batch.touched.size()) <= limits.kv_blocks * kBlockSize,
          "more touched ids than the KV cache holds tokens");
  for (const TouchedId& touched : batch.touched) {
    require(touched.id >= 0 && touched.id < limits.vocab_size, "a touched id outside the vocabulary");
    require(touched.count >= 0, "a touched id that occurs less than never");
  }
  const auto end = static_cast<std::int64_t>(batch.touched.size());
  std::int32_t used = 0;  // of touched, by the rows before
  for (std::size_t i = 0; i < batch.sampling.size(); ++i) {
    if (!batch.sampling[i]) continue;
    const RowSampling& row = *batch.sampling[i];
    require(batch.greedy.empty() || batch.greedy[i] == 0, "a row that is greedy and sampled");
    require(std::isfinite(row.temperature) && row.temperature >= 0, "a temperature below 0");
    require(row.top_k >= 0 && row.top_p > 0 && row.top_p <= 1 && row.min_p >= 0 && row.min_p <= 1,
            "top-k, top-p or min-p out of range");
    require(std::isfinite(row.repetition_penalty) && row.repetition_penalty > 0 &&
                std::isfinite(row.frequency_penalty) && std::isfinite(row.presence_penalty),
            "a penalty out of range");
    require(row.touched >= 0 && row.touched <= row.touched_end && row.touched_end <= end,
            "touched ids of a row that are not there");
    if (row.touched == row.touched_end) continue;
    require(row.touched >= used, "touched ids of a row that are another's too");
    used = row.touched_end;
  }
}

// Throws Error(Usage) for a token id outside the vocabulary, Error(Runtime) for a batch that contradicts itself or the
// limits. Time is proportional to the batch's size.
inline void validate(const Batch& batch, const BatchLimits& limits) {
  const auto require = [](bool ok, const char* what) {
    if (!ok) fail(Code::Runtime, "bad batch: {}", what);
  };
  const std::size_t tokens = batch.token_ids.size(), sequences = batch.context_lengths.size();
  const auto max_blocks = static_cast<std::size_t>(batch.max_blocks);
  require(tokens > 0 && sequences > 0, "it is empty");
  require(tokens <= static_cast<std::size_t>(limits.max_batch_tokens), "more tokens than the workspace holds");
  require(sequences <= static_cast<std::size_t>(limits.max_sequences), "more sequences than the runner was made for");
  require(batch.positions.size() == tokens && batch.slot_mapping.size() == tokens, "arrays of different lengths");
  require(batch.query_start.size() == sequences + 1, "query_start needs one entry a sequence and the end");
  require(batch.max_blocks > 0 && batch.block_tables.size() == sequences * max_blocks, "block_tables of a wrong size");
  require(batch.query_start.front() == 0 && batch.query_start.back() == batch.tokens(),
          "query_start does not cover it");

  std::int64_t cached = 0;
  for (std::size_t s = 0; s < sequences; ++s) {
    const std::int32_t begin = batch.query_start[s], end = batch.query_start[s + 1];
    require(begin >= 0 && begin < end && end <= batch.tokens(), "a sequence without tokens");
    const std::int32_t first = batch.positions[static_cast<std::size_t>(begin)];
    require(first >= 0 && first <= INT32_MAX - (end - begin), "a position out of range");
    require(batch.context_lengths[s] == first + (end - begin), "a context length that is not the last position + 1");
    const std::size_t blocks = (static_cast<std::size_t>(batch.context_lengths[s]) + kBlockSize - 1) / kBlockSize;
    require(blocks <= max_blocks, "a block table shorter than its context");
    require(limits.context == 0 || batch.context_lengths[s] <= limits.context, "a sequence longer than the context");
    cached += batch.context_lengths[s];
    const std::int32_t* table = batch.block_tables.data() + s * max_blocks;
    for (std::size_t b = 0; b < blocks; ++b)
      require(table[b] >= 0 && table[b] < limits.kv_blocks, "a block that was not allocated");

    for (std::int32_t i = begin; i < end; ++i) {
      const auto t = static_cast<std::size_t>(i);
      const std::int32_t position = first + (i - begin), id = batch.token_ids[t];
      require(batch.positions[t] == position, "positions of a sequence that are not consecutive");
      const std::int64_t slot = std::int64_t{table[position / kBlockSize]} * kBlockSize + position % kBlockSize;
      require(batch.slot_mapping[t] == slot, "a slot that is not the block table's");
      if (id < 0 || id >= limits.vocab_size)
        fail(Code::Usage, "token id {} at position {}: outside the vocabulary, expected 0 to {}", id, position,
             limits.vocab_size - 1);
    }
  }
  require(limits.cached == 0 || cached <= limits.cached, "more tokens than the KV cache holds");
  require(batch.greedy.empty() || batch.greedy.size() == batch.logits_rows.size(), "greedy needs one entry a row");
  validate_sampling(batch, limits);
  std::int32_t previous = -1;
  for (const std::int32_t row : batch.logits_rows) {
    require(row > previous && row < batch.tokens(), "logits_rows that are not ascending tokens of it");
    previous = row;
  }
}

}  // namespace glyd::runner
