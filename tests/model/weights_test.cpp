#include "model/weights.h"

#include <catch2/catch.hpp>
#include <set>

#include "support/fixtures.h"

using namespace glyd;
using io::Json;
using model::ModelSpec;

namespace {

ModelSpec spec_of(const char* type, const Json& changes) {
  return model::model_spec(model::parse_config(test::tiny_config(type, changes).dump(), "config.json"));
}

Json sizes(int hidden, int layers, int heads, int kv_heads, int head_dim, int inner, int vocab, bool tied) {
  return {{"hidden_size", hidden},        {"num_hidden_layers", layers},
          {"num_attention_heads", heads}, {"num_key_value_heads", kv_heads},
          {"head_dim", head_dim},         {"intermediate_size", inner},
          {"vocab_size", vocab},          {"tie_word_embeddings", tied}};
}

struct Totals {
  std::uint64_t parameters = 0, tensors = 0;
};

Totals totals(const ModelSpec& spec) {
  Totals t;
  for (const auto* matrix : model::all_matrices(spec))
    t.parameters += matrix->rows * matrix->cols, t.tensors += matrix->members.size();
  for (const auto* vector : model::all_vectors(spec)) t.parameters += vector->size, t.tensors += vector->members.size();
  return t;
}

std::set<std::string> names(const ModelSpec& spec) {
  std::set<std::string> all;
  for (const auto* matrix : model::all_matrices(spec))
    for (const auto& member : matrix->members) all.insert(member.tensor);
  for (const auto* vector : model::all_vectors(spec))
    for (const auto& member : vector->members) all.insert(member.tensor);
  return all;
}

}  // namespace

