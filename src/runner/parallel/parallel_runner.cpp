#include "runner/parallel/parallel_runner.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <numeric>

#include "base/error.h"
#include "base/thread_pool.h"
#include "runner/cpu/cpu_runner.h"

namespace glyd::runner {
namespace {

// Throws the error of a rank again, under the rank's name; what was asked for wrongly is no single rank's. Returns when
// the rank only stopped because of another's.
void rethrow(const std::exception_ptr& error, std::size_t rank, std::size_t ranks) {
  try {
    std::rethrow_exception(error);
  } catch (const Aborted&) {
    return;
  } catch (const Error& e) {
    if (e.code() == Code::Usage) throw;
    fail(e.code(), "rank {} of {}: {}", rank, ranks, e.what());
  } catch (const std::bad_alloc&) {
    fail(Code::Memory, "rank {} of {}: the system gave no memory", rank, ranks);
  } catch (const std::exception& e) {
    fail(Code::Runtime, "rank {} of {}: {}", rank, ranks, e.what());
  }
}

}  // namespace

ParallelRunner::ParallelRunner(int ranks, const MakeRank& make_rank, int stages)
    : ranks_of_stage_(static_cast<std::size_t>(ranks)),
      stages_(static_cast<std::size_t>(stages)),
      group_(ranks, stages),
      threads_(ranks * stages) {
  for (int rank = 0; rank < ranks * stages; ++rank) ranks_.push_back(make_rank(group_.communicator(rank)));
}

void ParallelRunner::on_all(const std::function<void(std::size_t, Runner&)>& body) {
  group_.reset();
  const std::vector<std::exception_ptr> errors = threads_.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    try {
      body(r, *ranks_[r]);
    } catch (...) {
      group_.communicator(rank).abort();
      throw;
    }
  });
  for (std::size_t r = 0; r < errors.size(); ++r) {
    if (errors[r]) rethrow(errors[r], r, errors.size());
  }
  if (std::any_of(errors.begin(), errors.end(), [](const auto& error) { return error != nullptr; }))
    fail(Code::Runtime, "the ranks stopped each other, and none said why");
}

MemoryPlan ParallelRunner::sum_of_plans(const std::function<MemoryPlan(const Runner&)>& plan_of) const {
  std::vector<MemoryPlan> plans;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    try {
      plans.push_back(plan_of(*ranks_[r]));
    } catch (const Error&) {
      rethrow(std::current_exception(), r, ranks_.size());
    }
  }
  MemoryPlan sum;
  sum.kv_blocks = plans.front().kv_blocks;
  sum.most_kv_blocks = plans.front().most_kv_blocks;
  for (const MemoryPlan& plan : plans) {
    sum.kv_blocks = std::min(sum.kv_blocks, plan.kv_blocks);
    sum.most_kv_blocks = std::min(sum.most_kv_blocks, plan.most_kv_blocks);
  }
  for (const MemoryPlan& plan : plans) {
    sum.weights += plan.weights;
    sum.workspace += plan.workspace;
    sum.kv_cache +=
        plan.kv_cache / static_cast<std::uint64_t>(plan.kv_blocks) * static_cast<std::uint64_t>(sum.kv_blocks);
    sum.available += plan.available;
  }
  return sum;
}

MemoryPlan ParallelRunner::plan(const model::Checkpoint& checkpoint) const {
  return sum_of_plans([&](const Runner& rank) { return rank.plan(checkpoint); });
}

MemoryPlan ParallelRunner::plan_random(const model::Config& config) const {
  return sum_of_plans([&](const Runner& rank) { return rank.plan_random(config); });
}

// The ranks read nearly equal parts at the same time, so the first one's progress is everybody's.
void ParallelRunner::load(const model::Checkpoint& checkpoint, Progress& progress) {
  on_all([&](std::size_t r, Runner& rank) {
    Progress silent;
    rank.load(checkpoint, r == 0 ? progress : silent);
  });
}

void ParallelRunner::load_random(const model::Config& config, std::uint64_t seed, Progress& progress) {
  on_all([&](std::size_t r, Runner& rank) {
    Progress silent;
    rank.load_random(config, seed, r == 0 ? progress : silent);
  });
}

