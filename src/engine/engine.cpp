#include "engine/engine.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/timing.h"

namespace glyd::engine {

using text::TokenId;

namespace {

// How the runner is to draw the sequence's next token. Ids that penalties apply to are appended to `touched`.
runner::RowSampling sampling_request(Sequence& sequence, std::vector<runner::TouchedId>& touched) {
  const SamplingParams& p = sequence.request.sampling;
  runner::RowSampling row;
  row.temperature = p.temperature;
  row.top_k = p.top_k;
  row.top_p = p.top_p;
  row.min_p = p.min_p;
  row.repetition_penalty = p.repetition_penalty;
  row.frequency_penalty = p.frequency_penalty;
  row.presence_penalty = p.presence_penalty;
  row.random = random_bits(p.seed, sequence.output.size());
  if (!has_penalties(p)) return row;

  const std::int64_t prompt = std::ssize(sequence.request.prompt);
  std::int64_t& seen = sequence.touched_tokens;
  if (p.repetition_penalty == 1) seen = std::max(seen, prompt);  // the others look at the output alone
  for (; seen < sequence.length(); ++seen) sequence.touched.add(sequence.token(seen), seen >= prompt);
  const std::vector<runner::TouchedId>& ids = sequence.touched.ids();
  row.touched = static_cast<std::int32_t>(touched.size());
  touched.insert(touched.end(), ids.begin(), ids.end());
  row.touched_end = static_cast<std::int32_t>(touched.size());
  return row;
}

}  // namespace

Engine::Engine(runner::Runner& runner, EngineOptions options)
    : runner_(runner),
      options_(std::move(options)),
      blocks_(runner.kv_blocks(), runner::kBlockSize),
      scheduler_(options_.scheduler, blocks_),
      sampler_(options_.allowed),
      // The token made last is never run, so it needs no place in the cache.
      max_length_(std::min(options_.context, blocks_.blocks() * blocks_.block_size() + 1)) {
  if (options_.context < 1) fail(Code::Usage, "the context is {} tokens: expected 1 or more", options_.context);
}

void Engine::check_prompt(std::span<const TokenId> prompt) const {
  if (prompt.empty()) fail(Code::Usage, "the prompt is empty: expected at least one token");
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const std::int64_t id = prompt[i];
    if (id < 0 || id >= vocab_size()) {
      fail(Code::Usage, "token {} of the prompt is {}: expected an id from 0 to {}", i, id, vocab_size() - 1);
    }
    if (!options_.allowed[static_cast<std::size_t>(id)]) {
      fail(Code::Usage, "token {} of the prompt is {}: this id has no token, it pads the model's vocabulary of {}", i,
           id, vocab_size());
    }
  }
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length >= options_.context) {
    fail(Code::Usage, "the prompt has {} tokens, and a context of {} leaves no room for an answer: {}", length,
         options_.context, options_.too_long);
  }
  if (length >= max_length_) {
    fail(Code::Usage,
         "the prompt has {} tokens and needs {} KV blocks of {} tokens, there are {}: shorten it or allow more memory",
         length, blocks_.blocks_for(length), blocks_.block_size(), blocks_.blocks());
  }
}

SequenceId Engine::add(Request request) {
  check_prompt(request.prompt);
  check(request.sampling);
  if (request.max_tokens < 0) {
    fail(Code::Usage, "{} tokens are to be made: expected 0 or more", request.max_tokens);
  }
  const bool runs = request.max_tokens > 0;
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->request = std::move(request);
  Sequence* s = sequence.get();
  sequences_.emplace(s->id, std::move(sequence));
  if (runs) {
    scheduler_.add(s);
  } else {
    nothing_to_do_.push_back(s->id);
  }
  return s->id;
}

void Engine::cancel(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  std::erase(nothing_to_do_, id);
  end(*it->second);
}

// Takes a sequence out of everything; it is gone afterwards.
void Engine::end(Sequence& sequence) {
  scheduler_.remove(&sequence);
  sequences_.erase(sequence.id);
}

std::vector<Output> Engine::end_empty_requests() {
  std::vector<Output> outputs;
  for (const SequenceId id : nothing_to_do_) {
    outputs.push_back({id, std::nullopt, FinishReason::Length, {}});
    end(*sequences_.at(id));
  }
  nothing_to_do_.clear();
  return outputs;
}

