#pragma once
// A model family: what it adds to the block that all share. One file each; the table in families.cpp lists them.

#include <cstdint>
#include <span>

#include "model/config.h"
#include "model/config_reader.h"

namespace glyd::model {

struct FamilyRules {
  Family family;
  const char* model_type;    // config.json's model_type: "qwen3"
  const char* architecture;  // config.json's architectures[0]: "Qwen3ForCausalLM"

  // What absent keys mean in a file of this family.
  int head_dim;         // 0: hidden_size / num_attention_heads
  bool needs_kv_heads;  // false: num_key_value_heads is num_attention_heads
  std::int64_t max_positions;

  // Sets qkv_bias, o_bias, mlp_bias and qk_norm of `config`, from the family's own keys where it has any.
  void (*apply)(const ConfigReader& reader, Config& config);
};

extern const FamilyRules kQwen2, kQwen3, kLlama;

std::span<const FamilyRules* const> families();

}  // namespace glyd::model
