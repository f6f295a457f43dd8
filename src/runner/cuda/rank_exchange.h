#pragma once
// One rank's end of what the ranks of a model say to each other on their GPUs. All is put into the rank's stream, and
// can be captured into a graph with PeerMemory and Nccl (not what goes between stages). In a graph kernels wait for
// the other GPUs; outside, events do, and the ranks' threads meet.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/range.h"
#include "cuda/common/product.h"
#include "cuda/parallel/parallel.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/rank_group.h"
#include "runner/parallel/communicator.h"

namespace glyd::runner {

// What a rank's end is made for.
struct ExchangeShape {
  std::int64_t hidden = 0;
  std::int64_t columns = 0;        // most tokens of a pass by the own kernels
  std::int64_t tokens = 0;         // most tokens of a pass
  std::int64_t logits_tokens = 0;  // most tokens whose logits are made at a time
  std::int64_t vocab = 0;
  Range own_vocab;  // rows of the head that this rank has
};

class RankExchange {
 public:
  // What it takes of the GPU's memory.
  static std::uint64_t bytes(const ExchangeShape& shape, const RankGroup& group, int global_rank);

  // Takes memory and meets the others, all of whom do the same. The group and the communicator stay the caller's.
  RankExchange(const ExchangeShape& shape, RankGroup& group, Communicator& communicator, cudaStream_t stream);

  // Before each step: puts right what a failed one left, if there was one; all ranks meet then. True: there was one.
  bool mend();

  // Waits for the stream. Throws Aborted when another rank has failed meanwhile.
  void synchronize();

  // This rank has failed: the others stop waiting for it. Waits for what is under way.
  void stop();

  // The sums of all ranks' sums of hidden_size rows for some tokens, `columns` at most. They stay until the next but
  // one call.
  cuda::Product sum(const cuda::Product& own, int tokens);
  // The same for any number of tokens, and in place: `own` is fp32 in one part, [token][hidden_size] at `values`.
  cuda::Product sum_in_place(const cuda::Product& own, float* values, int tokens);

  // Brings the ranks' logits together on the first rank, where they are returned; nothing elsewhere. They stay until
  // the next call.
  cuda::Product gather_logits(const cuda::Product& own, int tokens);
  bool has_logits() const { return rank_ == 0; }
  int ranks() const { return ranks_; }  // of the stage

  // Returns when all ranks of the stage have called it. Whoever makes CUDA take memory does this before launching what
  // waits for others: giving out memory may wait for all GPUs that reach it.
  void meet_on_host();

  // Hidden states [tokens][hidden_size] bf16 to the next stage, from the one before.
  void send_hidden(const std::uint16_t* hidden, int tokens);
  void receive_hidden(std::uint16_t* hidden, int tokens);

 private:
  bool is_capturing() const;
  void meet_with_events();
  void send_logits(int tokens);
  void share(const cuda::Product& own, int tokens);
  float* half() const;  // where the present sums of all ranks begin
  std::uint64_t hidden_bytes(int tokens) const;

  ExchangeShape shape_;
  RankGroup& group_;
  Communicator& communicator_;
  cudaStream_t stream_;
  int rank_, ranks_, first_;  // in the stage; the stage's first rank in the group
  std::int64_t piece_;        // tokens that are summed at a time
  DeviceMemory slots_, logits_, staging_, words_, incoming_, outgoing_;
  PinnedMemory host_hidden_;
  Event written_;
  cuda::Meeting meeting_;
  const std::uint8_t* splits_ = nullptr;  // [1] the number of ranks
  cuda::Passage to_next_, from_previous_;
  int half_ = 0;
};

}  // namespace glyd::runner
