#pragma once
// A fixed set of threads for data-parallel loops. The split of work never changes a result: callers write disjoint
// outputs.

#include <cstddef>
#include <functional>
#include <memory>

namespace glyd {

// Threads the machine offers this process (its CPU affinity mask), at least 1.
int available_threads();

class ThreadPool {
 public:
  // `threads` counts the calling thread: 1 starts none. Throws Error(Usage) outside 1..1024,
  // Error(Runtime) when the system starts fewer.
  explicit ThreadPool(int threads = available_threads());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Which thread of its pool's loop the caller is: 0 (the one that started the loop, or any outside loops) .. size()
  // - 1.
  static int thread_index();

  // Calls body(begin, end) over disjoint ranges that cover [0, count), each at most `grain` long, on all threads, and
  // returns when all are done. Ranges are handed out dynamically. The first exception is rethrown here. One loop at a
  // time; a loop started from inside a body runs on its own thread alone.
  void parallel_for(std::size_t count, std::size_t grain, const std::function<void(std::size_t, std::size_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glyd
