#include "engine/fake_runner.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "runner/logits.h"
#include "runner/validate_batch.h"

namespace glyd::test {

namespace {

void expect(bool ok, const char* what, std::int64_t sequence, std::int64_t position) {
  if (!ok)
    throw std::logic_error(
        fmt::format("fake runner: {}: sequence {} of the batch, position {}", what, sequence, position));
}

std::uint64_t hash(std::uint64_t a, std::uint64_t b) {
  std::uint64_t h = (a ^ (b + 1) * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53u;
  return h ^ (h >> 29);
}

// The seed whose step 0 has this random number: the finaliser of SplitMix64 run backwards, twice.
std::uint64_t seed_of(std::uint64_t random) {
  const auto unmix = [](std::uint64_t z) {
    const auto inverse = [](std::uint64_t odd) {  // modulo 2^64, by Newton
      std::uint64_t x = odd;
      for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
      return x;
    };
    z ^= z >> 31 ^ z >> 62;
    z *= inverse(0x94d049bb133111ebu);
    z ^= z >> 27 ^ z >> 54;
    z *= inverse(0xbf58476d1ce4e5b9u);
    return z ^ z >> 30 ^ z >> 60;
  };
  return unmix(unmix(random) - 0x9e3779b97f4a7c15u);
}

}  // namespace

runner::StepResult FakeRunner::step(const runner::Batch& batch) {
  if (before_step) before_step(steps.size());
  const auto at = [](const auto& v, std::int64_t i) { return v.at(static_cast<std::size_t>(i)); };
  expect(batch.positions.size() == batch.token_ids.size() && batch.slot_mapping.size() == batch.token_ids.size() &&
             batch.query_start.size() == batch.context_lengths.size() + 1 && batch.query_start.front() == 0 &&
             batch.query_start.back() == batch.tokens() &&
             batch.block_tables.size() == batch.context_lengths.size() * static_cast<std::size_t>(batch.max_blocks),
         "array sizes", 0, 0);
  runner::StepResult result;
  std::vector<Chunk> chunks;
  std::set<std::int32_t> blocks_used;
  std::size_t next_row = 0;
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const std::int32_t* table = batch.block_tables.data() + s * batch.max_blocks;
    const std::size_t first_row = next_row;
    bool ended = false;
    for (std::int32_t i = 0; i < batch.max_blocks; ++i) {
      ended = ended || table[i] < 0;
      expect(table[i] < kv_blocks() && (ended ? table[i] == -1 : table[i] >= 0), "block table", s, i);
      if (!ended) expect(blocks_used.insert(table[i]).second, "block held twice", s, i);
    }
    const std::int32_t begin = at(batch.query_start, s), end = at(batch.query_start, s + 1);
    expect(end > begin, "no tokens", s, 0);
    for (std::int32_t t = begin; t < end; ++t) {
      const std::int32_t position = at(batch.positions, t);
      expect(position == at(batch.positions, begin) + (t - begin), "positions not in order", s, position);
      const auto slot_of = [&](std::int32_t p) {
        expect(p >= 0 && p / runner::kBlockSize < batch.max_blocks && table[p / runner::kBlockSize] >= 0, "no block", s,
               p);
        return table[p / runner::kBlockSize] * runner::kBlockSize + p % runner::kBlockSize;
      };
      expect(at(batch.slot_mapping, t) == slot_of(position), "slot", s, position);

      // As attention does: every earlier token is read back from the cache.
      std::uint64_t history = 0;
      bool nan = at(batch.token_ids, t) == kNanToken;
      for (std::int32_t p = 0; p < position; ++p) {
        const Slot& slot = at(slots_, slot_of(p));
        history = hash(history, static_cast<std::uint64_t>(slot.token));
        expect(slot.position == p && slot.history == history, "not this sequence's token in the cache", s, p);
        nan = nan || slot.token == kNanToken;
      }
      const std::int32_t token = at(batch.token_ids, t);
      history = hash(history, static_cast<std::uint64_t>(token));
      slots_.at(static_cast<std::size_t>(slot_of(position))) = {token, position, history};

      if (next_row < batch.logits_rows.size() && batch.logits_rows[next_row] == t) {
        ++next_row;
        for (std::int32_t id = 0; id < kVocab; ++id) {
          const auto bits = hash(history, static_cast<std::uint64_t>(id) + 1000);
          result.logits.push_back(nan ? std::numeric_limits<float>::quiet_NaN()
                                      : static_cast<float>(bits >> 40) / 2097152.0f);
        }
        result.logits[result.logits.size() - 1] = 100.0f;              // kPadding
        if (!nan) result.logits[result.logits.size() - 2] = -1000.0f;  // kNanToken
      }
    }
    expect(at(batch.context_lengths, s) == at(batch.positions, end - 1) + 1, "context length", s, end);
    chunks.push_back({at(slots_, table[0] * runner::kBlockSize).token, at(batch.positions, begin),
                      at(batch.context_lengths, s), next_row > first_row});
  }
  expect(next_row == batch.logits_rows.size(), "rows of logits", 0, 0);
  steps.push_back(chunks);
  expect(samples_ids || batch.sampling.empty(), "requests that nobody answers", 0, 0);
  if (chooses_ids && !(batch.greedy.empty() && batch.sampling.empty())) {
    runner::validate_sampling(batch, {.vocab_size = kVocab, .kv_blocks = kv_blocks()});
    expect(batch.greedy.empty() || batch.greedy.size() == batch.logits_rows.size(), "greedy rows", 0, 0);
    choose_ids(batch, result);
  }
  rows_of_logits += static_cast<std::int64_t>(result.logits.size() / kVocab);
  auto& rows = result.logits;
  if (result.ids.empty()) {
    rows.resize(rows.size() - rows_too_few * kVocab);
  } else {
    result.ids.resize(result.ids.size() - rows_too_few);
  }
  return result;
}

void FakeRunner::choose_ids(const runner::Batch& batch, runner::StepResult& result) {
  constexpr std::int32_t kForbidden[] = {kPadding};
  std::vector<float> kept;
  for (std::size_t i = 0; i < batch.logits_rows.size(); ++i) {
    const std::span<float> row = std::span(result.logits).subspan(i * kVocab, kVocab);
    std::int32_t chosen = runner::kNoId;
    if (!batch.greedy.empty() && batch.greedy[i] != 0) {
      chosen = runner::choose_id(row, kForbidden);
    } else if (!batch.sampling.empty() && batch.sampling[i]) {
      chosen = draw(batch, *batch.sampling[i], row);
    }
    if (chosen == runner::kNoId) kept.insert(kept.end(), row.begin(), row.end());
    result.ids.push_back(wrong_id.value_or(chosen));
  }
  result.logits = std::move(kept);
}

// By engine::Sampler, from nothing but the request.
std::int32_t FakeRunner::draw(const runner::Batch& batch, const runner::RowSampling& how, std::span<float> logits) {
  if (leaves_every > 0 && ++requests_seen_ % leaves_every == 0) return runner::kNoId;
  ++ids_drawn;
  constexpr std::int32_t kForbidden[] = {kPadding};
  if (const std::int32_t largest = runner::choose_id(logits, kForbidden); largest < 0) return largest;
  std::vector<text::TokenId> prompt, output;
  std::set<std::int32_t> distinct;
  for (std::int32_t i = how.touched; i < how.touched_end; ++i) {
    const runner::TouchedId& touched = batch.touched.at(static_cast<std::size_t>(i));
    expect(distinct.insert(touched.id).second, "an id touched twice", 0, i);
    prompt.push_back(touched.id);
    output.insert(output.end(), static_cast<std::size_t>(touched.count), touched.id);
  }
  const engine::SamplingParams params{.temperature = how.temperature,
                                      .top_k = how.top_k,
                                      .top_p = how.top_p,
                                      .min_p = how.min_p,
                                      .repetition_penalty = how.repetition_penalty,
                                      .frequency_penalty = how.frequency_penalty,
                                      .presence_penalty = how.presence_penalty,
                                      .seed = seed_of(how.random)};
  return engine::Sampler(fake_options(1).allowed).sample(logits, params, prompt, output, 0);
}

engine::EngineOptions fake_options(std::int64_t context, const engine::SchedulerOptions& scheduler) {
  engine::EngineOptions options{scheduler, context, std::vector<bool>(kVocab, true)};
  options.allowed[kPadding] = false;
  return options;
}

void collect(const std::vector<engine::Output>& outputs, std::map<engine::SequenceId, Ending>& endings) {
  for (const auto& output : outputs) {
    Ending& ending = endings[output.id];
    if (ending.finish) throw std::logic_error(fmt::format("output of sequence {} after its end", output.id));
    if (output.token) ending.tokens.push_back(*output.token);
    ending.finish = output.finish;
    ending.error = output.error;
  }
}

std::map<engine::SequenceId, Ending> run_to_end(engine::Engine& engine) {
  std::map<engine::SequenceId, Ending> endings;
  for (int steps = 0; !engine.idle(); ++steps) {
    if (steps > 100000) throw std::logic_error("the engine does not come to an end");
    collect(engine.step(), endings);
  }
  return endings;
}

Ending alone(const engine::Request& request, std::int64_t context) {
  FakeRunner runner(context / runner::kBlockSize + 1);
  engine::Engine engine(runner, fake_options(context));
  const auto id = engine.add(request);
  return run_to_end(engine).at(id);
}

}  // namespace glyd::test