StepResult ParallelRunner::step(const Batch& batch) {
  StepResult result;
  on_all([&](std::size_t r, Runner& rank) {
    StepResult own = rank.step(batch);
    if (r == (stages_ - 1) * ranks_of_stage_) result = std::move(own);
  });
  return result;
}

std::uint64_t ParallelRunner::bytes_per_step() const {
  return std::accumulate(ranks_.begin(), ranks_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& rank) { return sum + rank->bytes_per_step(); });
}

std::uint64_t ParallelRunner::weight_bytes() const {
  return std::accumulate(ranks_.begin(), ranks_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& rank) { return sum + rank->weight_bytes(); });
}

std::uint64_t ParallelRunner::memory_used() const {
  return std::accumulate(ranks_.begin(), ranks_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& rank) { return sum + rank->memory_used(); });
}

std::int64_t ParallelRunner::kv_blocks() const {
  std::int64_t least = first().kv_blocks();
  for (const auto& rank : ranks_) least = std::min(least, rank->kv_blocks());
  return least;
}

std::string ParallelRunner::device_name() const {
  const std::string ranks = stages_ == 1           ? fmt::format("{} ranks", ranks_of_stage_)
                            : ranks_of_stage_ == 1 ? fmt::format("{} stages", stages_)
                                                   : fmt::format("{} x {} ranks", ranks_of_stage_, stages_);
  return fmt::format("{}, each {}", ranks, first().device_name());
}

double ParallelRunner::read_bandwidth() {
  std::vector<double> of_stages;
  for (std::size_t stage = 0; stage < stages_; ++stage) {
    std::vector<double> each(ranks_.size());
    on_all([&](std::size_t r, Runner& rank) {
      if (r / ranks_of_stage_ == stage) each[r] = rank.read_bandwidth();
    });
    of_stages.push_back(std::accumulate(each.begin(), each.end(), 0.0));
  }
  return *std::min_element(of_stages.begin(), of_stages.end());
}

// Stages take turns, so the trace sees the layers of a pass in order; a stage may be at the next pass already. Ranks
// that nobody looks at have a trace too: runners take other ways with one, and ranks have to go the same.
void ParallelRunner::set_trace(Trace trace) {
  struct Shared {
    Trace trace;
    std::mutex mutex;
  };
  const auto shared = std::make_shared<Shared>();
  shared->trace = std::move(trace);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!shared->trace) {
      ranks_[r]->set_trace({});
    } else if (r % ranks_of_stage_ != 0) {
      ranks_[r]->set_trace([](int, std::span<const float>) {});
    } else {
      ranks_[r]->set_trace([shared](int layer, std::span<const float> hidden) {
        const std::lock_guard lock(shared->mutex);
        shared->trace(layer, hidden);
      });
    }
  }
}

// All ranks of a stage take part: what is measured of one has the others' sums in it.
std::vector<std::pair<std::string, double>> ParallelRunner::step_profile() {
  std::vector<std::vector<std::pair<std::string, double>>> profiles(ranks_.size());
  on_all([&](std::size_t r, Runner& rank) { profiles[r] = rank.step_profile(); });
  std::vector<std::pair<std::string, double>> sum;
  for (std::size_t leader = 0; leader < ranks_.size(); leader += ranks_of_stage_) {
    for (auto& [name, seconds] : profiles[leader]) {
      const auto same = std::find_if(sum.begin(), sum.end(), [&](const auto& part) { return part.first == name; });
      if (same != sum.end()) {
        same->second += seconds;
      } else {
        sum.emplace_back(std::move(name), seconds);
      }
    }
  }
  return sum;
}

std::unique_ptr<Runner> make_parallel_cpu_runner(const Options& options) {
  Options of_rank = options;
  const int threads = options.threads == 0 ? available_threads() : options.threads;
  of_rank.threads = std::max(1, threads / options.tensor_parallel);  // of a stage in its turn
  const auto make_rank = [&](Communicator& communicator) {
    return std::make_unique<cpu::CpuRunner>(of_rank, cpu::best_kernels(), &communicator);
  };
  return std::make_unique<ParallelRunner>(options.tensor_parallel, make_rank, options.pipeline_parallel);
}

}  // namespace glyd::runner
