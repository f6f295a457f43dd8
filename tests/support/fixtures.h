#pragma once
// What tests of several parts share: temporary folders, small model directories made on the spot, the paths of data.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"

namespace glyd::test {

// A fresh folder, removed at the end of the scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, const std::string& bytes);
std::string read_file(const std::filesystem::path& path);

// The models in the repository, with what a reference implementation computed for them (tests/data/goldens), and their
// copies packed by model::pack_model: made when first asked for, removed when the program ends.
inline const std::vector<std::string> kShippedModels{"tiny-austen", "tiny-austen-qwen2"};
std::filesystem::path shipped_model(const std::string& name);
io::Json recorded(const std::string& name);
const std::filesystem::path& packed_copy(const std::string& name);

std::filesystem::path tests_dir();  // of the repository

// $GLYD_TEST_DATA / `name` when both exist; a test that needs it says WARN and returns otherwise.
std::optional<std::filesystem::path> test_data(const std::string& name);

// One tensor to be written; `data` holds its bytes.
struct RawTensor {
  std::string name, dtype;
  std::vector<std::uint64_t> shape;
  std::string data;
};

// The bytes of a safetensors file with these tensors in this order.
std::string safetensors_bytes(const std::vector<RawTensor>& tensors);

// A config for `model_type` ("qwen2", "qwen3", "llama") with the sizes of the specification's golden models: H 16, L 2,
// nq 4, nkv 2, d 4, I 24, V 32, eps 1e-6, theta 1e4, untied. `changes` is merged into it.
io::Json tiny_config(const std::string& model_type, const io::Json& changes = io::Json::object());

// Weights from the specification's formula (section 19: FNV-1a of the name, a mix of the index), for which golden
// outputs apply: the tensor `name` with `count` elements, as bf16 bytes; all tensors of a model (BF16), to be changed
// before they are written; and a model directory, config.json and model.safetensors.
std::string formula_tensor(const std::string& name, std::uint64_t count);
std::vector<RawTensor> formula_tensors(const io::Json& config);
void write_formula_model(const std::filesystem::path& dir, const io::Json& config);

// The one of that name, which has to be there.
RawTensor& named(std::vector<RawTensor>& tensors, const std::string& name);

// A minimal tokenizer.json: the 256 byte symbols in the published order, a few merges, <|endoftext|>, <|im_start|>,
// <|im_end|>.
std::string tiny_tokenizer_json();

}  // namespace glyd::test
