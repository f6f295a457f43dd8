#include "model/config.h"

#include <catch2/catch.hpp>

#include "base/log.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using io::Json;
using model::Config;
using model::Family;
using test::tiny_config;

namespace {

Config parse(const Json& config) { return model::parse_config(config.dump(), "dir/config.json"); }

Config parse_changed(const char* type, const Json& changes) { return parse(tiny_config(type, changes)); }

Json without(Json config, const char* key) {
  config.erase(key);
  return config;
}

// The error's text; it names the file. "" when the config is accepted.
std::string refusal(const std::string& text) {
  const std::string said = test::error_of(Code::Model, [&] { model::parse_config(text, "dir/config.json"); });
  if (!said.empty()) CHECK_THAT(said, Catch::Matchers::StartsWith("dir/config.json: "));
  return said;
}

std::string refusal(const Json& config) { return refusal(config.dump()); }

}  // namespace

TEST_CASE("the sizes and defaults of a config are read", "[model]") {
  const Config c = parse(tiny_config("qwen3", {{"head_dim", 8}, {"eos_token_id", {7, 9, 7}}, {"bos_token_id", 3}}));
  CHECK(c.family == Family::Qwen3);
  CHECK(c.architecture == "Qwen3ForCausalLM");
  CHECK(c.vocab_size == 32);
  CHECK(c.hidden_size == 16);
  CHECK(c.intermediate_size == 24);
  CHECK(c.layers == 2);
  CHECK(c.heads == 4);
  CHECK(c.kv_heads == 2);
  CHECK(c.head_dim == 8);  // and not 16 / 4
  CHECK(c.rms_norm_eps == 1e-6);
  CHECK_FALSE(c.tied_head);
  CHECK(c.max_positions == 256);
  CHECK(c.rope.theta == 10000.0);
  CHECK(c.rope.dim == 8);
  CHECK(c.eos_ids == std::vector<std::int32_t>{7, 9});
  CHECK(c.bos_id == 3);
}

TEST_CASE("families differ in biases, norms and the meaning of absent keys", "[model]") {
  const Config qwen2 = parse(tiny_config("qwen2"));
  CHECK(qwen2.qkv_bias);
  CHECK_FALSE((qwen2.o_bias || qwen2.mlp_bias || qwen2.qk_norm));
  CHECK(parse_changed("qwen2", {{"attention_bias", false}}).qkv_bias);  // no such key in this class

  const Config qwen3 = parse(tiny_config("qwen3"));
  CHECK(qwen3.qk_norm);
  CHECK_FALSE((qwen3.qkv_bias || qwen3.o_bias || qwen3.mlp_bias));
  const Config qwen3_bias = parse_changed("qwen3", {{"attention_bias", true}});
  CHECK((qwen3_bias.qkv_bias && qwen3_bias.o_bias));

  const Config llama = parse(tiny_config("llama"));
  CHECK_FALSE((llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm));
  const Config llama_bias = parse_changed("llama", {{"attention_bias", true}, {"mlp_bias", true}});
  CHECK((llama_bias.qkv_bias && llama_bias.o_bias && llama_bias.mlp_bias));

  // head_dim: absent it is 128 in Qwen3 and the quotient elsewhere; null is the quotient everywhere.
  CHECK(parse(without(tiny_config("qwen3"), "head_dim")).head_dim == 128);
  CHECK(parse(without(tiny_config("qwen2"), "head_dim")).head_dim == 4);
  CHECK(parse(without(tiny_config("llama"), "head_dim")).head_dim == 4);
  CHECK(parse_changed("qwen3", {{"head_dim", nullptr}}).head_dim == 4);

  // num_key_value_heads: null is as many as query heads; absent likewise in Llama only.
  for (const char* type : {"qwen2", "qwen3", "llama"})
    CHECK(parse_changed(type, {{"num_key_value_heads", nullptr}}).kv_heads == 4);
  CHECK(parse(without(tiny_config("llama"), "num_key_value_heads")).kv_heads == 4);
  for (const char* type : {"qwen2", "qwen3"}) {
    CHECK_THAT(refusal(without(tiny_config(type), "num_key_value_heads")), Contains("num_key_value_heads is missing"));
  }

  CHECK(parse(without(tiny_config("qwen3"), "max_position_embeddings")).max_positions == 32768);
  CHECK(parse(without(tiny_config("llama"), "max_position_embeddings")).max_positions == 2048);
  CHECK(parse(without(tiny_config("llama"), "rms_norm_eps")).rms_norm_eps == 1e-6);
  CHECK(std::string(model::family_name(Family::Llama)) == "llama");
}

