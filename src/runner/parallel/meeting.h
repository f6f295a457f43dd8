#pragma once
// What threads that work as ranks wait at: for each other, or for one to take what another has. Whoever waits can be
// sent away.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace glyd::runner {

// Where a fixed number of threads meet, over and over.
class Meeting {
 public:
  explicit Meeting(std::size_t threads) : threads_(threads) {}

  // Returns when all have come, or for none of them. Throws Aborted.
  void wait_for_all() { wait(true); }
  // The same after a wait_for_all(), for threads that look at each other's memory in between: all of them come, so an
  // abort can wait until they have.
  void wait_for_all_again() { wait(false); }

  void abort();
  void reset();  // makes it usable again, while no thread waits

 private:
  void wait(bool may_abort);

  const std::size_t threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::size_t arrived_ = 0;
  std::uint64_t meetings_ = 0;  // so far
  bool aborted_ = false;
};

// Bytes from one thread to another.
class Channel {
 public:
  // Return when the bytes have been copied from the one's memory into the other's; sizes have to agree. Throw Aborted.
  void send(std::span<const std::byte> bytes);
  void receive(std::span<std::byte> bytes);

  void abort();
  void reset();  // makes it usable again, while no thread waits

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::span<const std::byte> offer_;
  bool offered_ = false;
  bool aborted_ = false;
};

}  // namespace glyd::runner
