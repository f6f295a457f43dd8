// Llama: neither biases nor q/k norm unless attention_bias (q, k, v and o) or mlp_bias (gate, up and down) ask for
// them.
#include "model/families/family.h"

namespace glyd::model {

const FamilyRules kLlama{
    .family = Family::Llama,
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .head_dim = 0,
    .needs_kv_heads = false,
    .max_positions = 2048,
    .apply =
        [](const ConfigReader& reader, Config& config) {
          config.qkv_bias = config.o_bias = reader.boolean("attention_bias").value_or(false);
          config.mlp_bias = reader.boolean("mlp_bias").value_or(false);
        },
};

}  // namespace glyd::model
