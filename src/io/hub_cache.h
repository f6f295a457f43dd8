#pragma once
// MODEL on the command line: a directory, or ORG/NAME in the local Hugging Face cache. Nothing is ever downloaded.

#include <filesystem>
#include <string>

namespace glyd::io {

// The directory that `model` names. A path that exists wins over a cache entry. The cache is $HF_HUB_CACHE, else
// $HF_HOME/hub, else ~/.cache/huggingface/hub; refs/main names the snapshot. Throws Error(Model): a path that is not a
// directory (a file says what to pass instead), a name not in the cache (says where it looked and the command that
// fetches it).
std::filesystem::path resolve_model(const std::string& model);

// ORG/NAME of the model whose cache entry `path` lies in; "" outside of any.
std::string hub_name(const std::filesystem::path& path);

}  // namespace glyd::io
