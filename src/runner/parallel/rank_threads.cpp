#include "runner/parallel/rank_threads.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace glyd::runner {

RankThreads::RankThreads(int ranks) : errors_(static_cast<std::size_t>(ranks)) {
  try {
    for (int rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { work(rank); });
  } catch (const std::system_error&) {
    const std::size_t started = threads_.size();
    end();
    fail(Code::Runtime, "the system starts threads for {} of {} ranks and no more; lower -tp or -pp", started, ranks);
  }
}

RankThreads::~RankThreads() { end(); }

void RankThreads::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::exception_ptr> RankThreads::run(const std::function<void(int)>& body) {
  std::unique_lock lock(mutex_);
  body_ = &body;
  running_ = threads_.size();
  ++runs_;
  start_.notify_all();
  done_.wait(lock, [&] { return running_ == 0; });
  return std::exchange(errors_, std::vector<std::exception_ptr>(threads_.size()));
}

void RankThreads::work(int rank) {
  std::unique_lock lock(mutex_);
  for (std::uint64_t seen = 0;; ++seen) {
    start_.wait(lock, [&] { return stop_ || runs_ != seen; });
    if (stop_) return;
    const std::function<void(int)>& body = *body_;
    lock.unlock();
    std::exception_ptr error;
    try {
      body(rank);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[static_cast<std::size_t>(rank)] = std::move(error);
    if (--running_ == 0) done_.notify_all();
  }
}

}  // namespace glyd::runner
