#pragma once
// The encoder: a bf16 matrix to a packed matrix (docs/format.md).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "codec/code_choice.h"
#include "codec/packed_matrix.h"

namespace glyd::codec {

// Where a matrix comes from: fills `out` with rows [first_row, first_row + rows), row-major. It is asked for every row
// twice (histogram, then encoding), from several threads at once, and has to give the same weights both times.
using RowSource = std::function<void(std::uint64_t first_row, std::uint64_t rows, std::span<Bf16> out)>;

struct PackOptions {
  int max_code_bits = kCodeBits;  // longest code word, 1..kMaxCodeBits
  double min_saving = 0.05;  // of the plain size: a matrix that saves less is not packed. A negative value packs any.
};

// What is decided before the first unit is encoded; packing on a GPU decides the same.
struct PackPlan {
  PairCode code;
  PairEncoder encoder;
  std::vector<std::uint8_t> code_bytes;  // the code section
  SectionOffsets at;                     // as they will be, except that padding and wide units add to the streams
};
// Nothing when the matrix of this histogram is better left as it is.
std::optional<PackPlan> plan_packing(const UnitGrid& grid, const PairHistogram& histogram, const PackOptions& options);

// Whether a packed matrix of this size saves what the options ask for.
bool saves_enough(const UnitGrid& grid, double packed_bytes, const PackOptions& options);

// The packed matrix, or nothing when it is better left as it is: it saves too little, or is empty. The bytes depend on
// the weights and the options alone, not on the number of threads. Memory: the result and a few row tiles a thread.
// `progress` advances by the bytes of bf16 read, in all twice those of the matrix. Throws Error(Model) when the source
// changes while it is read, and what the source throws; Error(Usage) for bad options.
std::optional<std::vector<std::byte>> pack(const UnitGrid& grid, const RowSource& source, const PackOptions& options,
                                           ThreadPool& threads, Progress& progress);

// The same for a matrix in memory, [rows][cols].
std::optional<std::vector<std::byte>> pack(const UnitGrid& grid, std::span<const Bf16> weights,
                                           const PackOptions& options, ThreadPool& threads);

}  // namespace glyd::codec
