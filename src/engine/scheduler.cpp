#include "engine/scheduler.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"

namespace glyd::engine {

namespace {

void require_positive(const char* name, std::int64_t value) {
  if (value < 1) fail(Code::Usage, "{} is {}: expected 1 or more", name, value);
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, BlockManager& blocks) : options_(options), blocks_(blocks) {
  require_positive("the number of sequences at a time", options.max_sequences);
  require_positive("the prefill chunk", options.prefill_chunk);
  require_positive("the number of tokens a step", options.max_batch_tokens);
  // Written as a difference: the sum of two hostile numbers could overflow.
  if (options.max_batch_tokens - options.prefill_chunk < options.max_sequences - 1) {
    fail(Code::Usage,
         "{} tokens a step are too few for a prefill chunk of {} beside {} sequences: raise them to the chunk + the "
         "sequences - 1, or lower one of these",
         options.max_batch_tokens, options.prefill_chunk, options.max_sequences);
  }
}

void Scheduler::add(Sequence* sequence) { waiting_.push_back(sequence); }

void Scheduler::remove(Sequence* sequence) {
  std::erase(waiting_, sequence);
  std::erase(running_, sequence);
  blocks_.release(*sequence);
}

std::int64_t Scheduler::next_tokens(const Sequence& sequence) const {
  const std::int64_t begin = sequence.computed;
  const std::int64_t to_border = options_.prefill_chunk - begin % options_.prefill_chunk;
  return std::min(to_border, sequence.length() - begin);
}

std::vector<Scheduled> Scheduler::schedule() {
  if (options_.prompts_apart) {
    std::vector<Scheduled> step = prompts(options_.max_batch_tokens);
    return step.empty() ? decoding() : step;
  }
  // Decoding sequences take one token each, so what they leave to prompts is known before any block is asked for.
  const std::int64_t budget =
      options_.max_batch_tokens -
      std::count_if(running_.begin(), running_.end(), [](const Sequence* s) { return s->decoding(); });
  std::vector<Scheduled> step = decoding();
  const std::vector<Scheduled> chunks = prompts(budget);
  step.insert(step.end(), chunks.begin(), chunks.end());
  return step;
}

// Oldest first: whoever is preempted for a block is newer than the one that needs it, hence not in the step yet.
std::vector<Scheduled> Scheduler::decoding() {
  std::vector<Scheduled> step;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence* s = running_[i];
    if (s->decoding() && reserve_or_preempt(*s)) step.push_back({s, next_tokens(*s)});
  }
  return step;
}

std::vector<Scheduled> Scheduler::prompts(std::int64_t budget) {
  std::vector<Scheduled> step;
  for (Sequence* s : running_) {
    const std::int64_t tokens = next_tokens(*s);
    if (s->decoding() || tokens > budget) continue;
    step.push_back({s, tokens});
    budget -= tokens;
  }
  // Whoever was preempted just now is at the head and finds fewer blocks free than it gave back: nobody is admitted
  // then.
  while (!waiting_.empty() && static_cast<std::int64_t>(running_.size()) < options_.max_sequences) {
    Sequence* s = waiting_.front();
    const std::int64_t tokens = next_tokens(*s);
    if (tokens > budget || !blocks_.reserve(*s, s->length())) break;
    waiting_.pop_front();
    running_.push_back(s);
    step.push_back({s, tokens});
    budget -= tokens;
  }
  return step;
}

// The block for the next token of a decoding sequence; false when the sequence was itself the newest and had to go.
bool Scheduler::reserve_or_preempt(Sequence& sequence) {
  while (!blocks_.reserve(sequence, sequence.length())) {
    const bool itself = running_.back() == &sequence;
    preempt_newest();
    if (itself) return false;
  }
  return true;
}

void Scheduler::preempt_newest() {
  Sequence* s = running_.back();
  waiting_.push_front(s);
  running_.pop_back();
  blocks_.release(*s);
  s->computed = 0;
  ++preemptions_;
}

}  // namespace glyd::engine
