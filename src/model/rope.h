#pragma once
// The rotary part of config.json: where its keys stand in old and new files, and what they come to.

#include "model/config.h"
#include "model/config_reader.h"

namespace glyd::model {

// Reads rope_parameters, rope_scaling, rope_theta and partial_rotary_factor of the whole config into config.rope, and
// the context that follows (YaRN: original * factor) into config.max_positions, which must hold
// max_position_embeddings; config.head_dim must be set. Throws Error(Model).
void read_rope(const ConfigReader& reader, Config& config);

}  // namespace glyd::model