TEST_CASE("published shapes give the published parameter counts", "[model]") {
  struct Row {
    const char* name;
    const char* type;
    Json sizes;
    std::uint64_t parameters;
  };
  const Row rows[] = {{"Qwen2.5-0.5B", "qwen2", sizes(896, 24, 14, 2, 64, 4864, 151936, true), 494'032'768},
                      {"Qwen2.5-1.5B", "qwen2", sizes(1536, 28, 12, 2, 128, 8960, 151936, true), 1'543'714'304},
                      {"Qwen2.5-3B", "qwen2", sizes(2048, 36, 16, 2, 128, 11008, 151936, true), 3'085'938'688},
                      {"Qwen2.5-7B", "qwen2", sizes(3584, 28, 28, 4, 128, 18944, 152064, false), 7'615'616'512},
                      {"Qwen2.5-14B", "qwen2", sizes(5120, 48, 40, 8, 128, 13824, 152064, false), 14'770'033'664},
                      {"Qwen2.5-32B", "qwen2", sizes(5120, 64, 40, 8, 128, 27648, 152064, false), 32'763'876'352},
                      {"Qwen2.5-72B", "qwen2", sizes(8192, 80, 64, 8, 128, 29568, 152064, false), 72'706'203'648},
                      {"Qwen3-0.6B", "qwen3", sizes(1024, 28, 16, 8, 128, 3072, 151936, true), 596'049'920},
                      {"Qwen3-1.7B", "qwen3", sizes(2048, 28, 16, 8, 128, 6144, 151936, true), 1'720'574'976},
                      {"Qwen3-4B", "qwen3", sizes(2560, 36, 32, 8, 128, 9728, 151936, true), 4'022'468'096},
                      {"Qwen3-8B", "qwen3", sizes(4096, 36, 32, 8, 128, 12288, 151936, false), 8'190'735'360},
                      {"Qwen3-14B", "qwen3", sizes(5120, 40, 40, 8, 128, 17408, 151936, false), 14'768'307'200},
                      {"Qwen3-32B", "qwen3", sizes(5120, 64, 64, 8, 128, 25600, 151936, false), 32'762'123'264},
                      {"Llama-3.2-1B", "llama", sizes(2048, 16, 32, 8, 64, 8192, 128256, true), 1'235'814'400},
                      {"Llama-3.1-8B", "llama", sizes(4096, 32, 32, 8, 128, 14336, 128256, false), 8'030'261'248},
                      {"Llama-3.1-70B", "llama", sizes(8192, 80, 64, 8, 128, 28672, 128256, false), 70'553'706'496}};
  for (const Row& row : rows) {
    INFO(row.name);
    CHECK(totals(spec_of(row.type, row.sizes)).parameters == row.parameters);
  }
}

TEST_CASE("tensor counts are 12, 11 and 9 a layer", "[model]") {
  CHECK(totals(spec_of("qwen2", sizes(896, 24, 14, 2, 64, 4864, 151936, true))).tensors == 290);
  CHECK(totals(spec_of("qwen2", sizes(3584, 28, 28, 4, 128, 18944, 152064, false))).tensors == 339);
  CHECK(totals(spec_of("qwen3", sizes(1024, 28, 16, 8, 128, 3072, 151936, false))).tensors == 311);
  CHECK(totals(spec_of("llama", sizes(2048, 16, 32, 8, 64, 8192, 128256, true))).tensors == 9 * 16 + 2);
}

TEST_CASE("names are the published ones", "[model]") {
  std::set<std::string> expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* rest : {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                             "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                             "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}) {
      expected.insert(std::string(layer) + rest);
    }
  }
  CHECK(names(spec_of("llama", Json::object())) == expected);
  std::set<std::string> qwen2 = expected, qwen3 = expected, biased = expected;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* rest : {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"})
      qwen2.insert(std::string(layer) + rest);
    for (const char* rest : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"})
      qwen3.insert(std::string(layer) + rest);
    for (const char* rest : {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
                             "self_attn.o_proj.bias", "mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"}) {
      biased.insert(std::string(layer) + rest);
    }
  }
  CHECK(names(spec_of("qwen2", Json::object())) == qwen2);
  CHECK(names(spec_of("qwen3", Json::object())) == qwen3);
  CHECK(names(spec_of("llama", {{"attention_bias", true}, {"mlp_bias", true}})) == biased);
  expected.erase("lm_head.weight");
  CHECK(names(spec_of("llama", {{"tie_word_embeddings", true}})) == expected);
}

TEST_CASE("matrices join what is multiplied together", "[model]") {
  const ModelSpec spec = spec_of("qwen2", {{"head_dim", 8}});
  REQUIRE(spec.layers.size() == 2);
  const model::LayerSpec& layer = spec.layers[1];
  CHECK(layer.qkv.name == "layers.1.qkv");
  CHECK(layer.qkv.rows == (4 + 2 * 2) * 8);
  CHECK(layer.qkv.cols == 16);
  REQUIRE(layer.qkv.members.size() == 3);
  CHECK(layer.qkv.members[1].tensor == "model.layers.1.self_attn.k_proj.weight");
  CHECK(layer.qkv.members[0].rows == 32);
  CHECK(layer.qkv.members[1].rows == 16);
  CHECK(layer.qkv_bias.size == 64);
  CHECK(layer.o.rows == 16);
  CHECK(layer.o.cols == 32);
  CHECK(layer.gate_up.rows == 48);
  CHECK(layer.gate_up.members[0].tensor == "model.layers.1.mlp.gate_proj.weight");
  CHECK(layer.down.rows == 16);
  CHECK(layer.down.cols == 24);
  CHECK(layer.q_norm.size == 0);
  CHECK(layer.q_norm.members.empty());
  CHECK(spec_of("qwen3", {{"head_dim", 8}}).layers[0].q_norm.size == 8);
  CHECK(spec_of("qwen3", {{"tie_word_embeddings", true}}).lm_head.members.empty());
}

TEST_CASE("the shipped config-only shapes are the published ones", "[model]") {
  const std::pair<const char*, std::uint64_t> shapes[] = {{"qwen3-0.6b", 596'049'920},    {"qwen3-4b", 4'022'468'096},
                                                          {"qwen3-8b", 8'190'735'360},    {"qwen3-14b", 14'768'307'200},
                                                          {"qwen3-32b", 32'762'123'264},  {"qwen2.5-7b", 7'615'616'512},
                                                          {"qwen2.5-72b", 72'706'203'648}};
  for (const auto& [name, parameters] : shapes) {
    INFO(name);
    CHECK(totals(model::model_spec(model::load_config(test::shipped_model(name)))).parameters == parameters);
  }
}
