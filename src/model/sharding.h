#pragma once
// Which part of the model a rank has. Plain structs, no arithmetic of the model.
//
// Pipeline parallelism: the layers are dealt out to stages, each a range of them. The first stage has the embedding,
// the last one the final norm and the head. Tensor parallelism: a stage has one or more ranks, which split each of its
// layers. Ranks are numbered stage by stage.
//
// A layer is cut along its heads and along the inner size of its feed-forward block. qkv and gate_up give a rank whole
// rows, o and down the columns that those rows' results are multiplied by: each rank has a sum of its own, and the
// ranks' sums added together are the layer's. Norms and the embedding are on every rank of a stage that has them.
//
// Ranks need not be equal. Heads are cut at kv heads; where there are fewer of them than ranks, several ranks hold the
// same kv head and share out its query heads. The inner size is cut between units of the packed format, so that packed
// weights are taken as they are. An uneven cut is what equal parts padded with zeros would compute, without the zeros.

#include <cstdint>
#include <utility>
#include <vector>

#include "base/range.h"
#include "model/config.h"
#include "model/weights.h"

namespace glyd::model {

// Rows and columns of a spec's matrix. As q, k, v and gate, up are one matrix each, a part may have several row ranges;
// its rows are theirs, one range after another.
struct MatrixPart {
  std::vector<Range> rows;
  Range cols;

  std::uint64_t row_count() const;
};
MatrixPart whole(const MatrixSpec& matrix);

struct Shard {
  int rank = 0, ranks = 1;    // in its stage
  int stage = 0, stages = 1;  // ranks of different stages with the same `rank` have the same part of a layer
  Range layers;               // of the model's; never empty
  Range heads;                // query heads: a whole multiple of the kv heads, as in the model
  Range kv_heads;  // in the order of the heads: the rank's kv head i belongs to the i-th equal part of its heads
  Range inner;     // of intermediate_size
  Range vocab;     // rows of the head; begins at a multiple of 64; may be empty. The embedding is whole.

  // The same in every layer. Biases of qkv and gate_up are cut like the rows of the matrix.
  MatrixPart qkv, o, gate_up, down;
  MatrixPart lm_head;  // of the embedding, when the head is tied

  // Biases of o and down are added once, on the first rank, to its sum.
  bool adds_output_biases() const { return rank == 0; }

  bool first_stage() const { return stage == 0; }          // has the embedding
  bool last_stage() const { return stage == stages - 1; }  // has the final norm and the head
};

// What rank `rank` has of `pipeline_parallel` stages of `tensor_parallel` ranks each; all of the model where there is
// one rank. Layers are dealt out so that the rank with the most bytes of weights has as few as can be. Throws
// Error(Usage) naming what cannot be split over so many.
Shard make_shard(const Config& config, int rank, int tensor_parallel, int pipeline_parallel = 1);

// The model as the rank computes it: its own layers, heads, kv heads and inner size, everything else as it is.
Config shard_config(const Config& config, const Shard& shard);

// What the rank has a part of: its own layers alone; what its stage does not have is empty. The last stage of several
// has a head of its own, rows of the embedding when that is tied.
ModelSpec shard_spec(const ModelSpec& spec, const Shard& shard);

// The matrices of shard_spec() that the rank has something of, in the order of a forward pass, and what.
std::vector<std::pair<const MatrixSpec*, MatrixPart>> all_parts(const ModelSpec& spec, const Shard& shard);

}  // namespace glyd::model
