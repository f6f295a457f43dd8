#include "runner/parallel/meeting.h"

#include <algorithm>

#include "base/error.h"
#include "runner/parallel/communicator.h"

namespace glyd::runner {

void Meeting::wait(bool may_abort) {
  std::unique_lock lock(mutex_);
  if (aborted_ && may_abort) throw Aborted();
  if (++arrived_ == threads_) {
    arrived_ = 0;
    ++meetings_;
    wake_.notify_all();
    return;
  }
  const std::uint64_t meeting = meetings_;
  wake_.wait(lock, [&] { return meetings_ != meeting || (aborted_ && may_abort); });
  if (meetings_ == meeting) throw Aborted();
}

void Meeting::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  wake_.notify_all();
}

void Meeting::reset() {
  const std::lock_guard lock(mutex_);
  arrived_ = 0;
  aborted_ = false;
}

void Channel::send(std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  if (aborted_) throw Aborted();
  offer_ = bytes;
  offered_ = true;
  wake_.notify_all();
  wake_.wait(lock, [&] { return !offered_ || aborted_; });
  if (offered_) throw Aborted();
}

// Copies with the mutex held, so the sender stays until that is done.
void Channel::receive(std::span<std::byte> bytes) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return offered_ || aborted_; });
  if (aborted_) throw Aborted();
  if (offer_.size() != bytes.size())
    fail(Code::Runtime, "a stage sends {} bytes, the next one expects {}", offer_.size(), bytes.size());
  std::copy(offer_.begin(), offer_.end(), bytes.begin());
  offered_ = false;
  wake_.notify_all();
}

void Channel::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  wake_.notify_all();
}

void Channel::reset() {
  const std::lock_guard lock(mutex_);
  offer_ = {};
  offered_ = false;
  aborted_ = false;
}

}  // namespace glyd::runner
