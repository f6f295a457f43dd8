#include "base/thread_pool.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take address space of their own
TEST_CASE("threads that the system does not start are an error, not the end of the process", "[base]") {
  const pid_t child = fork();
  if (child == 0) {  // stacks of 8 MB for 512 threads do not fit
    const rlimit limit{1u << 30, 1u << 30};
    setrlimit(RLIMIT_AS, &limit);
    int code = 1;
    try {
      glyd::ThreadPool pool(512);
    } catch (const glyd::Error& e) {
      code = e.code() == glyd::Code::Runtime && std::string(e.what()).find("--threads") != std::string::npos ? 0 : 2;
    }
    _exit(code);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif
