#include "io/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace glyd::io {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Where the Hugging Face tools keep what they downloaded.
fs::path cache_directory() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) return fs::path(xdg) / "huggingface" / "hub";
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

bool is_repository_part(std::string_view part) {
  const auto allowed = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return is_plain_name(part) && part.size() <= 96 && part[0] != '.' && std::all_of(part.begin(), part.end(), allowed);
}

// "ORG/NAME" as the cache spells it, "models--ORG--NAME"; nothing when `model` is not of that form.
std::optional<std::string> cache_entry(std::string_view model) {
  const auto slash = model.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view org = model.substr(0, slash), name = model.substr(slash + 1);
  if (!is_repository_part(org) || !is_repository_part(name)) return std::nullopt;
  return "models--" + std::string(org) + "--" + std::string(name);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

[[noreturn]] void refuse_file(const std::string& model) {
  const std::string name = printable(model);
  if (model.ends_with(".gguf")) {
    fail(Code::Model, "{}: a GGUF file, which is not supported; pass a directory with the model's safetensors release",
         name);
  }
  const fs::path parent = fs::path(model).parent_path();
  fail(Code::Model, "{}: a file; pass the directory that holds config.json and the weights{}", name,
       parent.empty() ? "" : ": " + printable(parent.native()));
}

// The revision that refs/main names: a plain folder name.
std::string main_revision(const fs::path& entry, const std::string& model) {
  const fs::path ref = entry / "refs" / "main";
  if (!io::is_regular_file(ref)) {
    std::vector<std::string> snapshots;
    std::error_code error;
    for (fs::directory_iterator it(entry / "snapshots", error), end; !error && it != end && snapshots.size() < 100;
         it.increment(error)) {
      snapshots.push_back(it->path().string());
    }
    std::sort(snapshots.begin(), snapshots.end());
    fail(Code::Model, "{}: {} is missing; {}", printable(model), printable(ref.native()),
         snapshots.empty() ? "fetch the model again: hf download " + printable(model)
                           : "pass a snapshot itself: " + printable(snapshots[0]));
  }
  std::string revision = read_text(ref, 4096);
  while (!revision.empty() && std::string_view(" \t\r\n").find(revision.back()) != std::string_view::npos) {
    revision.pop_back();
  }
  if (!is_plain_name(revision)) {
    fail(Code::Model, "{}: holds {}, expected the name of a snapshot; fetch the model again: hf download {}",
         printable(ref.native()), quote(revision), printable(model));
  }
  return revision;
}

}  // namespace

std::string hub_name(const fs::path& path) {
  constexpr std::string_view kStart = "models--";
  for (const fs::path& part : path) {
    const std::string name = part.native();
    const auto middle = name.find("--", kStart.size());
    if (!name.starts_with(kStart) || middle == std::string::npos) continue;
    return name.substr(kStart.size(), middle - kStart.size()) + "/" + name.substr(middle + 2);
  }
  return "";
}

fs::path resolve_model(const std::string& model) {
  if (is_folder(model)) return model;
  std::error_code error;
  if (fs::exists(model, error)) refuse_file(model);

  const auto entry_name = cache_entry(model);
  if (!entry_name) {
    fail(Code::Model, "{}: no such directory; MODEL is a directory, or ORG/NAME of a model in the Hugging Face cache",
         model.empty() ? "''" : printable(model));
  }
  const fs::path entry = cache_directory() / *entry_name;
  if (!is_folder(entry)) {
    fail(Code::Model,
         "{}: neither a directory nor in the Hugging Face cache (looked for {}); to fetch it: hf download {}",
         printable(model), printable(entry.native()), printable(model));
  }
  const fs::path snapshot = entry / "snapshots" / main_revision(entry, model);
  if (!is_folder(snapshot)) {
    fail(Code::Model, "{}: the snapshot {} is not there; to fetch it: hf download {}", printable(model),
         printable(snapshot.native()), printable(model));
  }
  return snapshot;
}

}  // namespace glyd::io
