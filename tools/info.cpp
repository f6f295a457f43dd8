#include "info.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "base/text.h"
#include "common.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/directory.h"
#include "model/weights.h"
#include "session.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace glyd::tools {
namespace {

using io::OrderedJson;

// Matrices that differ only in their layer: "qkv" of all layers.
struct TensorClass {
  std::uint64_t count = 0, rows = 0, cols = 0;
  std::uint64_t packed = 0, packed_bytes = 0,
                exceptions = 0;  // of a packed directory: how many of them, and their bytes
  std::uint64_t parameters() const { return count * rows * cols; }
};

// Classes in the order of a forward pass; norms and biases are one class.
std::vector<std::pair<std::string, TensorClass>> tensor_classes(const model::ModelSpec& spec,
                                                                const codec::Manifest* manifest) {
  std::vector<std::pair<std::string, TensorClass>> classes;
  const auto at = [&](const std::string& name) -> TensorClass& {
    for (auto& [known, tensors] : classes) {
      if (known == name) return tensors;
    }
    return classes.emplace_back(name, TensorClass{}).second;
  };
  for (const model::MatrixSpec* m : model::all_matrices(spec)) {
    TensorClass& tensors = at(m->name.substr(m->name.rfind('.') + 1));
    ++tensors.count;
    tensors.rows = m->rows;
    tensors.cols = m->cols;
  }
  if (manifest) {
    for (const codec::Manifest::Matrix& m : manifest->matrices) {
      TensorClass& tensors = at(m.name.substr(m.name.rfind('.') + 1));
      ++tensors.packed;
      tensors.packed_bytes += m.bytes;
      tensors.exceptions += m.exceptions;
    }
  }
  TensorClass vectors{1, 0, 1};
  for (const model::VectorSpec* v : model::all_vectors(spec)) vectors.rows += v->size;
  classes.emplace_back("norms and biases", vectors);
  return classes;
}

const char* rope_name(model::Rope::Kind kind) {
  switch (kind) {
    case model::Rope::Kind::Linear:
      return "linear";
    case model::Rope::Kind::Yarn:
      return "yarn";
    case model::Rope::Kind::Llama3:
      return "llama3";
    case model::Rope::Kind::Default:
      break;
  }
  return "default";
}

OrderedJson rope_json(const model::Rope& rope) {
  OrderedJson j = {{"kind", rope_name(rope.kind)}, {"theta", rope.theta}, {"dim", rope.dim}};
  if (rope.kind != model::Rope::Kind::Default) j["factor"] = rope.factor;
  if (rope.original_positions > 0) j["original_positions"] = rope.original_positions;
  return j;
}

OrderedJson config_json(const model::Config& c) {
  return {{"architecture", to_valid_utf8(c.architecture)},
          {"family", model::family_name(c.family)},
          {"layers", c.layers},
          {"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"vocab_size", c.vocab_size},
          {"tied_head", c.tied_head},
          {"qkv_bias", c.qkv_bias},
          {"qk_norm", c.qk_norm},
          {"rms_norm_eps", c.rms_norm_eps},
          {"context", c.max_positions},
          {"rope", rope_json(c.rope)}};
}

OrderedJson sampling_json(const model::GenerationDefaults& d) {
  OrderedJson j = OrderedJson::object();
  if (d.do_sample) j["do_sample"] = *d.do_sample;
  if (d.temperature) j["temperature"] = *d.temperature;
  if (d.top_k) j["top_k"] = *d.top_k;
  if (d.top_p) j["top_p"] = *d.top_p;
  if (d.min_p) j["min_p"] = *d.min_p;
  if (d.repetition_penalty) j["repetition_penalty"] = *d.repetition_penalty;
  return j;
}

double bits(std::uint64_t bytes, std::uint64_t weights) {
  return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
}

// Everything --info knows, as --json prints it.
OrderedJson gather(const std::filesystem::path& dir) {
  OrderedJson info = {{"path", to_valid_utf8(dir.native())}};
  std::optional<model::Checkpoint> checkpoint;
  if (model::has_weights(dir)) checkpoint = model::Checkpoint::open(dir);
  const model::Config config = checkpoint ? checkpoint->config() : model::load_config(dir);
  const model::ModelSpec spec = checkpoint ? checkpoint->spec() : model::model_spec(config);
  info["config"] = config_json(config);

  OrderedJson tensors = OrderedJson::array();
  std::uint64_t parameters = 0;
  TensorClass packed;
  std::uint64_t packed_parameters = 0;
  const codec::Manifest* manifest = checkpoint ? checkpoint->manifest() : nullptr;
  for (const auto& [name, t] : tensor_classes(spec, manifest)) {
    OrderedJson one = {
        {"class", name}, {"count", t.count}, {"shape", {t.rows, t.cols}}, {"parameters", t.parameters()}};
    if (manifest) {
      one["packed"] = t.packed;
      one["packed_bytes"] = t.packed_bytes;
      one["exceptions"] = t.exceptions;
    }
    tensors.push_back(std::move(one));
    parameters += t.parameters();
    packed.packed += t.packed;
    packed.packed_bytes += t.packed_bytes;
    packed.exceptions += t.exceptions;
    packed_parameters += t.packed * t.rows * t.cols;
  }
  info["parameters"] = parameters;
  info["packed"] = nullptr;
  if (manifest) {
    info["packed"] = {{"matrices", packed.packed},
                      {"bits_per_weight", bits(packed.packed_bytes, packed_parameters)},
                      {"bytes_before", 2 * packed_parameters},
                      {"bytes", packed.packed_bytes},
                      {"exceptions", packed.exceptions}};
  }
  if (checkpoint) {
    info["weights"] = {{"bytes", checkpoint->stored_bytes()}, {"files", checkpoint->files().size()}};
  } else {
    info["weights"] = nullptr;
  }
  info["kv_bytes_per_token"] = std::uint64_t{4} * static_cast<std::uint64_t>(config.layers) *
                               static_cast<std::uint64_t>(config.kv_heads) *
                               static_cast<std::uint64_t>(config.head_dim);
  info["tensors"] = tensors;

  const model::GenerationDefaults defaults = model::load_generation_config(dir);
  std::map<std::int32_t, std::string> stop;
  for (const auto id : config.eos_ids) stop[id];
  for (const auto id : defaults.eos_ids) stop[id];
  info["tokenizer"] = nullptr;
  if (has_tokenizer(dir)) {
    const text::Tokenizer tokenizer = text::Tokenizer::load(dir);
    info["tokenizer"] = {{"tokens", tokenizer.size()},
                         {"padding", std::max<std::int64_t>(0, config.vocab_size - tokenizer.size())}};
    if (tokenizer.eos()) stop[*tokenizer.eos()];
    for (auto& [id, content] : stop) content = to_valid_utf8(tokenizer.bytes(id));
  }
  OrderedJson stops = OrderedJson::array();
  for (const auto& [id, content] : stop) stops.push_back({{"id", id}, {"text", content}});
  info["stop"] = stops;
  const auto chat = text::ChatTemplate::load(dir);
  info["chat_template"] = chat.has_value();
  info["thinking"] = chat && chat->mentions("enable_thinking");
  info["sampling"] = sampling_json(defaults);
  return info;
}

std::string line(const char* name, const std::string& value) { return fmt::format("{:<14} {}\n", name, value); }

std::string as_text(const OrderedJson& info) {
  const OrderedJson& c = info["config"];
  const auto number = [](const OrderedJson& j) { return with_commas(j.get<std::uint64_t>()); };
  std::string out = line("path", printable(info["path"].get<std::string>()));
  out += line("architecture",
              fmt::format("{} ({})", printable(c["architecture"].get<std::string>()), c["family"].get<std::string>()));
  out += line("parameters", number(info["parameters"]));
  out += line("weights", info["weights"].is_null() ? "none in this directory"
                                                   : fmt::format("{} in {} file(s)", in_bytes(info["weights"]["bytes"]),
                                                                 info["weights"]["files"].dump()));
  if (const OrderedJson& p = info["packed"]; !p.is_null()) {
    out += line("packed", fmt::format("{} matrices, {} of {} in bf16, {:.3f} bits a weight, {} exceptions",
                                      p["matrices"].dump(), in_bytes(p["bytes"]), in_bytes(p["bytes_before"]),
                                      p["bits_per_weight"].get<double>(), number(p["exceptions"])));
  }
  out += line("layers", c["layers"].dump());
  out += line("hidden", fmt::format("{}, MLP {}", c["hidden_size"].dump(), c["intermediate_size"].dump()));
  out += line("attention",
              fmt::format("{} heads, {} of keys and values, {} wide{}{}", c["heads"].dump(), c["kv_heads"].dump(),
                          c["head_dim"].dump(), c["qkv_bias"] ? ", q, k and v with bias" : "",
                          c["qk_norm"] ? ", q and k normalised" : ""));
  out += line("vocabulary", fmt::format("{} rows, head {}", number(c["vocab_size"]),
                                        c["tied_head"] ? "tied to the embedding" : "of its own"));
  out += line("context", fmt::format("{} tokens, {} of keys and values a token in bf16", number(c["context"]),
                                     in_bytes(info["kv_bytes_per_token"])));
  out += line("rope", c["rope"].dump());
  out += line("tokenizer", info["tokenizer"].is_null()
                               ? "none in this directory"
                               : fmt::format("{} tokens, {} rows of padding", number(info["tokenizer"]["tokens"]),
                                             info["tokenizer"]["padding"].dump()));
  std::string stops;
  for (const OrderedJson& stop : info["stop"]) {
    const auto text = stop["text"].get<std::string>();  // empty without a tokenizer
    stops += fmt::format("{}{}{}", stops.empty() ? "" : ", ", stop["id"].dump(), text.empty() ? "" : " " + quote(text));
  }
  out += line("stops at", stops.empty() ? "nothing" : stops);
  out += line("chat template", info["chat_template"] ? (info["thinking"] ? "yes, with thinking" : "yes") : "no");
  out += line("sampling", info["sampling"].empty() ? "no defaults" : info["sampling"].dump());
  const bool packed = !info["packed"].is_null();
  out += fmt::format("\n{:<18} {:>6} {:>22} {:>18}{}\n", "tensors", "count", "shape", "parameters",
                     packed ? fmt::format(" {:>8} {:>12}", "bits", "exceptions") : "");
  for (const OrderedJson& t : info["tensors"]) {
    out += fmt::format("{:<18} {:>6} {:>22} {:>18}", t["class"].get<std::string>(), t["count"].dump(),
                       fmt::format("{} x {}", t["shape"][0].dump(), t["shape"][1].dump()), number(t["parameters"]));
    if (packed && t["packed"] == t["count"]) {
      out += fmt::format(" {:>8.3f} {:>12}", bits(t["packed_bytes"], t["parameters"]), number(t["exceptions"]));
    } else if (packed) {
      out += fmt::format(" {:>8} {:>12}", t["packed"] == 0 ? "plain" : "partly", number(t["exceptions"]));
    }
    out += "\n";
  }
  return out;
}

}  // namespace

void print_info(const std::filesystem::path& dir, bool json) {
  const OrderedJson info = gather(dir);
  print(json ? info.dump(2) + "\n" : as_text(info));
}

}  // namespace glyd::tools