TEST_CASE("the class comes from architectures, else from model_type, and both must agree", "[model]") {
  CHECK(parse(without(tiny_config("qwen2"), "architectures")).architecture == "Qwen2ForCausalLM");
  CHECK(parse(without(tiny_config("qwen2"), "model_type")).family == Family::Qwen2);
  CHECK(parse_changed("qwen2", {{"architectures", nullptr}}).family == Family::Qwen2);
  CHECK_THAT(refusal(tiny_config("qwen2", {{"model_type", "qwen3"}})),
             Contains("architectures 'Qwen2ForCausalLM'") && Contains("model_type 'qwen3'") && Contains("contradict"));
  CHECK_THAT(refusal(without(without(tiny_config("qwen2"), "architectures"), "model_type")),
             Contains("architectures") && Contains("model_type") && Contains("Qwen3ForCausalLM"));
  CHECK_THAT(refusal(tiny_config("qwen2", {{"architectures", "Qwen2ForCausalLM"}})), Contains("a list of class names"));
  CHECK_THAT(refusal(tiny_config("qwen2", {{"architectures", {1}}})), Contains("a list of class names"));
  CHECK_THAT(refusal(tiny_config("qwen2", {{"model_type", 2}})), Contains("model_type is 2"));
}

TEST_CASE("unsupported classes are refused by name, with what they are", "[model]") {
  const auto other = [](const char* architecture, const char* type) {
    return refusal(tiny_config("qwen3", {{"architectures", {architecture}}, {"model_type", type}}));
  };
  CHECK_THAT(other("GPT2LMHeadModel", "gpt2"),
             Contains("'GPT2LMHeadModel'") && Contains("'gpt2'") && Contains("supported: Qwen2"));
  CHECK_THAT(other("Qwen3MoeForCausalLM", "qwen3_moe"),
             Contains("Qwen3MoeForCausalLM") && Contains("mixture of experts"));
  CHECK_THAT(other("Qwen2MoeForCausalLM", "qwen2_moe"), Contains("mixture of experts"));
  CHECK_THAT(other("Qwen3NextForCausalLM", "qwen3_next"), Contains("Qwen3NextForCausalLM") && Contains("hybrid"));
  CHECK_THAT(other("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"), Contains("multimodal"));
  CHECK_THAT(other("Qwen3ForSequenceClassification", "qwen3"), Contains("Qwen3ForSequenceClassification"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"text_config", {{"hidden_size", 16}}}})),
             Contains("text_config") && Contains("multimodal"));
  CHECK_THAT(refusal(Json{{"model_type", "qwen3_5"}, {"text_config", Json::object()}}),
             Contains("'qwen3_5'") && Contains("multimodal"));
}

TEST_CASE("keys that change the mathematics are refused, never ignored", "[model]") {
  CHECK_THAT(refusal(tiny_config("qwen3", {{"hidden_act", "gelu"}})),
             Contains("hidden_act is \"gelu\"") && Contains("silu"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"use_sliding_window", true}, {"sliding_window", 8}})),
             Contains("use_sliding_window is true"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"quantization_config", {{"quant_method", "awq"}, {"bits", 4}}}})),
             Contains("quantization_config") && Contains("\"awq\""));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"quantization_config", {{"bits", 4}}}})),
             Contains("quantization_config") && Contains("not given"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"layer_types", {"full_attention", "linear_attention"}}})),
             Contains("layer_types") && Contains("\"linear_attention\""));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"layer_types", {"sliding_attention", "full_attention"}}})),
             Contains("\"sliding_attention\""));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"layer_types", {"full_attention"}}})),
             Contains("layer_types has 1 entries") && Contains("2"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"layer_types", "full_attention"}})), Contains("layer_types"));
}

