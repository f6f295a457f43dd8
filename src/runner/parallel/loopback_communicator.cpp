#include "runner/parallel/loopback_communicator.h"

#include <algorithm>

#include "base/error.h"

namespace glyd::runner {

// An operation: show what one has, meet, work on what the others show, meet again before anybody takes it away. Between
// the two meetings nothing throws: no rank's memory may go while another one looks at it.
class LoopbackGroup::Rank : public Communicator {
 public:
  Rank(LoopbackGroup& group, int rank, int size, int stage)
      : group_(group),
        rank_(rank),
        size_(size),
        stage_(stage),
        offers_(std::span(group.offers_).subspan(index(stage * size), index(size))),
        meeting_(group.stages_[index(stage)]) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int stage() const override { return stage_; }
  int stages() const override { return static_cast<int>(group_.stages_.size()); }

  // Each rank adds one piece and hands the sum to all: a place is added once, so all get the same bits.
  void all_reduce_sum(std::span<float> values) override {
    mine().values = values;
    meeting_.wait_for_all();
    const bool same_size = std::all_of(offers_.begin(), offers_.end(),
                                       [&](const Offer& offer) { return offer.values.size() == values.size(); });
    if (same_size) {
      const std::size_t r = index(rank_), n = offers_.size();
      for (std::size_t i = values.size() * r / n; i < values.size() * (r + 1) / n; ++i) {
        float sum = offers_[0].values[i];
        for (std::size_t other = 1; other < n; ++other) sum += offers_[other].values[i];
        for (const Offer& offer : offers_) offer.values[i] = sum;
      }
    }
    meeting_.wait_for_all_again();
    if (!same_size) fail(Code::Runtime, "the ranks add vectors of different sizes");
  }

  void all_gather(std::span<const float> part, std::span<float> all) override {
    mine().part = part;
    meeting_.wait_for_all();
    std::size_t total = 0;
    for (const Offer& offer : offers_) total += offer.part.size();
    const bool fits = all.empty() || total == all.size();
    if (fits && !all.empty()) {
      auto to = all.begin();
      for (const Offer& offer : offers_) to = std::copy(offer.part.begin(), offer.part.end(), to);
    }
    meeting_.wait_for_all_again();
    if (!fits) fail(Code::Runtime, "rank {} has room for {} values, the ranks give {}", rank_, all.size(), total);
  }

  void send_to_next(std::span<const std::byte> bytes) override {
    group_.channels_.at(index(global_rank())).send(bytes);
  }

  void receive_from_previous(std::span<std::byte> bytes) override {
    group_.channels_.at(index(global_rank() - size_)).receive(bytes);
  }

  std::int64_t all_min(std::int64_t value) override {
    mine().number = value;
    group_.everyone_.wait_for_all();
    for (const Offer& offer : group_.offers_) value = std::min(value, offer.number);
    group_.everyone_.wait_for_all_again();
    return value;
  }

  void abort() override { group_.abort(); }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  Offer& mine() { return offers_[index(rank_)]; }

  LoopbackGroup& group_;
  const int rank_, size_, stage_;
  const std::span<Offer> offers_;  // of the stage
  Meeting& meeting_;               // of the stage
};

LoopbackGroup::LoopbackGroup(int ranks, int stages)
    : offers_(static_cast<std::size_t>(ranks * stages)),
      everyone_(offers_.size()),
      channels_(static_cast<std::size_t>(ranks * (stages - 1))) {
  for (int stage = 0; stage < stages; ++stage) stages_.emplace_back(static_cast<std::size_t>(ranks));
  for (int stage = 0; stage < stages; ++stage) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank, ranks, stage));
  }
}

void LoopbackGroup::reset() {
  for (Meeting& stage : stages_) stage.reset();
  everyone_.reset();
  for (Channel& channel : channels_) channel.reset();
}

void LoopbackGroup::abort() {
  for (Meeting& stage : stages_) stage.abort();
  everyone_.abort();
  for (Channel& channel : channels_) channel.abort();
}

}  // namespace glyd::runner
