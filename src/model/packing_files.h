#pragma once
// What packing and unpacking share: the bytes of original tensors, other files, where output may go.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "codec/manifest.h"
#include "model/weight_files.h"

namespace glyd::model {

// Calls `visit` with the tensor's bytes in the original, piece after piece, decoded where they are packed.
void read_original(const WeightFiles::Place& place,
                   const std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>& visit);

// Runs jobs of such sizes in parallel, the largest first.
void run_largest_first(const std::vector<std::uint64_t>& sizes, ThreadPool& threads,
                       const std::function<void(std::size_t)>& job);

// Names of the files in `dir` that go with the weights, sorted: not the weights themselves, nor weights in another
// form, nor folders; those are named in the log.
std::vector<std::string> other_files(const std::filesystem::path& dir, const std::set<std::string>& weight_files);

// Whether a file of that name in `dir` goes with the weights.
bool goes_along(const std::filesystem::path& dir, const std::string& name);

// Copies a file into the folder `to` and returns its entry for the manifest.
codec::Manifest::OtherFile copy_other(const std::filesystem::path& from, const std::filesystem::path& to);

// Throws Error(Usage) when `out` is `model`, lies inside it or holds it.
void require_apart(const std::filesystem::path& model, const std::filesystem::path& out);

}  // namespace glyd::model
