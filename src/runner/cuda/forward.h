#pragma once
// The forward pass on the GPU, as a chain of kernels on one stream.
//
// Three kinds of pass, told apart by how much of its sequences they hold, never by what else is in the step:
//   decode   one token of each of up to 128 sequences: own products, launched as a graph
//   short    whole chunks of up to 128 tokens together: own products, prompt attention
//   long     chunks of more than 128 tokens: cuBLAS; packed weights are unpacked a slice ahead of their product
// The own products' results do not depend on the other columns, cuBLAS's may (Options::batch_invariant gives each
// sequence its own product then).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/pointwise/pointwise.h"
#include "model/config.h"
#include "runner/cuda/check.h"
#include "runner/cuda/cublas.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/rank_exchange.h"
#include "runner/cuda/weights.h"
#include "runner/cuda/workspace.h"

namespace glyd::runner {

enum class Pass { Decode, Short, Long };

// The kinds of kernels of a pass.
enum class Part { None, Embedding, Norms, Products, Heads, Attention, Activation, Head, Choice, Exchange };

// What a pass runs over; the arrays are in the workspace's input, at InputLayout's places.
struct PassShape {
  Pass kind = Pass::Decode;
  int tokens = 0;  // Decode: also its sequences
  int sequences = 0;
  int longest = 0;               // most tokens of one sequence; Short and Long
  std::vector<int> starts = {};  // Long with batch_invariant: [sequences + 1] first token of each
};

class Forward {
 public:
  struct Settings {
    cuda::KernelSet kernels = cuda::KernelSet::Hopper;
    int multiprocessors = 1;
    Gemm gemm = Gemm::Auto;
    bool batch_invariant = false;
  };
  // References stay the caller's. `keys`, `values`: [layers][blocks][kv heads][16][head_dim]. `config` is the model as
  // this rank computes it; `exchange` null: it is the only one.
  Forward(const model::Config& config, const DeviceWeights& weights, const WorkspaceShape& shape, const Workspace& work,
          std::uint16_t* keys, std::uint16_t* values, std::int64_t kv_blocks, const Settings& settings,
          RankExchange* exchange, cudaStream_t stream);

  // Launches a pass: from ids (or, without an embedding, the hidden states that are there) to the residual stream
  // behind the last layer, in a decode pass on to the logits of all its tokens where this runner has the head.
  // `after_layer` is called after the embedding (-1) and each layer, with the residual stream complete; empty: never.
  // Nothing waits.
  void run(const PassShape& pass, const std::function<void(int layer)>& after_layer);

  // The logits of the tokens that the input lists as rows [first, first + count), at most kMaxColumns.
  void head_of_rows(int first, int count);

  // Kernels that later passes do without: what a pass then takes less is their time. Results are garbage meanwhile.
  void leave_out(Part part) { left_out_ = part; }

  bool shares() const { return exchange_ != nullptr && exchange_->ranks() > 1; }  // products with other ranks
  // Whether the logits come to this rank: of several, to the first one that has the head. The others do nothing in
  // choose() and finish_logits().
  bool has_logits() const { return weights_.has_head() && (!shares() || exchange_->has_logits()); }

  // Between capturing a pass and launching it: see RankExchange::meet_on_host().
  void meet_ranks() {
    if (shares()) exchange_->meet_on_host();
  }

  // From the logits made last, of `rows` tokens: arg-max ids to work.ids, finished logits to work.logits.
  void choose(int rows);
  void finish_logits(int rows);

 private:
  template <class Launch>
  void launch(Part part, const char* what, const Launch& kernel) const {
    if (part != left_out_) check(kernel(), what);
  }
  cuda::Activations activations(const PassShape& pass, std::int64_t width) const;
  cuda::Product multiply(const DeviceMatrix& matrix, const cuda::Activations& x, const PassShape& pass,
                         const std::uint16_t* bias);
  cuda::Product multiply_long(const DeviceMatrix& matrix, const cuda::Activations& x, const PassShape& pass,
                              bool shared);
  cuda::Product multiply_shared(const DeviceMatrix& matrix, const cuda::Activations& x, const PassShape& pass,
                                const std::uint16_t* bias);
  // Some rows of packed weights to `out` [rows][stride], on the stream for that.
  void unpack(const cuda::ResidentMatrix& matrix, std::int64_t first, std::int64_t rows, std::uint16_t* out,
              std::int64_t stride);
  void layer(const PassShape& pass, const DeviceLayer& layer, int index, const cuda::Product* before);
  void attend(const PassShape& pass, int layer, const cuda::Activations& out);
  void head(const cuda::Product* before, const std::int32_t* rows, int count);
  Cublas& cublas();
  bool own_products(const PassShape& pass) const { return pass.kind != Pass::Long && settings_.gemm == Gemm::Auto; }

  const model::Config& config_;
  const DeviceWeights& weights_;
  const WorkspaceShape& shape_;
  const Workspace& work_;
  InputLayout input_;
  std::uint16_t *keys_, *values_;
  std::int64_t kv_blocks_;
  Settings settings_;
  RankExchange* exchange_;
  cudaStream_t stream_;
  std::unique_ptr<Cublas> cublas_;
  // Urgent: a slice that waits for its unpacking is a gap, one unpacked early is none.
  Stream unpack_stream_{true};
  Event slice_ready_[2], slice_free_[2];
  int slice_ = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, cuda::Partition> slice_partitions_;  // of slices of (rows, cols)
  Part left_out_ = Part::None;
  cuda::Product last_;    // what down left: not yet added to the residual stream
  cuda::Product logits_;  // of the last pass
};

}  // namespace glyd::runner
