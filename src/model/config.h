#pragma once
// config.json and generation_config.json as plain structs, checked. No arithmetic of the model here.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace glyd::model {

enum class Family { Qwen2, Qwen3, Llama };
const char* family_name(Family family);  // "qwen2"

// Rotary embedding, after old and new spellings are merged.
struct Rope {
  enum class Kind { Default, Linear, Yarn, Llama3 };
  Kind kind = Kind::Default;
  double theta = 10000.0;
  int dim = 0;                                       // rotated dimensions r <= head_dim, even
  double factor = 1.0;                               // linear, yarn, llama3
  double original_positions = 0;                     // yarn, llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double attention_factor = 1.0;                     // A: multiplies cos and sin; computed for yarn when not given
};

struct Config {
  Family family = Family::Qwen3;
  std::string architecture;            // as found: "Qwen3ForCausalLM"
  std::int64_t vocab_size = 0;         // V: rows of the embedding, padding rows included
  std::int64_t hidden_size = 0;        // H
  std::int64_t intermediate_size = 0;  // I
  int layers = 0;                      // L
  int heads = 0;                       // nq
  int kv_heads = 0;                    // nkv, divides heads
  int head_dim = 0;                    // d, even; heads * head_dim need not equal hidden_size
  double rms_norm_eps = 1e-6;
  bool tied_head = false;  // the head is the embedding
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  std::int64_t max_positions = 0;  // context the model was configured for, RoPE scaling included
  Rope rope;
  std::vector<std::int32_t> eos_ids;  // from config.json alone
  std::optional<std::int32_t> bos_id;
};

// generation_config.json; absent values stay empty.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::vector<std::int32_t> eos_ids;
};

// Parses the text of a config.json; `what` (its path) opens every message. Throws Error(Model).
Config parse_config(const std::string& text, const std::string& what);
GenerationDefaults parse_generation_config(const std::string& text, const std::string& what);

// The two files of a model directory; a missing generation_config.json gives an empty one. Common wrong inputs (an
// adapter, GGUF or .bin only folders) are named.
Config load_config(const std::filesystem::path& dir);
GenerationDefaults load_generation_config(const std::filesystem::path& dir);

// inv_freq[i], i in [0, rope.dim / 2), scaling applied (qwen-family formulas: theta^(-2i/r), then linear, YaRN or
// llama3).
std::vector<double> inverse_frequencies(const Rope& rope);

}  // namespace glyd::model
