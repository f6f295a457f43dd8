#pragma once
// NCCL, opened when ranks need it: where GPUs cannot write into each other's memory, or when it is asked for. It only
// carries data here; the ranks add up themselves, in an order that does not change with the size of a message.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace glyd::runner {

class Nccl {
 public:
  // Connects the GPUs, one a rank; takes seconds. Throws Error(Runtime) naming the library when it is missing.
  explicit Nccl(const std::vector<int>& devices);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // Each rank calls these on its own thread, all in the same order; the work goes to the rank's stream.
  // all[r * count ..] = the `count` values at `part` of rank r. `part` may be the rank's own place in `all`.
  void all_gather(int rank, const float* part, float* all, std::int64_t count, cudaStream_t stream);
  void send(int rank, int to, const void* data, std::uint64_t bytes, cudaStream_t stream);
  void receive(int rank, int from, void* data, std::uint64_t bytes, cudaStream_t stream);
  // What is sent and received between these two goes at the same time.
  void group_start();
  void group_end();

  // Cuts the rank's connections, and ends what it has under way. Other ranks' work may wait for ever, until they do it.
  void abort(int rank);
  // Makes the connections anew where some were cut. While nobody uses them.
  void connect();

  int version() const { return version_; }  // 22809: 2.28.9

 private:
  struct Functions;
  const Functions* functions_;
  std::vector<int> devices_;
  std::vector<void*> communicators_;  // [ranks] ncclComm_t, null: cut
  int version_ = 0;
};

}  // namespace glyd::runner
