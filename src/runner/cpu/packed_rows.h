#pragma once
// A matrix that stays packed in memory: a row tile is decoded when it is multiplied, and is then bit for bit what the
// plain matrix holds.

#include <cstddef>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "codec/unpack.h"
#include "runner/cpu/weight_rows.h"

namespace glyd::runner::cpu {

class PackedRows : public WeightRows {
 public:
  // Takes the bytes of a packed matrix; `what` (tensor and file) opens every message. All of its units are decoded
  // once, so that damage is found before any product uses it. Throws Error(Model).
  PackedRows(std::vector<std::byte> bytes, std::string what, ThreadPool& pool);

  const Bf16* fetch(std::size_t first, std::size_t count, Bf16* scratch) const override;
  std::uint64_t bytes() const override { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
  codec::Unpacker unpacker_;
};

}  // namespace glyd::runner::cpu
