// Ranks as threads: sums with the same bits everywhere, and no rank that waits for one that has failed.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runner/parallel/loopback_communicator.h"

namespace glyd::runner {
namespace {

// Runs body(communicator) on a thread for each rank of all stages; what each threw, if anything.
std::vector<std::exception_ptr> run(LoopbackGroup& group, int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator& c = group.communicator(rank);
      try {
        body(c);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        c.abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

bool none(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (error) return false;
  }
  return true;
}

TEST_CASE("ranks are added in their order, and all have the same bits", "[runner]") {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
      std::mt19937 engine(static_cast<unsigned>(n) + 7);
      std::normal_distribution<float> normal;
      std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks), std::vector<float>(n));
      for (auto& v : values)
        for (float& x : v) x = std::ldexp(normal(engine), static_cast<int>(engine() % 40) - 20);  // order matters
      std::vector<float> want = values[0];
      for (std::size_t r = 1; r < values.size(); ++r)
        for (std::size_t i = 0; i < n; ++i) want[i] += values[r][i];

      LoopbackGroup group(ranks);
      const std::vector<std::vector<float>> given = values;
      REQUIRE(none(run(group, ranks, [&](Communicator& c) {
        auto& mine = values[static_cast<std::size_t>(c.rank())];
        for (int i = 0; i < 50; ++i) {
          mine = given[static_cast<std::size_t>(c.rank())];
          c.all_reduce_sum(mine);
        }
      })));
      for (const auto& v : values) CHECK((n == 0 || std::memcmp(v.data(), want.data(), n * sizeof(float)) == 0));
    }
  }
}

TEST_CASE("parts of different sizes come together in order, for those who want them", "[runner]") {
  constexpr int kRanks = 4;
  LoopbackGroup group(kRanks);
  std::vector<std::vector<float>> all(kRanks);
  std::vector<std::int64_t> least(kRanks);
  REQUIRE(none(run(group, kRanks, [&](Communicator& c) {
    if (c.size() != kRanks) throw std::logic_error("size");
    const auto r = static_cast<std::size_t>(c.rank());
    const std::vector<float> part(3 - r, static_cast<float>(r));  // 3, 2, 1, none
    if (r % 2 == 0) all[r].resize(6);
    c.all_gather(part, all[r]);
    least[r] = c.all_min(static_cast<std::int64_t>(1) << (50 - r));
  })));
  const std::vector<float> want{0, 0, 0, 1, 1, 2};
  CHECK(all[0] == want);
  CHECK(all[1].empty());
  CHECK(all[2] == want);
  for (const std::int64_t x : least) CHECK(x == std::int64_t{1} << 47);
}

TEST_CASE("a rank that fails ends the others' waits, before and after", "[runner]") {
  constexpr int kRanks = 3;
  LoopbackGroup group(kRanks);
  for (int failing = 0; failing < kRanks; ++failing) {
    group.reset();
    const auto errors = run(group, kRanks, [&](Communicator& c) {
      std::vector<float> values(10);
      for (int i = 0; i < 1000; ++i) {
        if (c.rank() == failing && i == 3) throw std::runtime_error("no more");
        c.all_reduce_sum(values);
      }
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      REQUIRE(errors[static_cast<std::size_t>(rank)]);
      if (rank == failing) {
        CHECK_THROWS_WITH(std::rethrow_exception(errors[static_cast<std::size_t>(rank)]), "no more");
      } else {
        CHECK_THROWS_AS(std::rethrow_exception(errors[static_cast<std::size_t>(rank)]), Aborted);
      }
    }
    CHECK_THROWS_AS(group.communicator(0).all_min(1), Aborted);  // still, until the group is made whole
  }
  group.reset();
  CHECK(none(run(group, kRanks, [](Communicator& c) { c.all_min(1); })));
}

TEST_CASE("stages add up for themselves, hand on what they have, and agree on one number", "[runner]") {
  constexpr int kRanks = 2, kStages = 3;
  LoopbackGroup group(kRanks, kStages);
  std::vector<float> last(kRanks);
  REQUIRE(none(run(group, kRanks * kStages, [&](Communicator& c) {
    if (c.size() != kRanks || c.stages() != kStages) throw std::logic_error("size");
    if (c.all_min(10 - c.global_rank()) != 5) throw std::logic_error("least");
    for (int i = 0; i < 50; ++i) {
      std::vector<float> values(3, static_cast<float>(1 + c.rank()));  // 1, 2; 3 and 3 after the first stage
      if (c.stage() > 0) c.receive_from_previous(std::as_writable_bytes(std::span(values)));
      c.all_reduce_sum(values);
      if (c.stage() + 1 < kStages) {
        c.send_to_next(std::as_bytes(std::span(values)));
      } else {
        last[static_cast<std::size_t>(c.rank())] = values[2];
      }
    }
  })));
  CHECK(last == std::vector<float>{12, 12});
}

TEST_CASE("a rank that fails ends the waits of all stages", "[runner]") {
  constexpr int kRanks = 2, kStages = 3;
  LoopbackGroup group(kRanks, kStages);
  for (int failing = 0; failing < kRanks * kStages; ++failing) {
    for (const bool late : {false, true}) {  // before it receives, after its stage has added up
      group.reset();
      const auto errors = run(group, kRanks * kStages, [&](Communicator& c) {
        std::vector<float> values(1000);
        for (int i = 0; i < 1000; ++i) {
          if (!late && c.global_rank() == failing && i == 3) throw std::runtime_error("no more");
          if (c.stage() > 0) c.receive_from_previous(std::as_writable_bytes(std::span(values)));
          c.all_reduce_sum(values);
          if (late && c.global_rank() == failing && i == 3) throw std::runtime_error("no more");
          if (c.stage() + 1 < kStages) c.send_to_next(std::as_bytes(std::span(values)));
        }
      });
      for (int rank = 0; rank < kRanks * kStages; ++rank) {
        INFO("rank " << rank << ", " << failing << " fails");
        REQUIRE(errors[static_cast<std::size_t>(rank)]);
        if (rank == failing) {
          CHECK_THROWS_WITH(std::rethrow_exception(errors[static_cast<std::size_t>(rank)]), "no more");
        } else {
          CHECK_THROWS_AS(std::rethrow_exception(errors[static_cast<std::size_t>(rank)]), Aborted);
        }
      }
    }
  }
}

TEST_CASE("ranks that disagree about sizes are an error", "[runner]") {
  LoopbackGroup group(2);
  const auto errors = run(group, 2, [](Communicator& c) {
    std::vector<float> values(static_cast<std::size_t>(4 + c.rank()));
    c.all_reduce_sum(values);
  });
  for (const auto& error : errors) REQUIRE(error);
  group.reset();
  const auto gathered = run(group, 2, [](Communicator& c) {
    std::vector<float> part(2), all(3);
    c.all_gather(part, all);
  });
  for (const auto& error : gathered) CHECK_THROWS_WITH(std::rethrow_exception(error), Catch::Contains("room for 3"));

  LoopbackGroup stages(1, 2);
  const auto handed = run(stages, 2, [](Communicator& c) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(4 + c.stage()));
    c.stage() == 0 ? c.send_to_next(bytes) : c.receive_from_previous(bytes);
  });
  REQUIRE(handed[1]);
  CHECK_THROWS_WITH(std::rethrow_exception(handed[1]), Catch::Contains("4 bytes") && Catch::Contains("expects 5"));
  REQUIRE(handed[0]);
  CHECK_THROWS_AS(std::rethrow_exception(handed[0]), Aborted);
}

}  // namespace
}  // namespace glyd::runner
