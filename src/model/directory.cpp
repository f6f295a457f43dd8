#include "model/directory.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace glyd::model {
namespace {

constexpr std::size_t kMostEntries = 10000;  // looked at
constexpr std::size_t kMostListed = 12;      // named

std::vector<std::string> entries(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end && names.size() < kMostEntries;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string listing(const std::vector<std::string>& names) {
  if (names.empty()) return "the directory is empty";
  std::string text = "it holds ";
  for (std::size_t i = 0; i < std::min(names.size(), kMostListed); ++i) text += (i ? ", " : "") + printable(names[i]);
  if (names.size() > kMostListed) text += fmt::format(" and {} more", names.size() - kMostListed);
  return text;
}

bool any_ends_with(const std::vector<std::string>& names, std::string_view suffix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.ends_with(suffix); });
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool has_weights(const std::filesystem::path& dir) {
  return io::is_regular_file(dir / "model.safetensors") || io::is_regular_file(dir / "model.safetensors.index.json");
}

bool entry_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
}

void require_directory(const std::filesystem::path& dir) {
  std::error_code error;
  if (std::filesystem::is_directory(dir, error)) return;
  fail(Code::Model, "{}: {}; pass the directory that holds config.json and the weights", printable(dir.native()),
       std::filesystem::exists(dir, error) ? "not a directory" : "no such directory");
}

void explain_no_config(const std::filesystem::path& dir) {
  const std::vector<std::string> names = entries(dir);
  const std::string where = printable(dir.native());
  if (contains(names, "adapter_config.json")) {
    fail(Code::Model,
         "{}: no config.json, but adapter_config.json: a LoRA adapter and not a model; merge it into its "
         "base model first",
         where);
  }
  if (any_ends_with(names, ".gguf")) {
    fail(Code::Model,
         "{}: no config.json, but a GGUF file, which is not supported; use the model's safetensors release", where);
  }
  fail(Code::Model, "{}: config.json is missing; {}; pass a model directory in the Hugging Face layout", where,
       listing(names));
}

void explain_no_weights(const std::filesystem::path& dir) {
  const std::vector<std::string> names = entries(dir);
  const char* cure = "download the weights into it";
  if (any_ends_with(names, ".safetensors")) {
    cure = "weights under other names need their model.safetensors.index.json";
  } else if (any_ends_with(names, ".bin") || any_ends_with(names, ".pt") || any_ends_with(names, ".pth")) {
    cure = "PyTorch files must be converted to safetensors first";
  } else if (any_ends_with(names, ".gguf")) {
    cure = "GGUF is not supported, use the model's safetensors release";
  }
  fail(Code::Model, "{}: neither model.safetensors nor model.safetensors.index.json; {}; {}", printable(dir.native()),
       listing(names), cure);
}

}  // namespace glyd::model
