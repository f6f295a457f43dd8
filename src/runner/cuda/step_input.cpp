#include "runner/cuda/step_input.h"

#include <algorithm>

namespace glyd::runner {
namespace {

int length_of(const Batch& batch, int sequence) {
  const auto s = static_cast<std::size_t>(sequence);
  return batch.query_start[s + 1] - batch.query_start[s];
}

void add(PassPlan& pass, const Batch& batch, int sequence) {
  const int length = length_of(batch, sequence);
  pass.sequences.push_back(sequence);
  pass.shape.tokens += length;
  ++pass.shape.sequences;
  pass.shape.longest = std::max(pass.shape.longest, length);
}

// Which of the pass's tokens are wanted, and where their results go.
void find_rows(PassPlan& pass, const Batch& batch, bool batch_invariant) {
  int first = 0;
  for (const int sequence : pass.sequences) {
    const int begin = batch.query_start[static_cast<std::size_t>(sequence)], length = length_of(batch, sequence);
    const auto found = std::lower_bound(batch.logits_rows.begin(), batch.logits_rows.end(), begin);
    if (pass.shape.kind == Pass::Decode) {
      const bool wanted = found != batch.logits_rows.end() && *found == begin;
      pass.rows.push_back(first);
      pass.results.push_back(wanted ? static_cast<int>(found - batch.logits_rows.begin()) : -1);
    } else {
      for (auto it = found; it != batch.logits_rows.end() && *it < begin + length; ++it) {
        pass.rows.push_back(first + *it - begin);
        pass.results.push_back(static_cast<int>(it - batch.logits_rows.begin()));
      }
    }
    if (pass.shape.kind == Pass::Long && batch_invariant) pass.shape.starts.push_back(first);
    first += length;
  }
  if (pass.shape.kind == Pass::Long && batch_invariant) pass.shape.starts.push_back(first);
}

}  // namespace

std::vector<PassPlan> plan_passes(const Batch& batch, int columns, bool batch_invariant) {
  std::vector<PassPlan> passes;
  const auto kind_of = [&](int sequence) {
    const int length = length_of(batch, sequence);
    return length == 1 ? Pass::Decode : length <= columns ? Pass::Short : Pass::Long;
  };
  for (const Pass kind : {Pass::Decode, Pass::Short, Pass::Long}) {
    bool open = false;
    for (int s = 0; s < batch.sequences(); ++s) {
      if (kind_of(s) != kind) continue;
      if (!open || (kind != Pass::Long && passes.back().shape.tokens + length_of(batch, s) > columns)) {
        passes.emplace_back();
        passes.back().shape.kind = kind;
        open = true;
      }
      add(passes.back(), batch, s);
    }
  }
  for (PassPlan& pass : passes) find_rows(pass, batch, batch_invariant);
  return passes;
}

StepInput::StepInput(const WorkspaceShape& shape)
    : layout_(shape), memory_(static_cast<std::uint64_t>(layout_.end) * sizeof(std::int32_t)) {}

void StepInput::copy(const Batch& batch, const PassPlan& pass, int padded, std::int32_t* device, cudaStream_t stream) {
  auto* host = reinterpret_cast<std::int32_t*>(memory_.get());
  std::int32_t *tokens = host + layout_.tokens, *positions = host + layout_.positions, *slots = host + layout_.slots;
  std::int32_t *starts = host + layout_.query_start, *lengths = host + layout_.lengths;
  int at = 0, sequence_at = 0, blocks = 0;
  starts[0] = 0;
  for (const int sequence : pass.sequences) {
    const auto s = static_cast<std::size_t>(sequence);
    const auto begin = static_cast<std::size_t>(batch.query_start[s]),
               end = static_cast<std::size_t>(batch.query_start[s + 1]);
    for (std::size_t i = begin; i < end; ++i, ++at) {
      tokens[at] = batch.token_ids[i];
      positions[at] = batch.positions[i];
      slots[at] = batch.slot_mapping[i];
    }
    lengths[sequence_at] = batch.context_lengths[s];
    const int used = (batch.context_lengths[s] + kBlockSize - 1) / kBlockSize;
    std::copy_n(batch.block_tables.begin() + static_cast<std::ptrdiff_t>(s) * batch.max_blocks, used,
                host + layout_.tables + sequence_at * layout_.table_stride);
    blocks = std::max(blocks, used);
    starts[++sequence_at] = at;
  }
  for (; at < padded; ++at) {
    tokens[at] = slots[at] = -1;
    positions[at] = 0;
    if (pass.shape.kind == Pass::Decode) lengths[sequence_at++] = 0;
  }
  for (std::size_t i = 0; i < pass.rows.size(); ++i) host[layout_.rows + static_cast<std::int64_t>(i)] = pass.rows[i];

  // Arrays of the same kind lie at equal distances: three copies in all.
  const auto copy_2d = [&](std::int64_t first, std::int64_t stride, std::int64_t width, std::int64_t count) {
    if (width == 0 || count == 0) return;
    const auto pitch = static_cast<std::size_t>(stride) * sizeof(std::int32_t);
    check(cudaMemcpy2DAsync(device + first, pitch, host + first, pitch,
                            static_cast<std::size_t>(width) * sizeof(std::int32_t), static_cast<std::size_t>(count),
                            cudaMemcpyHostToDevice, stream),
          "a step's input");
  };
  copy_2d(layout_.tokens, layout_.positions - layout_.tokens, padded, 3);
  const bool decode = pass.shape.kind == Pass::Decode;
  const std::int64_t width =
      decode ? sequence_at : std::max<std::int64_t>(sequence_at + 1, static_cast<std::int64_t>(pass.rows.size()));
  copy_2d(layout_.lengths, layout_.query_start - layout_.lengths, width, decode ? 1 : 3);
  copy_2d(layout_.tables, layout_.table_stride, blocks, sequence_at);
}

SamplingInput::Requests SamplingInput::copy(const Batch& batch, const PassPlan& pass, int first, int count,
                                            void* device, cudaStream_t stream) {
  static_assert(sizeof(cuda::RowSampling) % alignof(cuda::TouchedId) == 0);  // one lies right behind the other
  auto* rows = reinterpret_cast<cuda::RowSampling*>(memory_.get());
  auto* touched = reinterpret_cast<cuda::TouchedId*>(rows + count);
  std::int32_t used = 0;
  for (int i = 0; i < count; ++i) {
    const int result = pass.results[static_cast<std::size_t>(first + i)];
    cuda::RowSampling& to = rows[i] = {};
    to.temperature = 0;
    if (result < 0 || !batch.sampling[static_cast<std::size_t>(result)]) continue;
    const RowSampling& from = *batch.sampling[static_cast<std::size_t>(result)];
    to.temperature = from.temperature;
    to.top_p = from.top_p;
    to.min_p = from.min_p;
    to.repetition_penalty = from.repetition_penalty;
    to.frequency_penalty = from.frequency_penalty;
    to.presence_penalty = from.presence_penalty;
    to.random = from.random;
    to.top_k = from.top_k;
    to.touched = used;
    for (std::int32_t j = from.touched; j < from.touched_end; ++j, ++used) {
      const TouchedId& id = batch.touched[static_cast<std::size_t>(j)];
      touched[used] = {id.id, id.count};
    }
    to.touched_end = used;
  }
  const auto bytes = static_cast<std::size_t>(reinterpret_cast<std::uint8_t*>(touched + used) - memory_.get());
  check(cudaMemcpyAsync(device, memory_.get(), bytes, cudaMemcpyHostToDevice, stream), "sampling requests");
  const auto* on_device = static_cast<const cuda::RowSampling*>(device);
  return {on_device, reinterpret_cast<const cuda::TouchedId*>(on_device + count)};
}

}  // namespace glyd::runner
