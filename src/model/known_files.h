#pragma once
// The names that files of a model directory have: what --force may replace.

#include <filesystem>

#include "io/output.h"

namespace glyd::model {

// Allows the files that a model directory or a packed one has: weights and their index, glyd.json, configs, what
// belongs to tokenizers and chat templates, the texts beside them; what glyd.json of `out` lists, where it can be read;
// and what `copied` names.
io::MayReplace known_files(const std::filesystem::path& out, io::MayReplace copied);

}  // namespace glyd::model
