#pragma once
// The GPUs of one process that run a model together, and what their ranks know of each other.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/range.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/nccl.h"

namespace glyd::runner {

// How sums get from rank to rank.
enum class Transport {
  PeerMemory,  // kernels write into the other GPUs' memory and wait for words in their own
  Nccl,        // NCCL carries them: for GPUs that cannot reach each other
  SharedGpu,   // ranks on one GPU, for tests: as PeerMemory, but kernels that wait for each other may not both run, so
               // events do
};

// What a rank shows to the others, in its GPU's memory.
struct RankEnd {
  float* slots = nullptr;              // sums of all ranks of the stage
  float* logits = nullptr;             // of all ranks of the stage; the first rank's alone
  std::uint32_t* arrived = nullptr;    // [ranks of the stage] words of cuda::Meeting
  void* incoming = nullptr;            // hidden states from the stage before
  std::uint32_t* put_in = nullptr;     // words of cuda::Passage: from the stage before,
  std::uint32_t* taken_out = nullptr;  // and from the one behind
  cudaEvent_t written = nullptr;       // what the rank wrote last is there
  Range vocab;                         // rows of the head that the rank has
};

class RankGroup {
 public:
  // The GPU of each rank, a stage's `tensor_parallel` ranks one after another. GLYD_ALL_REDUCE=peer or nccl chooses
  // the transport; peer memory is taken where all GPUs have it. Throws Error(Usage), Error(Runtime).
  RankGroup(std::vector<int> devices, int tensor_parallel);

  int size() const { return static_cast<int>(devices_.size()); }
  int tensor_parallel() const { return tensor_parallel_; }
  int device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }
  int ranks_on(int device) const;
  Transport transport() const { return transport_; }
  std::string describe() const;  // "peer memory"

  // Written by its own rank, read by the others after all have met.
  RankEnd& end(int rank) { return ends_[static_cast<std::size_t>(rank)]; }

  // The stage's own NCCL, in which a rank has its number in the stage; of all stages, for what goes between them.
  Nccl& stage_nccl(int stage) { return *stage_nccl_[static_cast<std::size_t>(stage)]; }
  Nccl& all_nccl() { return *all_nccl_; }

  // NCCL's connections: cut by each rank for itself, made anew by one when all have met.
  void disconnect(int rank);
  void connect();

  // A rank failed: kernels of the others wait for it no more. Until all have met again.
  const int* stop_word() const { return reinterpret_cast<const int*>(stop_.get()); }
  bool stopped() const { return *static_cast<const volatile int*>(stop_word()) != 0; }
  void set_stopped(bool stopped) { *reinterpret_cast<volatile int*>(stop_.get()) = stopped ? 1 : 0; }

 private:
  void enable_peers() const;

  std::vector<int> devices_;  // [ranks]
  int tensor_parallel_;
  Transport transport_ = Transport::PeerMemory;
  std::vector<RankEnd> ends_;
  std::vector<std::unique_ptr<Nccl>> stage_nccl_;
  std::unique_ptr<Nccl> all_nccl_;
  PinnedMemory stop_;
};

}  // namespace glyd::runner
