#pragma once
// The "model" of a case file made into a directory: tests/cases/README.md describes its keys.

#include <filesystem>

#include "io/json.h"

namespace glyd::test {

// Fills `dir` (which exists). Throws std::runtime_error for a description that makes no sense.
void make_case_model(const std::filesystem::path& dir, const io::Json& model);

}  // namespace glyd::test
