// Qwen3: q and k are normalised per head; attention_bias, false in all published files, would put a bias on q, k, v and
// o.
#include "model/families/family.h"

namespace glyd::model {

const FamilyRules kQwen3{
    .family = Family::Qwen3,
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .head_dim = 128,
    .needs_kv_heads = true,
    .max_positions = 32768,
    .apply =
        [](const ConfigReader& reader, Config& config) {
          config.qk_norm = true;
          config.qkv_bias = config.o_bias = reader.boolean("attention_bias").value_or(false);
        },
};

}  // namespace glyd::model
