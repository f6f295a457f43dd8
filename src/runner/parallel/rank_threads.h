#pragma once
// A thread of its own for each rank, for as long as this object lives.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace glyd::runner {

class RankThreads {
 public:
  // Throws Error(Runtime) when the system starts fewer threads.
  explicit RankThreads(int ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Calls body(rank) on each rank's thread, all at the same time; returns, when all have ended, what each threw or
  // null.
  std::vector<std::exception_ptr> run(const std::function<void(int rank)>& body);

 private:
  void work(int rank);
  void end();

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::uint64_t runs_ = 0;   // started so far
  std::size_t running_ = 0;  // ranks that have not ended the present one
  bool stop_ = false;
  const std::function<void(int)>* body_ = nullptr;
  std::vector<std::exception_ptr> errors_;  // [ranks]
  std::vector<std::thread> threads_;
};

}  // namespace glyd::runner
