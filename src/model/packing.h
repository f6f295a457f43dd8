#pragma once
// A model directory packed without loss, and the original directory made of it again, byte for byte.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "model/checkpoint.h"

namespace glyd::model {

struct PackSettings {
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool verify = true;             // read everything back and compare checksums before the directory gets its name
  bool replace = false;           // a directory that has that name already
  std::string glyd_version = {};  // to be recorded
};

// Where the bytes went, by class of tensor.
struct PackReport {
  struct Class {
    std::string name;  // "qkv", "o", "gate_up", "down", "embed", "lm_head"; "other" for all that is no matrix
    std::uint64_t tensors = 0, packed = 0;  // matrices (or other tensors), and how many of them are packed
    std::uint64_t weights = 0, bytes_before = 0, bytes_after = 0, exceptions = 0;
    double bits_a_weight() const;
  };
  std::vector<Class> classes;                               // in the order of a forward pass
  std::size_t files = 0;                                    // of weights written; 0 when none were
  Class total() const;                                      // of all matrices: without "other"
  std::uint64_t bytes_before() const, bytes_after() const;  // of all tensors
};

// What packing would give; nothing is written. All of these throw Error(Model) for files that cannot be read or are
// wrong, and whatever `progress` throws: that is how they are cancelled.
PackReport measure_packing(const Checkpoint& checkpoint, ThreadPool& threads, Progress& progress);

// Writes the packed directory `out`: it appears when all of it is written, or not at all. q,k,v and gate,up become one
// packed matrix each, as ModelSpec groups them; a matrix that is not BF16 or does not get smaller stays as it is, and
// so does every other tensor. Other files of the directory are copied, except weights in other forms (named in the
// log). Throws also Error(Usage) when `out` exists or lies in the model's directory, Error(Runtime) when it cannot be
// written.
PackReport pack_model(const Checkpoint& checkpoint, const std::filesystem::path& out, const PackSettings& settings,
                      ThreadPool& threads, Progress& progress);

// Writes the original of a packed directory to `out`. Every file's checksum is compared before `out` gets its name.
// Throws like pack_model. Returns the bytes of the weight files.
std::uint64_t unpack_model(const Checkpoint& packed, const std::filesystem::path& out, bool replace,
                           ThreadPool& threads, Progress& progress);

// Decodes every tensor of a packed directory and compares it, and every other file, with the checksums of the original.
// Throws Error(Model) naming the file and tensor that differ, or when the directory is not packed.
void verify_checksums(const Checkpoint& packed, ThreadPool& threads, Progress& progress);

}  // namespace glyd::model
