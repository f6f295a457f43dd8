#include "model/config.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "model/config_reader.h"
#include "model/directory.h"
#include "model/families/family.h"
#include "model/rope.h"

namespace glyd::model {
namespace {

constexpr std::uint64_t kMostConfigBytes = 4 << 20;
constexpr std::int64_t kMostWidth = 1 << 20, kMostLayers = 1024, kMostHeads = 4096, kMostHeadDim = 1024;
constexpr std::int64_t kMostVocab = 1 << 22, kMostPositions = 1 << 27;

std::string supported_families() {
  std::string text;
  for (const FamilyRules* rules : families()) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", rules->architecture, rules->model_type);
  }
  return text;
}

// Why a class that is not in the table is not: known relatives are explained.
std::string describe_unsupported(const ConfigReader& reader, const std::string& architecture, const std::string& type) {
  const auto mentions = [&](std::string_view word) {
    return architecture.find(word) != std::string::npos || type.find(word) != std::string::npos;
  };
  if (reader.has("text_config") || mentions("VL") || mentions("Vision") || mentions("vl") || mentions("Omni")) {
    return "a multimodal wrapper (vision, audio), which is not supported";
  }
  if (mentions("Qwen3Next") || mentions("qwen3_next") || mentions("Qwen3_5") || mentions("qwen3_5")) {
    return "a hybrid model with linear attention, which is not supported yet";
  }
  if (mentions("Moe") || mentions("moe") || reader.has("num_experts") || reader.has("num_local_experts")) {
    return "a mixture of experts, which is not supported yet";
  }
  return "a class that is not supported";
}

// architectures[0], "" when there is none.
std::string first_architecture(const ConfigReader& reader) {
  if (!reader.has("architectures")) return "";
  const io::Json& list = *reader.find("architectures");
  const auto is_string = [](const io::Json& entry) { return entry.is_string(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_string)) {
    reader.refuse("architectures", "expected a list of class names");
  }
  return list.empty() ? "" : list.front().get<std::string>();
}

const FamilyRules& find_family(const ConfigReader& reader, std::string& architecture) {
  architecture = first_architecture(reader);
  const std::string type = reader.string("model_type").value_or("");
  const FamilyRules *by_class = nullptr, *by_type = nullptr;
  for (const FamilyRules* rules : families()) {
    if (architecture == rules->architecture) by_class = rules;
    if (type == rules->model_type) by_type = rules;
  }
  const std::string found = architecture.empty() ? "model_type " + quote(type)
                            : type.empty()       ? "architectures " + quote(architecture)
                                           : "architectures " + quote(architecture) + ", model_type " + quote(type);
  if (architecture.empty() && type.empty()) {
    fail(Code::Model, "{}: neither architectures nor model_type says what model this is; supported: {}",
         printable(reader.what()), supported_families());
  }
  if (!(architecture.empty() ? by_type : by_class)) {
    fail(Code::Model, "{}: {}: {}; supported: {}", printable(reader.what()), found,
         describe_unsupported(reader, architecture, type), supported_families());
  }
  if (!architecture.empty() && !type.empty() && by_class != by_type) {
    fail(Code::Model, "{}: {}: they contradict each other; {} goes with model_type {}", printable(reader.what()), found,
         by_class->architecture, by_class->model_type);
  }
  const FamilyRules& rules = by_class ? *by_class : *by_type;
  if (architecture.empty()) architecture = rules.architecture;
  return rules;
}

void refuse_quantization(const ConfigReader& reader) {
  if (!reader.has("quantization_config")) return;
  const io::Json& value = *reader.find("quantization_config");
  const bool named = value.is_object() && value.contains("quant_method");
  fail(Code::Model,
       "{}: quantization_config says that the weights are quantised (quant_method {}); use the model's bf16 release",
       printable(reader.what()), named ? json_text(value["quant_method"]) : "not given");
}

// Full attention in every layer is what is implemented; anything else is refused, never ignored.
void check_attention(const ConfigReader& reader, const Config& config) {
  if (reader.boolean("use_sliding_window").value_or(false)) {
    reader.refuse("use_sliding_window", "sliding-window attention is not supported; only false is");
  }
  if (!reader.has("layer_types")) return;
  const io::Json& types = *reader.find("layer_types");
  if (!types.is_array()) reader.refuse("layer_types", "expected a list with one entry a layer");
  for (const io::Json& type : types) {
    if (type != "full_attention") {
      fail(Code::Model, "{}: layer_types holds {}; only \"full_attention\" is supported", printable(reader.what()),
           json_text(type));
    }
  }
  if (types.size() != static_cast<std::size_t>(config.layers)) {
    fail(Code::Model, "{}: layer_types has {} entries, num_hidden_layers is {}; they must agree",
         printable(reader.what()), types.size(), config.layers);
  }
}

void read_sizes(const ConfigReader& reader, const FamilyRules& rules, Config& config) {
  config.vocab_size = reader.required("vocab_size", 1, kMostVocab);
  config.hidden_size = reader.required("hidden_size", 1, kMostWidth);
  config.intermediate_size = reader.required("intermediate_size", 1, kMostWidth);
  config.layers = static_cast<int>(reader.required("num_hidden_layers", 1, kMostLayers));
  config.heads = static_cast<int>(reader.required("num_attention_heads", 1, kMostHeads));

  // An explicit null means "as many as query heads" everywhere; leaving the key out means it in Llama files only.
  const bool kv_given =
      reader.has("num_key_value_heads") || (rules.needs_kv_heads && !reader.find("num_key_value_heads"));
  config.kv_heads = kv_given ? static_cast<int>(reader.required("num_key_value_heads", 1, kMostHeads)) : config.heads;
  if (config.heads % config.kv_heads != 0) {
    fail(Code::Model, "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
         printable(reader.what()), config.heads, config.kv_heads);
  }

  // The quotient of the sizes is only a fallback: published models have heads * head_dim != hidden_size.
  if (const auto given = reader.integer("head_dim", 1, kMostHeadDim)) {
    config.head_dim = static_cast<int>(*given);
  } else if (rules.head_dim != 0 && !reader.find("head_dim")) {
    config.head_dim = rules.head_dim;
  } else if (config.hidden_size % config.heads == 0 && config.hidden_size / config.heads <= kMostHeadDim) {
    config.head_dim = static_cast<int>(config.hidden_size / config.heads);
  } else {
    fail(Code::Model,
         "{}: head_dim is missing, and hidden_size {} / num_attention_heads {} is no integer up to {}; add head_dim",
         printable(reader.what()), config.hidden_size, config.heads, kMostHeadDim);
  }
  if (config.head_dim % 2 != 0) {
    fail(Code::Model, "{}: head_dim is {}; rotary embedding needs an even number", printable(reader.what()),
         config.head_dim);
  }
}

io::Json parse_object(const std::string& text, const std::string& what) {
  if (text.starts_with("version https://git-lfs")) {
    fail(Code::Model, "{}: a Git LFS pointer, the file itself was not downloaded; run 'git lfs pull'", printable(what));
  }
  io::Json object = io::parse_json(text, what);
  if (!object.is_object())
    fail(Code::Model, "{}: holds {}, expected a JSON object", printable(what), json_text(object));
  return object;
}

}  // namespace

