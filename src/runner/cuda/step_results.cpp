#include "runner/cuda/step_results.h"

#include <algorithm>

#include "cuda/pointwise/pointwise.h"
#include "runner/cuda/check.h"

namespace glyd::runner {
namespace {

// Draws the ids of rows whose finished logits are in the workspace, on their way to `drawn` afterwards. Rows that asked
// for no id are drawn from likewise where they lie among others.
void sample_rows(const LoadedModel& m, SamplingInput& input, const PassPlan& pass, int first, int count,
                 const Batch& batch, std::int32_t* drawn) {
  const auto requests = input.copy(batch, pass, first, count, m.work.requests, m.stream.get());
  for (int at = 0; at < count; at += kSampledAtOnce) {
    cuda::Product logits;
    logits.partials = m.work.logits + at * m.config.vocab_size;
    logits.rows = m.config.vocab_size;
    check(
        cuda::sample(logits, m.work.allowed, requests.rows + at, requests.touched, std::min(kSampledAtOnce, count - at),
                     m.config.vocab_size, m.work.sampled + at, m.work.sampling, m.stream.get()),
        "sampling");
  }
  check(cudaMemcpyAsync(drawn, m.work.sampled, static_cast<std::size_t>(count) * sizeof(std::int32_t),
                        cudaMemcpyDeviceToHost, m.stream.get()),
        "the sampled ids");
}

}  // namespace

void take_rows(LoadedModel& m, const PassPlan& pass, int first, int count, const Graph* finish_logits,
               const Batch& batch, StepRows& rows) {
  if (!m.forward->has_logits()) return;
  enum class Wanted { Nothing, Largest, Sampled, Logits };
  const auto row_of = [&](int i) { return pass.results[static_cast<std::size_t>(first + i)]; };
  const auto wanted = [&](int i) {
    if (row_of(i) < 0) return Wanted::Nothing;
    const auto row = static_cast<std::size_t>(row_of(i));
    if (!batch.greedy.empty() && batch.greedy[row] != 0) return Wanted::Largest;
    return m.sampling && !batch.sampling.empty() && batch.sampling[row] ? Wanted::Sampled : Wanted::Logits;
  };
  const auto any = [&](Wanted what) {
    for (int i = 0; i < count; ++i) {
      if (wanted(i) == what) return true;
    }
    return false;
  };
  const auto copy_logits = [&](int i) {
    const auto vocab = static_cast<std::size_t>(m.config.vocab_size);
    std::vector<float>& to = rows.logits[static_cast<std::size_t>(row_of(i))];
    to.resize(vocab);
    check(cudaMemcpyAsync(to.data(), m.work.logits + static_cast<std::size_t>(i) * vocab, vocab * sizeof(float),
                          cudaMemcpyDeviceToHost, m.stream.get()),
          "the logits");
  };

  auto* chosen = reinterpret_cast<std::int32_t*>(m.output.get());
  std::int32_t* drawn = chosen + m.shape.sequences;
  check(cudaMemcpyAsync(chosen, m.work.ids, static_cast<std::size_t>(count) * sizeof(std::int32_t),
                        cudaMemcpyDeviceToHost, m.stream.get()),
        "the chosen ids");
  const bool any_sampled = any(Wanted::Sampled);
  if (any_sampled || any(Wanted::Logits)) {
    if (finish_logits != nullptr) {
      finish_logits->launch(m.stream.get());
    } else {
      m.forward->finish_logits(count);
    }
  }
  if (any_sampled) sample_rows(m, *m.sampling, pass, first, count, batch, drawn);
  for (int i = 0; i < count; ++i) {
    if (wanted(i) == Wanted::Logits) copy_logits(i);
  }
  m.synchronize();

  bool left_to_host = false;
  for (int i = 0; i < count; ++i) {
    const Wanted what = wanted(i);
    if (what == Wanted::Largest) rows.ids[static_cast<std::size_t>(row_of(i))] = chosen[i];
    if (what != Wanted::Sampled) continue;
    if (drawn[i] == cuda::kTooManyCandidates) {
      copy_logits(i);
      left_to_host = true;
    } else {
      rows.ids[static_cast<std::size_t>(row_of(i))] = drawn[i];
    }
  }
  if (left_to_host) m.synchronize();
}

}  // namespace glyd::runner
