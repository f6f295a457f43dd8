#include "runner/parallel/loopback_communicator.h"

#include <algorithm>

#include "base/error.h"

namespace glyd::runner {

// An operation: show what one has, meet, work on what the others show, meet again before anybody takes it away. Between
// the two meetings nothing throws: no rank's memory may go while another one looks at it.
class LoopbackGroup::Rank : public Communicator {
 public:
  Rank(LoopbackGroup& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.offers_.size()); }

  // Each rank adds one piece and hands the sum to all: a place is added once, so all get the same bits.
  void all_reduce_sum(std::span<float> values) override {
    mine().values = values;
    group_.wait_for_all();
    const std::vector<Offer>& offers = group_.offers_;
    const bool same_size = std::all_of(offers.begin(), offers.end(),
                                       [&](const Offer& offer) { return offer.values.size() == values.size(); });
    if (same_size) {
      const std::size_t r = static_cast<std::size_t>(rank_), n = offers.size();
      for (std::size_t i = values.size() * r / n; i < values.size() * (r + 1) / n; ++i) {
        float sum = offers[0].values[i];
        for (std::size_t other = 1; other < n; ++other) sum += offers[other].values[i];
        for (const Offer& offer : offers) offer.values[i] = sum;
      }
    }
    group_.wait_for_all();
    if (!same_size) fail(Code::Runtime, "the ranks add vectors of different sizes");
  }

  void all_gather(std::span<const float> part, std::span<float> all) override {
    mine().part = part;
    group_.wait_for_all();
    std::size_t total = 0;
    for (const Offer& offer : group_.offers_) total += offer.part.size();
    const bool fits = all.empty() || total == all.size();
    if (fits && !all.empty()) {
      auto to = all.begin();
      for (const Offer& offer : group_.offers_) to = std::copy(offer.part.begin(), offer.part.end(), to);
    }
    group_.wait_for_all();
    if (!fits) fail(Code::Runtime, "rank {} has room for {} values, the ranks give {}", rank_, all.size(), total);
  }

  std::int64_t all_min(std::int64_t value) override {
    mine().number = value;
    group_.wait_for_all();
    for (const Offer& offer : group_.offers_) value = std::min(value, offer.number);
    group_.wait_for_all();
    return value;
  }

  void abort() override { group_.abort(); }

 private:
  Offer& mine() { return group_.offers_[static_cast<std::size_t>(rank_)]; }

  LoopbackGroup& group_;
  const int rank_;
};

LoopbackGroup::LoopbackGroup(int ranks) : offers_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
}

void LoopbackGroup::reset() {
  const std::lock_guard lock(mutex_);
  arrived_ = 0;
  aborted_ = false;
}

void LoopbackGroup::wait_for_all() {
  std::unique_lock lock(mutex_);
  if (aborted_) throw Aborted();
  if (++arrived_ == ranks_.size()) {
    arrived_ = 0;
    ++meetings_;
    wake_.notify_all();
    return;
  }
  const std::uint64_t meeting = meetings_;
  wake_.wait(lock, [&] { return meetings_ != meeting || aborted_; });
  if (meetings_ == meeting) throw Aborted();
}

void LoopbackGroup::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  wake_.notify_all();
}

}  // namespace glyd::runner
