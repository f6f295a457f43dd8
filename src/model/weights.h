#pragma once
// Which tensors a model has, as the matrices that a runner multiplies by: q,k,v and gate,up are one matrix each.

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace glyd::model {

// One tensor of the checkpoint and how many rows it gives to the matrix (or elements to the vector) it is part of.
struct Member {
  std::string tensor;  // "model.layers.0.self_attn.q_proj.weight"
  std::uint64_t rows = 0;
};

// rows x cols, row-major [out, in]: the members' rows one after another.
struct MatrixSpec {
  std::string name;  // the class it belongs to and its layer: "layers.0.qkv"
  std::uint64_t rows = 0, cols = 0;
  std::vector<Member> members;
};

// A norm weight or a bias; size 0 and no members when the family has none.
struct VectorSpec {
  std::string name;
  std::uint64_t size = 0;
  std::vector<Member> members;
};

struct LayerSpec {
  VectorSpec input_norm;    // [H]
  MatrixSpec qkv;           // [(nq + 2 nkv) d, H]
  VectorSpec qkv_bias;      // [(nq + 2 nkv) d] or empty
  VectorSpec q_norm;        // [d] or empty
  VectorSpec k_norm;        // [d] or empty
  MatrixSpec o;             // [H, nq d]
  VectorSpec o_bias;        // [H] or empty
  VectorSpec post_norm;     // [H]
  MatrixSpec gate_up;       // [2 I, H]: gate's rows, then up's
  VectorSpec gate_up_bias;  // [2 I] or empty
  MatrixSpec down;          // [H, I]
  VectorSpec down_bias;     // [H] or empty
};

struct ModelSpec {
  MatrixSpec embed;  // [V, H]
  std::vector<LayerSpec> layers;
  VectorSpec final_norm;  // [H]
  MatrixSpec lm_head;     // [V, H]; no rows and no members when tied: the head is `embed`
};

// What `config` implies. `prefix` stands before every name but lm_head's: "model." in most checkpoints.
ModelSpec model_spec(const Config& config, const std::string& prefix = "model.");

// The head's tensor beside layers named with `prefix`: "lm_head.weight", inside the wrapper when that wraps both.
std::string head_tensor(const std::string& prefix);

// All matrices and vectors of a spec, in the order of a forward pass (empty vectors left out).
std::vector<const MatrixSpec*> all_matrices(const ModelSpec& spec);
std::vector<const VectorSpec*> all_vectors(const ModelSpec& spec);

}  // namespace glyd::model
