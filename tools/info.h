#pragma once
// glyd-run --info: what a model directory holds.

#include <filesystem>

namespace glyd::tools {

// Prints configuration, sizes, tensors by class, tokenizer, template, stop ids and sampling defaults to stdout, as text
// or as one JSON object. A directory without weights is described from its config.json. Throws Error(Model).
void print_info(const std::filesystem::path& dir, bool json);

}  // namespace glyd::tools
