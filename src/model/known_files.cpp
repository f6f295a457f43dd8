#include "model/known_files.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "codec/manifest.h"

namespace glyd::model {
namespace {

namespace fs = std::filesystem;

// Of the model families that run, as their releases and the tools around them name them.
constexpr std::array<std::string_view, 19> kNames = {codec::kManifestName,
                                                     "model.safetensors.index.json",
                                                     "config.json",
                                                     "configuration.json",
                                                     "generation_config.json",
                                                     "params.json",
                                                     "preprocessor_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "tokenizer.model",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "chat_template.json",
                                                     "chat_template.jinja",
                                                     ".gitattributes",
                                                     ".gitignore"};

// Alone, or as .md or .txt.
constexpr std::array<std::string_view, 6> kTexts = {"README", "LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY"};

bool is_one_of(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_known(std::string_view name) {
  if (name.ends_with(".safetensors") || is_one_of(kNames, name)) return true;
  const std::string_view ending = name.substr(std::min(name.rfind('.'), name.size()));
  return (ending.empty() || ending == ".md" || ending == ".txt") &&
         is_one_of(kTexts, name.substr(0, name.size() - ending.size()));
}

// What the packed directory says it holds; nothing when it is none or is damaged.
std::set<std::string> listed_files(const fs::path& dir) {
  std::set<std::string> names;
  try {
    for (const codec::Manifest::OtherFile& file : codec::load_manifest(dir).others) names.insert(file.name);
  } catch (const Error&) {
  }
  return names;
}

}  // namespace

io::MayReplace known_files(const fs::path& out, io::MayReplace copied) {
  return [listed = listed_files(out), copied = std::move(copied)](const std::string& name) {
    return is_known(name) || listed.contains(name) || copied(name);
  };
}

}  // namespace glyd::model
