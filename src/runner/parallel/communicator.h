#pragma once
// What the ranks of a tensor-parallel model say to each other. Each rank has one of these and calls the same operations
// in the same order; an operation returns when the rank's part of it is done.

#include <cstdint>
#include <exception>
#include <span>

namespace glyd::runner {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // values[i] becomes the sum of all ranks' values[i], added in the order of the ranks: all get the same bits. All give
  // equally many.
  virtual void all_reduce_sum(std::span<float> values) = 0;

  // `all` receives the parts of all ranks, one after another in the order of the ranks; parts may differ in size. A
  // rank that gives no room for them only sends.
  virtual void all_gather(std::span<const float> part, std::span<float> all) = 0;

  // The smallest of the ranks' numbers, what all can agree on. No rank returns before all have come here.
  virtual std::int64_t all_min(std::int64_t value) = 0;

  // Something went wrong on this rank: whoever waits for it, now or later, gets Aborted in place of a result.
  virtual void abort() = 0;
};

// Another rank failed. No error of its own: whoever runs the ranks reports the one that failed first.
class Aborted : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

}  // namespace glyd::runner
