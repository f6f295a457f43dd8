#include "base/thread_pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

#include "base/error.h"

using namespace glyd;

TEST_CASE("a parallel loop covers each index once, for any grain and number of threads", "[base]") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    CHECK(pool.size() == threads);
    for (const std::size_t count : {0, 1, 7, 1000}) {
      for (const std::size_t grain : {1, 3, 5000}) {
        std::vector<std::atomic<int>> seen(count);
        pool.parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
          CHECK(end - begin <= grain);
          for (std::size_t i = begin; i < end; ++i) ++seen[i];
        });
        for (const auto& s : seen) REQUIRE(s == 1);
      }
    }
  }
}

TEST_CASE("an exception inside a parallel loop reaches the caller, and the pool goes on", "[base]") {
  ThreadPool pool(3);
  CHECK_THROWS_AS(pool.parallel_for(100, 1,
                                    [](std::size_t i, std::size_t) {
                                      if (i == 42) throw std::runtime_error("x");
                                    }),
                  std::runtime_error);
  std::atomic<int> sum{0};
  pool.parallel_for(10, 1, [&](std::size_t i, std::size_t) { sum += static_cast<int>(i); });
  CHECK(sum == 45);
}

TEST_CASE("a loop inside a loop runs and ends", "[base]") {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  pool.parallel_for(
      4, 1, [&](std::size_t, std::size_t) { pool.parallel_for(4, 1, [&](std::size_t, std::size_t) { ++sum; }); });
  CHECK(sum == 16);
}

TEST_CASE("a pool of no threads is refused by name", "[base]") { CHECK_THROWS_AS(ThreadPool(0), Error); }
