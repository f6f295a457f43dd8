#pragma once
// What every operation of the CPU backend is given: threads, vector kernels, rounding, scratch memory.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "runner/cpu/aligned_buffer.h"
#include "runner/cpu/kernels.h"

namespace glyd::runner::cpu {

// Rows of floats in somebody else's memory: row(t) holds one token's values.
struct FloatRows {
  float* data = nullptr;
  std::size_t stride = 0;  // floats from row to row; padded, where vector loops read them
  float* row(std::size_t t) const { return data + t * stride; }
};

// Owns rows of `cols` floats, zero at first; the padding behind `cols` stays zero as no operation writes there.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  FloatBuffer(std::size_t rows, std::size_t cols)
      : stride_(padded(cols)), memory_(std::uint64_t{rows} * stride_, "workspace") {
    std::fill_n(memory_.data(), memory_.size(), 0.0f);
  }
  FloatRows rows() { return {memory_.data(), stride_}; }

 private:
  std::size_t stride_ = 0;
  AlignedBuffer<float> memory_;
};

class Context {
 public:
  // `max_stride`: the longest weight row, padded, that scratch() must have room for.
  Context(ThreadPool& pool, const Kernels& kernels, bool round_to_bf16, std::size_t max_stride)
      : pool_(pool), kernels_(kernels), bf16_(round_to_bf16) {
    for (int i = 0; i < pool.size(); ++i)
      scratch_.push_back({AlignedBuffer<Bf16>(kRowTile * max_stride, "scratch"),
                          AlignedBuffer<float>(kRowTile * max_stride, "scratch")});
  }

  ThreadPool& pool() { return pool_; }
  const Kernels& kernels() const { return kernels_; }

  // bf(...) of the specification: rounds to bf16 when activations are kept in bf16, else leaves `x` as it is.
  float rounded(float x) const { return bf16_ ? round_to_bf16(x) : x; }

  // Memory of the calling thread alone, for one row tile of a matrix.
  struct Scratch {
    AlignedBuffer<Bf16> rows;
    AlignedBuffer<float> widened;
  };
  Scratch& scratch() { return scratch_.at(static_cast<std::size_t>(ThreadPool::thread_index())); }

 private:
  ThreadPool& pool_;
  const Kernels& kernels_;
  bool bf16_;
  std::vector<Scratch> scratch_;
};

}  // namespace glyd::runner::cpu
