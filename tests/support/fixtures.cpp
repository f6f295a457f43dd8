#include "support/fixtures.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "base/bf16.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/packing.h"
#include "model/weights.h"

namespace glyd::test {
namespace {

// The byte that the specification's formula gives for element `i` of a tensor with this hash.
std::uint32_t formula_byte(std::uint32_t hash, std::uint64_t i) {
  std::uint32_t x = hash + static_cast<std::uint32_t>(i) * 0x9e3779b9u;
  x ^= x >> 16, x *= 0x7feb352du;
  x ^= x >> 15, x *= 0x846ca68bu;
  x ^= x >> 16;
  return x >> 24;
}

std::uint32_t fnv1a(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

bool is_printable_byte(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The 256 byte symbols in the order of published vocabularies: the printable bytes as themselves, then the rest.
std::vector<std::string> byte_symbols() {
  std::vector<std::string> printable_ones, others;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    std::string symbol;
    const bool plain = is_printable_byte(byte);
    append_utf8(symbol, plain ? static_cast<char32_t>(byte) : next++);
    (plain ? printable_ones : others).push_back(symbol);
  }
  printable_ones.insert(printable_ones.end(), others.begin(), others.end());
  return printable_ones;
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "glyd-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder: " + pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::filesystem::path shipped_model(const std::string& name) {
  return std::filesystem::path(GLYD_SOURCE_DIR) / "models" / name;
}

io::Json recorded(const std::string& name) {
  const auto path = tests_dir() / "data" / "goldens" / (name + ".json");
  return io::parse_json(read_file(path), path.string());
}

const std::filesystem::path& packed_copy(const std::string& name) {
  static const TempDir dir;
  static std::map<std::string, std::filesystem::path> made;
  const auto [place, is_new] = made.try_emplace(name, dir.path() / name);
  if (is_new) {
    ThreadPool pool(2);
    Progress silent;
    const auto report =
        model::pack_model(model::Checkpoint::open(shipped_model(name)), place->second, {}, pool, silent);
    if (report.total().packed == 0) throw std::runtime_error(name + " was not packed: there is nothing to compare");
  }
  return place->second;
}

std::filesystem::path tests_dir() { return std::filesystem::path(GLYD_SOURCE_DIR) / "tests"; }

std::optional<std::filesystem::path> test_data(const std::string& name) {
  const char* root = std::getenv("GLYD_TEST_DATA");
  if (root == nullptr || *root == '\0') return std::nullopt;
  const std::filesystem::path path = std::filesystem::path(root) / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

std::string safetensors_bytes(const std::vector<RawTensor>& tensors) {
  io::OrderedJson header = io::OrderedJson::object();
  std::string data;
  for (const RawTensor& tensor : tensors) {
    const std::size_t begin = data.size();
    data += tensor.data;
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(text.size() >> (8 * i) & 0xFF));
  return bytes + text + data;
}

io::Json tiny_config(const std::string& model_type, const io::Json& changes) {
  const char* architecture = model_type == "qwen2"   ? "Qwen2ForCausalLM"
                             : model_type == "qwen3" ? "Qwen3ForCausalLM"
                             : model_type == "llama" ? "LlamaForCausalLM"
                                                     : throw std::invalid_argument("no tiny config for " + model_type);
  io::Json config = {{"architectures", {architecture}},
                     {"model_type", model_type},
                     {"vocab_size", 32},
                     {"hidden_size", 16},
                     {"intermediate_size", 24},
                     {"num_hidden_layers", 2},
                     {"num_attention_heads", 4},
                     {"num_key_value_heads", 2},
                     {"head_dim", 4},
                     {"hidden_act", "silu"},
                     {"max_position_embeddings", 256},
                     {"rms_norm_eps", 1e-6},
                     {"rope_theta", 10000.0},
                     {"tie_word_embeddings", false}};
  config.update(changes);
  return config;
}

std::string formula_tensor(const std::string& name, std::uint64_t count) {
  const std::uint32_t hash = fnv1a(name);
  const bool is_norm = name.ends_with("norm.weight");
  std::string bytes(2 * count, '\0');
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<int>(formula_byte(hash, i));
    const float value =
        is_norm ? 1.0f + static_cast<float>(byte >> 3) / 128.0f : static_cast<float>(byte - 128) / 512.0f;
    const std::uint16_t bits = to_bf16(value).bits;
    bytes[2 * i] = static_cast<char>(bits & 0xFF);
    bytes[2 * i + 1] = static_cast<char>(bits >> 8);
  }
  return bytes;
}

std::vector<RawTensor> formula_tensors(const io::Json& config) {
  const model::ModelSpec spec = model::model_spec(model::parse_config(config.dump(), "config.json of a test"));
  std::vector<RawTensor> tensors;
  for (const model::MatrixSpec* matrix : model::all_matrices(spec)) {
    for (const model::Member& member : matrix->members) {
      tensors.push_back({member.tensor,
                         "BF16",
                         {member.rows, matrix->cols},
                         formula_tensor(member.tensor, member.rows * matrix->cols)});
    }
  }
  for (const model::VectorSpec* vector : model::all_vectors(spec)) {
    for (const model::Member& member : vector->members) {
      tensors.push_back({member.tensor, "BF16", {member.rows}, formula_tensor(member.tensor, member.rows)});
    }
  }
  return tensors;
}

RawTensor& named(std::vector<RawTensor>& tensors, const std::string& name) {
  for (RawTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

void write_formula_model(const std::filesystem::path& dir, const io::Json& config) {
  write_file(dir / "config.json", config.dump(2));
  write_file(dir / "model.safetensors", safetensors_bytes(formula_tensors(config)));
}

std::string tiny_tokenizer_json() {
  // Every merge joins symbols that exist by then; "\u0120" is the space.
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"\u0120", "t"}, {"h", "e"},      {"\u0120", "a"},  {"i", "n"},        {"\u0120t", "he"},
      {"r", "e"},      {"o", "n"},      {"\u0120", "w"},  {"l", "l"},        {"o", "r"},
      {"he", "ll"},    {"hell", "o"},   {"l", "d"},       {"\u0120w", "or"}, {"\u0120wor", "ld"},
      {"e", "r"},      {"\u0120", "s"}, {"\u0120a", "n"}, {"\u0120an", "d"}, {"in", "g"}};
  io::Json vocab = io::Json::object(), merge_list = io::Json::array(), added = io::Json::array();
  int next = 0;
  for (const std::string& symbol : byte_symbols()) vocab[symbol] = next++;
  for (const auto& [left, right] : merges) {
    vocab[left + right] = next++;
    merge_list.push_back({left, right});
  }
  for (const char* content : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", next++},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const io::Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const char* pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const io::Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const io::Json tokenizer = {{"version", "1.0"},
                              {"truncation", nullptr},
                              {"padding", nullptr},
                              {"added_tokens", added},
                              {"normalizer", {{"type", "NFC"}}},
                              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
                              {"post_processor", byte_level},
                              {"decoder", byte_level},
                              {"model",
                               {{"type", "BPE"},
                                {"dropout", nullptr},
                                {"unk_token", nullptr},
                                {"continuing_subword_prefix", ""},
                                {"end_of_word_suffix", ""},
                                {"fuse_unk", false},
                                {"byte_fallback", false},
                                {"ignore_merges", false},
                                {"vocab", vocab},
                                {"merges", merge_list}}}};
  return tokenizer.dump();
}

}  // namespace glyd::test