std::vector<Output> Engine::step() {
  if (!nothing_to_do_.empty()) return end_empty_requests();

  const auto start = Clock::now();
  const std::vector<Scheduled> scheduled = scheduler_.schedule();
  stats_.preemptions = scheduler_.preemptions();
  if (scheduled.empty()) return {};

  std::int64_t prompt_tokens = 0, generated = 0;
  for (const Scheduled& s : scheduled) {
    if (!s.sequence->decoding()) prompt_tokens += s.tokens;
  }
  runner::Batch batch = make_batch(scheduled);
  if (!options_.on_logits) ask_for_ids(scheduled, batch);
  runner::StepResult result = run(scheduled, batch);

  const auto vocab = static_cast<std::size_t>(vocab_size());
  std::size_t row = 0, logits_row = 0;
  std::vector<Output> outputs;
  for (const Scheduled& s : scheduled) {
    Sequence& sequence = *s.sequence;
    if (sequence.computed < sequence.length()) continue;  // a chunk of its prompt, no logits asked for
    const std::int32_t chosen = result.ids.empty() ? runner::kNoId : result.ids[row];
    std::span<float> logits;
    if (chosen == runner::kNoId) logits = std::span(result.logits).subspan(logits_row++ * vocab, vocab);
    ++row;
    if (options_.on_logits) options_.on_logits(sequence.id, logits);
    Output output = next_output(sequence, chosen, logits);
    if (output.token) {
      sequence.output.push_back(*output.token);
      ++generated;
      if (std::ssize(sequence.output) >= sequence.request.max_tokens) {
        output.finish = FinishReason::Length;
      } else if (sequence.length() >= max_length_) {
        output.finish = FinishReason::Context;
      }
    }
    if (output.finish) end(sequence);
    outputs.push_back(std::move(output));
  }

  (prompt_tokens > 0 ? stats_.prompt_seconds : stats_.decode_seconds) += seconds_since(start);
  if (prompt_tokens == 0) stats_.decode_tokens += generated;
  stats_.prompt_tokens += prompt_tokens;
  stats_.generated_tokens += generated;
  ++stats_.steps;
  return outputs;
}

// The id that the runner chose, or samples from the logits; whatever goes wrong with one row is the end of its sequence
// alone.
Output Engine::next_output(const Sequence& sequence, std::int32_t chosen, std::span<float> logits) const {
  const Request& request = sequence.request;
  try {
    const TokenId token = chosen == runner::kNoId ? sampler_.sample(logits, request.sampling, request.prompt,
                                                                    sequence.output, std::ssize(sequence.output))
                                                  : chosen_token(sequence, chosen);
    if (std::ranges::find(request.stop_ids, token) != request.stop_ids.end()) {
      return {sequence.id, std::nullopt, FinishReason::Stop, {}};
    }
    return {sequence.id, token, std::nullopt, {}};
  } catch (const std::exception& e) {
    return {sequence.id, std::nullopt, FinishReason::Error, e.what()};
  }
}

TokenId Engine::chosen_token(const Sequence& sequence, std::int32_t chosen) const {
  const std::int64_t step = std::ssize(sequence.output);
  if (chosen == runner::kNotFinite) {
    fail(Code::Runtime,
         "step {}: a logit is NaN or infinite, expected finite numbers: the weights are damaged or the numbers "
         "overflowed",
         step);
  }
  if (chosen == runner::kAllMasked) {
    fail(Code::Runtime, "step {}: the logits of all {} tokens are -inf or masked, expected at least one finite number",
         step, vocab_size());
  }
  if (chosen < 0 || chosen >= vocab_size() || !options_.allowed[static_cast<std::size_t>(chosen)]) {
    fail(Code::Runtime, "step {}: {} chose id {}, which has no token", step, runner_.device_name(), chosen);
  }
  return chosen;
}

