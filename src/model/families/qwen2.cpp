// Qwen2 and Qwen2.5: biases on q, k and v, never on o. The class has no key for that: attention_bias is not read.
#include "model/families/family.h"

namespace glyd::model {

const FamilyRules kQwen2{
    .family = Family::Qwen2,
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .head_dim = 0,
    .needs_kv_heads = true,
    .max_positions = 32768,
    .apply = [](const ConfigReader&, Config& config) { config.qkv_bias = true; },
};

}  // namespace glyd::model
