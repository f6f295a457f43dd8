#pragma once
// What the ranks of a model say to each other. They stand in stages of equally many ranks (model/sharding.h). Each rank
// has one of these, and calls the same operations in the same order as the others that take part; an operation returns
// when the rank's part of it is done.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

namespace glyd::runner {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // in its stage
  virtual int size() const = 0;  // ranks of a stage
  virtual int stage() const = 0;
  virtual int stages() const = 0;

  // Of all stages: the number that model::make_shard() knows the rank by, and how many there are.
  int global_rank() const { return stage() * size() + rank(); }
  int global_size() const { return stages() * size(); }

  // Among the ranks of the stage: values[i] becomes the sum of all ranks' values[i], added in the order of the ranks,
  // so all get the same bits. All give equally many.
  virtual void all_reduce_sum(std::span<float> values) = 0;

  // Among the ranks of the stage: `all` receives the parts of all ranks, one after another in the order of the ranks;
  // parts may differ in size. A rank that gives no room for them only sends.
  virtual void all_gather(std::span<const float> part, std::span<float> all) = 0;

  // From a rank to the one of the same number in the next stage, which gives room for just as many bytes. Not called
  // where there is one stage.
  virtual void send_to_next(std::span<const std::byte> bytes) = 0;
  virtual void receive_from_previous(std::span<std::byte> bytes) = 0;

  // The smallest of the numbers of all ranks of all stages, what all can agree on. No rank returns before all have come
  // here.
  virtual std::int64_t all_min(std::int64_t value) = 0;

  // Something went wrong on this rank: whoever waits for it, now or later, in whichever stage, gets Aborted in place of
  // a result.
  virtual void abort() = 0;
};

// Another rank failed. No error of its own: whoever runs the ranks reports one that has such an error.
class Aborted : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

}  // namespace glyd::runner