// Asks for ids in place of logits: where a sequence takes the largest logit anyway, and where the runner samples.
void Engine::ask_for_ids(const std::vector<Scheduled>& scheduled, runner::Batch& batch) const {
  const bool samples = runner_.samples();
  for (const auto& [sequence, tokens] : scheduled) {
    if (sequence->computed + tokens != sequence->length()) continue;
    const bool largest = takes_largest(sequence->request.sampling);
    batch.greedy.push_back(largest ? 1 : 0);
    if (!samples) continue;
    batch.sampling.emplace_back();
    if (!largest) batch.sampling.back() = sampling_request(*sequence, batch.touched);
  }
  const auto asked = [](const std::optional<runner::RowSampling>& row) { return row.has_value(); };
  if (std::ranges::find(batch.greedy, 1) == batch.greedy.end()) batch.greedy.clear();
  if (std::ranges::none_of(batch.sampling, asked)) batch.sampling.clear();
}

// Takes the step and counts its tokens as computed. The result has an id or a row of logits for each sequence whose
// tokens have now all run, in the order of `scheduled`. Nothing changes when the runner throws.
runner::StepResult Engine::run(const std::vector<Scheduled>& scheduled, const runner::Batch& batch) {
  if (options_.on_batch) options_.on_batch(batch);
  runner::StepResult result = runner_.step(batch);
  std::size_t rows = batch.logits_rows.size();
  if (!result.ids.empty()) {
    const auto asked = [&](std::size_t i) {
      return (!batch.greedy.empty() && batch.greedy[i] != 0) || (!batch.sampling.empty() && batch.sampling[i]);
    };
    bool fits = result.ids.size() == rows;
    for (std::size_t i = 0; fits && i < rows; ++i) fits = result.ids[i] == runner::kNoId || asked(i);
    if (!fits) fail(Code::Runtime, "{} returned ids for rows that asked for logits", runner_.device_name());
    rows = static_cast<std::size_t>(std::ranges::count(result.ids, runner::kNoId));
  }
  if (result.logits.size() != rows * options_.allowed.size()) {
    fail(Code::Runtime, "{} returned {} logits for {} rows of {}: the model and the vocabulary do not belong together",
         runner_.device_name(), result.logits.size(), rows, options_.allowed.size());
  }
  for (const Scheduled& s : scheduled) s.sequence->computed += s.tokens;
  return result;
}

runner::Batch Engine::make_batch(const std::vector<Scheduled>& scheduled) const {
  const auto narrow = [](auto value) { return static_cast<std::int32_t>(value); };
  const std::int64_t block_size = blocks_.block_size();
  runner::Batch batch;
  batch.query_start.push_back(0);
  for (const Scheduled& s : scheduled) {
    batch.max_blocks = std::max(batch.max_blocks, narrow(s.sequence->block_table.size()));
  }
  for (const auto& [sequence, tokens] : scheduled) {
    const std::vector<std::int32_t>& table = sequence->block_table;
    const std::int64_t end = sequence->computed + tokens;
    for (std::int64_t i = sequence->computed; i < end; ++i) {
      batch.token_ids.push_back(sequence->token(i));
      batch.positions.push_back(narrow(i));
      batch.slot_mapping.push_back(
          narrow(table[static_cast<std::size_t>(i / block_size)] * block_size + i % block_size));
    }
    batch.query_start.push_back(batch.tokens());
    batch.context_lengths.push_back(narrow(end));
    batch.block_tables.insert(batch.block_tables.end(), table.begin(), table.end());
    batch.block_tables.resize(batch.context_lengths.size() * static_cast<std::size_t>(batch.max_blocks), -1);
    if (end == sequence->length()) batch.logits_rows.push_back(batch.tokens() - 1);
  }
  return batch;
}

std::vector<float> Engine::next_logits(std::span<const TokenId> prompt) {
  if (!idle()) fail(Code::Usage, "the logits of a prompt were asked for while {} sequences run", sequences_.size());
  check_prompt(prompt);
  Sequence sequence;
  sequence.request.prompt.assign(prompt.begin(), prompt.end());
  // Gives the blocks back also when the runner throws.
  struct Lease {
    BlockManager& blocks;
    Sequence& sequence;
    ~Lease() { blocks.release(sequence); }
  } lease{blocks_, sequence};
  blocks_.reserve(sequence, sequence.length());

  std::vector<float> logits;
  while (sequence.computed < sequence.length()) {
    const std::vector<Scheduled> chunk = {{&sequence, scheduler_.next_tokens(sequence)}};
    logits = run(chunk, make_batch(chunk)).logits;
  }
  sampler_.mask(logits, 0);
  return logits;
}

}  // namespace glyd::engine