Config parse_config(const std::string& text, const std::string& what) {
  const io::Json object = parse_object(text, what);
  const ConfigReader reader(object, what);

  Config config;
  const FamilyRules& rules = find_family(reader, config.architecture);
  config.family = rules.family;
  if (reader.has("text_config")) {
    fail(Code::Model, "{}: text_config: a multimodal wrapper around {}, which is not supported; use a text-only model",
         printable(what), config.architecture);
  }
  refuse_quantization(reader);
  if (reader.string("hidden_act").value_or("silu") != "silu") {
    reader.refuse("hidden_act", "only \"silu\" is supported");
  }
  read_sizes(reader, rules, config);
  check_attention(reader, config);
  rules.apply(reader, config);

  config.rms_norm_eps = reader.number("rms_norm_eps", 0, 1e-2).value_or(1e-6);
  if (config.rms_norm_eps <= 0) reader.refuse("rms_norm_eps", "expected a number above 0");
  config.tied_head = reader.boolean("tie_word_embeddings").value_or(false);
  config.max_positions = reader.integer("max_position_embeddings", 1, kMostPositions).value_or(rules.max_positions);
  read_rope(reader, config);

  config.eos_ids = reader.token_ids("eos_token_id");
  if (const auto bos = reader.integer("bos_token_id", 0, INT32_MAX)) config.bos_id = static_cast<std::int32_t>(*bos);
  return config;
}

GenerationDefaults parse_generation_config(const std::string& text, const std::string& what) {
  const io::Json object = parse_object(text, what);
  const ConfigReader reader(object, what);
  GenerationDefaults defaults;
  defaults.do_sample = reader.boolean("do_sample");
  defaults.temperature = reader.number("temperature", 0, 1e6);
  defaults.top_p = reader.number("top_p", 0, 1);
  if (defaults.top_p == 0.0) reader.refuse("top_p", "0 leaves nothing to sample from; 1 turns it off");
  defaults.min_p = reader.number("min_p", 0, 1);
  defaults.repetition_penalty = reader.number("repetition_penalty", 1e-6, 1e6);
  if (const auto top_k = reader.integer("top_k", -1, INT32_MAX)) defaults.top_k = std::max(0, static_cast<int>(*top_k));
  defaults.eos_ids = reader.token_ids("eos_token_id");
  return defaults;
}

Config load_config(const std::filesystem::path& dir) {
  require_directory(dir);
  const std::filesystem::path path = dir / "config.json";
  if (!entry_exists(path)) explain_no_config(dir);
  return parse_config(io::read_text(path, kMostConfigBytes), path.string());
}

GenerationDefaults load_generation_config(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "generation_config.json";
  if (!entry_exists(path)) return {};
  return parse_generation_config(io::read_text(path, kMostConfigBytes), path.string());
}

}  // namespace glyd::model