TEST_CASE("a window that is not in use, and unknown keys, change nothing", "[model]") {
  const Json changes = {{"use_sliding_window", false}, {"sliding_window", 4},
                        {"max_window_layers", 70},     {"layer_types", {"full_attention", "full_attention"}},
                        {"attention_dropout", 0.5},    {"use_cache", true},
                        {"auto_map", {{"a", "b"}}},    {"quantization_config", nullptr},
                        {"torch_dtype", "bfloat16"},   {"dtype", "float32"},
                        {"pretraining_tp", 4}};
  CHECK(refusal(tiny_config("qwen3", changes)).empty());
}

TEST_CASE("sizes must be there and in range", "[model]") {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    INFO(key);
    CHECK_THAT(refusal(without(tiny_config("qwen3"), key)), Contains(std::string(key) + " is missing"));
    CHECK_THAT(refusal(tiny_config("qwen3", {{key, nullptr}})), Contains(std::string(key) + " is null"));
    for (const Json& bad : {Json(0), Json(-1), Json(1.5), Json("16"), Json(true), Json::array(), Json(1e300),
                            Json(18446744073709551615u), Json(std::int64_t{1} << 40)}) {
      INFO(bad);
      CHECK_THAT(refusal(tiny_config("qwen3", {{key, bad}})),
                 Contains(std::string(key) + " is " + bad.dump()) && Contains("expected an integer"));
    }
  }
  CHECK(parse_changed("qwen3", {{"hidden_size", 16.0}}).hidden_size == 16);  // some writers have only floats
  CHECK_THAT(refusal(tiny_config("qwen3", {{"hidden_size", (1 << 20) + 1}})), Contains("1048576"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"num_hidden_layers", 1025}})), Contains("1024"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"head_dim", 0}})), Contains("head_dim"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"head_dim", 1026}})), Contains("head_dim"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"head_dim", 5}})), Contains("head_dim is 5") && Contains("even"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"num_key_value_heads", 3}})),
             Contains("num_attention_heads 4") && Contains("num_key_value_heads 3"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"num_key_value_heads", 8}})), Contains("num_key_value_heads 8"));
  CHECK_THAT(refusal(without(tiny_config("llama", {{"hidden_size", 18}}), "head_dim")),
             Contains("head_dim is missing") && Contains("18"));
  for (const Json& bad : {Json(0), Json(-1e-6), Json(0.5), Json("1e-6")}) {
    INFO(bad);
    CHECK_THAT(refusal(tiny_config("qwen3", {{"rms_norm_eps", bad}})), Contains("rms_norm_eps"));
  }
  CHECK_THAT(refusal(tiny_config("qwen3", {{"tie_word_embeddings", 1}})),
             Contains("tie_word_embeddings is 1") && Contains("true or false"));
  CHECK_THAT(refusal(tiny_config("qwen3", {{"max_position_embeddings", 0}})), Contains("max_position_embeddings"));
}

TEST_CASE("token ids are an integer or a list", "[model]") {
  CHECK(parse_changed("qwen3", {{"eos_token_id", 5}}).eos_ids == std::vector<std::int32_t>{5});
  CHECK(parse_changed("qwen3", {{"eos_token_id", nullptr}}).eos_ids.empty());
  for (const Json& bad : {Json(-1), Json("x"), Json({1, "x"}), Json(2147483648), Json({{1}})}) {
    INFO(bad);
    CHECK_THAT(refusal(tiny_config("qwen3", {{"eos_token_id", bad}})), Contains("eos_token_id"));
  }
}

TEST_CASE("text that is no JSON object is refused", "[model]") {
  for (const char* bad : {"", "[]", "3", "null", "{", "{} {}", "{\"a\":1,\"a\":2}", "{\"a\":NaN}", "\xff"}) {
    INFO(bad);
    CHECK_FALSE(refusal(std::string(bad)).empty());
  }
  CHECK_THAT(refusal(std::string("version https://git-lfs.github.com/spec/v1\n")), Contains("Git LFS"));
  // What a hostile value costs in a message is bounded.
  CHECK(refusal(tiny_config("qwen3", {{"hidden_act", std::string(1 << 20, 'x')}})).size() < 600);
  CHECK(refusal(tiny_config("qwen3", {{"hidden_size", std::vector<int>(1 << 16, 1)}})).size() < 600);
}

