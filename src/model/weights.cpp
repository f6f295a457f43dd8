#include "model/weights.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

namespace glyd::model {
namespace {

MatrixSpec matrix(std::string name, std::uint64_t cols, std::initializer_list<Member> members) {
  MatrixSpec spec{std::move(name), 0, cols, members};
  for (const Member& member : spec.members) spec.rows += member.rows;
  return spec;
}

VectorSpec vector(std::string name, std::initializer_list<Member> members) {
  VectorSpec spec{std::move(name), 0, members};
  for (const Member& member : spec.members) spec.size += member.rows;
  return spec;
}

VectorSpec vector_if(bool present, std::string name, std::initializer_list<Member> members) {
  return vector(std::move(name), present ? members : std::initializer_list<Member>{});
}

LayerSpec layer_spec(const Config& config, const std::string& prefix, int layer) {
  const auto hidden = static_cast<std::uint64_t>(config.hidden_size);
  const auto inner = static_cast<std::uint64_t>(config.intermediate_size);
  const auto head_dim = static_cast<std::uint64_t>(config.head_dim);
  const auto q_rows = static_cast<std::uint64_t>(config.heads) * head_dim;
  const auto kv_rows = static_cast<std::uint64_t>(config.kv_heads) * head_dim;
  const auto tensor = [&](const char* rest) { return fmt::format("{}layers.{}.{}", prefix, layer, rest); };
  const auto name = [&](const char* rest) { return fmt::format("layers.{}.{}", layer, rest); };

  LayerSpec s;
  s.input_norm = vector(name("input_norm"), {{tensor("input_layernorm.weight"), hidden}});
  s.qkv = matrix(name("qkv"), hidden,
                 {{tensor("self_attn.q_proj.weight"), q_rows},
                  {tensor("self_attn.k_proj.weight"), kv_rows},
                  {tensor("self_attn.v_proj.weight"), kv_rows}});
  s.qkv_bias = vector_if(config.qkv_bias, name("qkv_bias"),
                         {{tensor("self_attn.q_proj.bias"), q_rows},
                          {tensor("self_attn.k_proj.bias"), kv_rows},
                          {tensor("self_attn.v_proj.bias"), kv_rows}});
  s.q_norm = vector_if(config.qk_norm, name("q_norm"), {{tensor("self_attn.q_norm.weight"), head_dim}});
  s.k_norm = vector_if(config.qk_norm, name("k_norm"), {{tensor("self_attn.k_norm.weight"), head_dim}});
  s.o = matrix(name("o"), q_rows, {{tensor("self_attn.o_proj.weight"), hidden}});
  s.o_bias = vector_if(config.o_bias, name("o_bias"), {{tensor("self_attn.o_proj.bias"), hidden}});
  s.post_norm = vector(name("post_norm"), {{tensor("post_attention_layernorm.weight"), hidden}});
  s.gate_up =
      matrix(name("gate_up"), hidden, {{tensor("mlp.gate_proj.weight"), inner}, {tensor("mlp.up_proj.weight"), inner}});
  s.gate_up_bias = vector_if(config.mlp_bias, name("gate_up_bias"),
                             {{tensor("mlp.gate_proj.bias"), inner}, {tensor("mlp.up_proj.bias"), inner}});
  s.down = matrix(name("down"), inner, {{tensor("mlp.down_proj.weight"), hidden}});
  s.down_bias = vector_if(config.mlp_bias, name("down_bias"), {{tensor("mlp.down_proj.bias"), hidden}});
  return s;
}

}  // namespace

std::string head_tensor(const std::string& prefix) {
  return prefix == "language_model.model." ? "language_model.lm_head.weight" : "lm_head.weight";
}

ModelSpec model_spec(const Config& config, const std::string& prefix) {
  const auto vocab = static_cast<std::uint64_t>(config.vocab_size);
  const auto hidden = static_cast<std::uint64_t>(config.hidden_size);
  ModelSpec s;
  s.embed = matrix("embed", hidden, {{prefix + "embed_tokens.weight", vocab}});
  s.layers.reserve(static_cast<std::size_t>(config.layers));
  for (int layer = 0; layer < config.layers; ++layer) s.layers.push_back(layer_spec(config, prefix, layer));
  s.final_norm = vector("final_norm", {{prefix + "norm.weight", hidden}});
  s.lm_head =
      config.tied_head ? matrix("lm_head", hidden, {}) : matrix("lm_head", hidden, {{head_tensor(prefix), vocab}});
  return s;
}

std::vector<const MatrixSpec*> all_matrices(const ModelSpec& spec) {
  std::vector<const MatrixSpec*> all{&spec.embed};
  for (const LayerSpec& layer : spec.layers) {
    all.insert(all.end(), {&layer.qkv, &layer.o, &layer.gate_up, &layer.down});
  }
  if (!spec.lm_head.members.empty()) all.push_back(&spec.lm_head);
  return all;
}

std::vector<const VectorSpec*> all_vectors(const ModelSpec& spec) {
  std::vector<const VectorSpec*> all;
  const auto add = [&](const VectorSpec& vector) {
    if (vector.size > 0) all.push_back(&vector);
  };
  for (const LayerSpec& layer : spec.layers) {
    for (const VectorSpec* vector : {&layer.input_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.o_bias,
                                     &layer.post_norm, &layer.gate_up_bias, &layer.down_bias}) {
      add(*vector);
    }
  }
  add(spec.final_norm);
  return all;
}

}  // namespace glyd::model
