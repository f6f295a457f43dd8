#pragma once
// What lies in a model directory, and what to say when it is not what was expected.

#include <filesystem>
#include <string>
#include <vector>

namespace glyd::model {

// True for anything with that name, a dangling link too: opening it then says what is wrong.
bool entry_exists(const std::filesystem::path& path);

// Whether weights lie in `dir`: a single file, or an index of shards.
bool has_weights(const std::filesystem::path& dir);

// Throws Error(Model) unless `dir` is a directory.
void require_directory(const std::filesystem::path& dir);

// Throw Error(Model): config.json, or the weights, are not in `dir`. Common wrong inputs (an adapter, GGUF, PyTorch
// files, shards without their index) are named with the cure; the directory is listed.
[[noreturn]] void explain_no_config(const std::filesystem::path& dir);
[[noreturn]] void explain_no_weights(const std::filesystem::path& dir);

}  // namespace glyd::model