TEST_CASE("generation_config.json gives what it has", "[model]") {
  const auto g = model::parse_generation_config(
      R"({"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95,"repetition_penalty":1.05,"eos_token_id":[151645,151643],"x":1})",
      "g.json");
  CHECK(g.do_sample == true);
  CHECK(g.temperature == 0.6);
  CHECK(g.top_k == 20);
  CHECK(g.top_p == 0.95);
  CHECK(g.repetition_penalty == 1.05);
  CHECK_FALSE(g.min_p.has_value());
  CHECK(g.eos_ids == std::vector<std::int32_t>{151645, 151643});
  const auto none = model::parse_generation_config("{}", "g.json");
  CHECK_FALSE((none.do_sample || none.temperature || none.top_k || none.top_p || none.repetition_penalty));
  CHECK(none.eos_ids.empty());
  for (const char* bad :
       {R"({"temperature":-1})", R"({"top_p":1.5})", R"({"top_p":0})", R"({"top_p":-0.0})", R"({"top_k":1.5})",
        R"({"do_sample":"yes"})", R"({"repetition_penalty":0})", R"({"eos_token_id":"x"})", "[]"}) {
    INFO(bad);
    CHECK_THROWS_WITH(model::parse_generation_config(bad, "g.json"), Contains("g.json"));
  }
}

TEST_CASE("the folder's files are found, and common wrong folders explained", "[model]") {
  const test::TempDir dir;
  CHECK_THROWS_WITH(model::load_config(dir.path() / "no"), Contains("no: no such directory"));
  CHECK_THROWS_WITH(model::load_config(dir.path()), Contains("config.json is missing") && Contains("empty"));
  CHECK_FALSE(model::load_generation_config(dir.path()).do_sample.has_value());
  test::write_file(dir.path() / "notes.txt", "x");
  CHECK_THROWS_WITH(model::load_config(dir.path() / "notes.txt"), Contains("not a directory"));
  CHECK_THROWS_WITH(model::load_config(dir.path()), Contains("it holds notes.txt"));
  test::write_file(dir.path() / "model-q4.gguf", "x");
  CHECK_THROWS_WITH(model::load_config(dir.path()), Contains("GGUF"));
  test::write_file(dir.path() / "adapter_config.json", "{}");
  CHECK_THROWS_WITH(model::load_config(dir.path()), Contains("LoRA adapter"));
  test::write_file(dir.path() / "config.json", tiny_config("llama").dump());
  test::write_file(dir.path() / "generation_config.json", R"({"do_sample":true})");
  CHECK(model::load_config(dir.path()).family == Family::Llama);
  CHECK(model::load_generation_config(dir.path()).do_sample == true);
  std::filesystem::resize_file(dir.path() / "config.json", std::uintmax_t{1} << 40);  // sparse
  CHECK_THROWS_WITH(model::load_config(dir.path()), Contains("config.json") && Contains("1099511627776"));
}

TEST_CASE("the shipped models' configs are understood", "[model]") {
  const Config qwen3 = model::load_config(test::shipped_model("tiny-austen"));
  CHECK(qwen3.family == Family::Qwen3);
  CHECK(qwen3.head_dim == 64);
  CHECK(qwen3.tied_head);
  CHECK(qwen3.rope.theta == 1e6);  // given in the old and the new place
  CHECK(qwen3.max_positions == 1024);
  const Config qwen2 = model::load_config(test::shipped_model("tiny-austen-qwen2"));
  CHECK(qwen2.family == Family::Qwen2);
  CHECK(qwen2.head_dim == 32);
  CHECK_FALSE(qwen2.tied_head);
  const auto defaults = model::load_generation_config(test::shipped_model("tiny-austen"));
  CHECK(defaults.eos_ids == std::vector<std::int32_t>{4095, 4093});
}
