#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace glyd {
namespace {

// A decode step starts some hundred short loops; a worker spins this long for the next one before it sleeps.
constexpr int kSpins = 4000;

thread_local bool inside_loop = false;
thread_local int index_in_pool = 0;

// One spin, the `i`th of a wait. Now and then the core is offered to others: the thread waited for may be queued on
// this very core (more threads than cores, other programs), and would then be held up until the spinning ends.
void spin(int i) {
#if defined(__x86_64__)
  if (i % 64 != 63) return _mm_pause();
#endif
  std::this_thread::yield();
}

}  // namespace

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<std::uint64_t> generation{0};  // counts loops; workers wait for it to change
  std::atomic<int> running{0};               // workers that have not finished the present loop
  std::atomic<bool> stop{false};

  // The present loop.
  const std::function<void(std::size_t, std::size_t)>* body = nullptr;
  std::size_t count = 0, grain = 1;
  std::atomic<std::size_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    inside_loop = true;
    while (true) {
      const std::size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) break;
      try {
        (*body)(begin, std::min(count, begin + grain));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
    inside_loop = false;
  }

  void worker(int index) {
    index_in_pool = index;
    std::uint64_t seen = 0;
    while (true) {
      for (int i = 0; i < kSpins && generation.load(std::memory_order_acquire) == seen; ++i) spin(i);
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      work();
      running.fetch_sub(1, std::memory_order_release);
    }
  }

  void start_generation() {
    {
      const std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
  }

  void end() {
    stop.store(true, std::memory_order_release);
    start_generation();
    for (auto& t : workers) t.join();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads < 1 || threads > 1024) fail(Code::Usage, "--threads {}: expected 1 to 1024", threads);
  try {
    for (int i = 1; i < threads; ++i) state_->workers.emplace_back([s = state_.get(), i] { s->worker(i); });
  } catch (const std::system_error&) {
    const std::size_t started = state_->workers.size() + 1;
    state_->end();
    fail(Code::Runtime, "the system starts {} of {} threads and no more; lower --threads", started, threads);
  }
}

ThreadPool::~ThreadPool() { state_->end(); }

int ThreadPool::thread_index() { return index_in_pool; }

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
  State& s = *state_;
  grain = std::max<std::size_t>(1, grain);
  if (s.workers.empty() || inside_loop || count <= grain) {
    for (std::size_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain));
    return;
  }
  s.body = &body;
  s.count = count;
  s.grain = grain;
  s.next.store(0, std::memory_order_relaxed);
  s.error = nullptr;
  s.running.store(static_cast<int>(s.workers.size()), std::memory_order_relaxed);
  s.start_generation();
  s.work();
  for (int i = 0; s.running.load(std::memory_order_acquire) != 0; i = (i + 1) % 64) spin(i);
  if (s.error) std::rethrow_exception(s.error);
}

}  // namespace glyd
