#pragma once
// The memory that steps work in: sizes are known before anything is allocated, and pointers never change afterwards.

#include <cstdint>

#include "cuda/attention/attention.h"
#include "model/config.h"
#include "runner/cuda/arena.h"
#include "runner/runner.h"

namespace glyd::runner {

// What a workspace is made for.
struct WorkspaceShape {
  std::int64_t tokens = 0;     // most tokens of a pass
  std::int64_t sequences = 0;  // most sequences of a step
  std::int64_t context = 0;    // longest sequence
  std::int64_t cached = 0;     // tokens that the KV cache holds
  int columns = 0;             // most tokens of a pass by the own kernels, 1..kMaxColumns
  std::uint64_t products = 0;  // bytes that the largest product leaves
  std::uint64_t scratch = 0;   // bytes of each of two buffers for unpacked weights; 0: none are packed
  bool logits = true;          // whether logits come to this rank
};

// Device pointers into the arena. T tokens, D columns, R rows whose logits are made at a time (head_columns(); none
// without logits); H, V, nq, d of the model.
struct Workspace {
  std::uint16_t* hidden;     // [T][H] bf16: the residual stream
  std::uint16_t* q;          // [T][nq * d] bf16
  std::uint16_t* x;          // activations: [T][stride] or an image of D columns
  void* products;            // what a product leaves: partial sums, or bf16 or fp32 rows
  float2* rope;              // [T][rotated / 2]
  void* attention;           // attention_decode_workspace()
  void* choice;              // arg_max_workspace()
  std::int32_t* ids;         // [R] chosen ids
  void* requests;            // D rows' cuda::RowSampling, then the cuda::TouchedId of the tokens in the cache
  void* sampling;            // sample_workspace() of kSampledAtOnce rows
  std::int32_t* sampled;     // [R] ids drawn
  float* logits;             // [R][V] finished logits
  std::uint8_t* allowed;     // [V] ids that may be chosen
  double* frequencies;       // [rotated / 2] RoPE
  void* cublas;              // kCublasBytes
  std::uint16_t* slices[2];  // unpacked weights on their way to cuBLAS

  // The step's input, one copy from the host: see InputLayout.
  std::int32_t* input;
};

inline constexpr std::uint64_t kCublasBytes = 64 << 20;

// Rows that are sampled at a time: each takes a copy of its logits, 0.6 MB for a vocabulary of 152K.
inline constexpr int kSampledAtOnce = 32;

// What the requests of a pass take at most, here and in pinned memory.
std::uint64_t requests_bytes(const WorkspaceShape& shape);

// Whether rows can be sampled on the GPU: their finished logits lie one behind another and are read 8 at a time.
bool can_sample(const model::Config& config);

// Places in the step's input, in int32: fixed by the shape, so that captured launches stay valid.
struct InputLayout {
  std::int64_t tokens = 0, positions = 0, slots = 0, query_start = 0, lengths = 0, rows = 0, tables = 0, end = 0;
  std::int64_t table_stride = 0;
  explicit InputLayout(const WorkspaceShape& shape);
};

// Rows of a product's weights that are unpacked and multiplied at a time in a prompt.
std::int64_t slice_rows(std::int64_t cols);

// Tokens whose logits are made at a time, at most: as many columns as a launch may have for all sequences.
std::int64_t head_columns(const WorkspaceShape& shape);

// The shape for a model whose weights are not loaded yet; `cached` stays 0. `head_rows`:
// rows of the head that the runner has. `shared`: products are summed over ranks.
WorkspaceShape workspace_shape(const model::Config& config, const Options& options, std::int64_t context,
                               int multiprocessors, bool any_packed, std::int64_t head_rows, bool shared);

std::uint64_t workspace_bytes(const model::Config& config, const WorkspaceShape& shape);
Workspace make_workspace(const model::Config& config, const WorkspaceShape& shape, Arena& arena);

}  // namespace glyd::runner
