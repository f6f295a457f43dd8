#include "runner/cuda/weight_source.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/sizes.h"
#include "base/timing.h"
#include "cuda/packing/packing.h"
#include "runner/cuda/check.h"
#include "runner/cuda/device_memory.h"

namespace glyd::runner {
namespace {

constexpr std::uint64_t kStaging = 64 << 20;  // of each of two pinned buffers
constexpr float kSigma = 0.02f;               // of random weights

template <class Body>
void timed(double& seconds, const Body& body) {
  const auto start = Clock::now();
  body();
  seconds += seconds_since(start);
}

class CheckpointSource : public WeightSource {
 public:
  // `pool` null: sizes alone are asked for.
  CheckpointSource(const model::Checkpoint& checkpoint, ThreadPool* pool, cudaStream_t stream)
      : checkpoint_(checkpoint), pool_(pool), stream_(stream) {}

  void rows(const PartOf& m, std::uint16_t* to, std::int64_t stride) override {
    const std::uint64_t row_bytes = m.part.cols.size() * sizeof(Bf16),
                        stride_bytes = unsigned_of(stride) * sizeof(Bf16);
    if (row_bytes != stride_bytes)
      check(cudaMemsetAsync(to, 0, unsigned_of(m.rows()) * stride_bytes, stream_), "clearing memory for weights");
    upload(
        unsigned_of(m.rows()), row_bytes,
        [&](std::uint64_t first, std::uint64_t last, std::uint8_t* memory) {
          checkpoint_.read_part(*m.spec, m.part, first, last - first,
                                {reinterpret_cast<Bf16*>(memory), (last - first) * m.part.cols.size()});
        },
        [&](std::uint64_t first, std::uint64_t last, const std::uint8_t* memory) {
          check(cudaMemcpy2DAsync(to + first * unsigned_of(stride), stride_bytes, memory, row_bytes, row_bytes,
                                  last - first, cudaMemcpyHostToDevice, stream_),
                "copying weights");
        });
  }

  Packed packed_size(const PartOf& m) const override {
    const std::optional<codec::PackedPart> stored = checkpoint_.packed_part(*m.spec, m.part);
    return stored ? Packed{stored->bytes(), stored->longest_word()} : Packed{};
  }

  bool is_packed(const PartOf& m) const override { return checkpoint_.packed(*m.spec) != nullptr; }

  void packed(const PartOf& m, std::uint8_t* to) override {
    const std::optional<codec::PackedPart> stored = checkpoint_.packed_part(*m.spec, m.part);
    constexpr std::uint64_t kPiece = 1 << 20;
    const auto end_of = [&](std::uint64_t piece) { return std::min(piece * kPiece, stored->bytes()); };
    upload((stored->bytes() + kPiece - 1) / kPiece, kPiece,
           [&](std::uint64_t first, std::uint64_t last, std::uint8_t* memory) {
             stored->read(first * kPiece, {reinterpret_cast<std::byte*>(memory), end_of(last) - first * kPiece});
           },
           [&](std::uint64_t first, std::uint64_t last, const std::uint8_t* memory) {
             check(cudaMemcpyAsync(to + first * kPiece, memory, end_of(last) - first * kPiece, cudaMemcpyHostToDevice,
                                   stream_),
                   "copying weights");
           });
  }

  void vector(const model::VectorSpec& v, std::uint16_t* host) override {
    checkpoint_.read_vector(v, {reinterpret_cast<Bf16*>(host), v.size});
  }

 private:
  struct Buffer {
    PinnedMemory memory;
    Event done;
    void need(std::uint64_t bytes) {
      if (memory.bytes() < bytes) memory = PinnedMemory(bytes);
    }
  };
  struct Buffers {
    Buffer each[2];
    int turn = 0;
  };

  // Fills(begin, end, memory): units [begin, end) of `count`, each of `unit_bytes`, one after another; `copy` takes
  // them from the buffer to the device.
  template <class Fill, class Copy>
  void upload(std::uint64_t count, std::uint64_t unit_bytes, const Fill& fill, const Copy& copy) {
    if (!buffers_) buffers_ = std::make_unique<Buffers>();
    const std::uint64_t at_a_time = std::max<std::uint64_t>(1, kStaging / std::max<std::uint64_t>(1, unit_bytes));
    for (std::uint64_t begin = 0; begin < count; begin += at_a_time) {
      const std::uint64_t end = std::min(count, begin + at_a_time);
      Buffer& buffer = buffers_->each[buffers_->turn ^= 1];
      buffer.need(std::max(kStaging, unit_bytes));
      timed(wait_seconds, [&] { check(cudaEventSynchronize(buffer.done.get()), "copying weights"); });
      timed(read_seconds, [&] {
        const std::uint64_t grain = std::max<std::uint64_t>(1, (4u << 20) / std::max<std::uint64_t>(1, unit_bytes));
        pool_->parallel_for(end - begin, grain, [&](std::size_t first, std::size_t last) {
          fill(begin + first, begin + last, buffer.memory.get() + first * unit_bytes);
        });
      });
      copy(begin, end, buffer.memory.get());
      check(cudaEventRecord(buffer.done.get(), stream_), "copying weights");
    }
    timed(wait_seconds, [&] { check(cudaStreamSynchronize(stream_), "copying weights"); });
  }

  const model::Checkpoint& checkpoint_;
  ThreadPool* pool_;
  cudaStream_t stream_;
  std::unique_ptr<Buffers> buffers_;
};

// The same for every format and order of loading.
std::uint64_t name_hash(const std::string& name) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

class RandomSource : public WeightSource {
 public:
  RandomSource(std::uint64_t seed, cudaStream_t stream) : seed_(seed), stream_(stream) {}

  void rows(const PartOf& m, std::uint16_t* to, std::int64_t stride) override {
    for (const Range& range : m.part.rows) {
      const cuda::Window window{static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size()),
                                static_cast<std::int64_t>(m.part.cols.begin), m.cols(),
                                static_cast<std::int64_t>(m.spec->cols)};
      check(cuda::random_weights(seed_ ^ name_hash(m.spec->name), kSigma, window, to, stride, stream_),
            "making random weights");
      to += static_cast<std::int64_t>(range.size()) * stride;
    }
  }

  Packed packed_size(const PartOf&) const override { return {}; }
  bool is_packed(const PartOf&) const override { return false; }
  void packed(const PartOf&, std::uint8_t*) override {}

  void vector(const model::VectorSpec& v, std::uint16_t* host) override {
    const bool norm = v.name.find("norm") != std::string::npos;
    std::fill_n(host, v.size, to_bf16(norm ? 1.0f : 0.01f).bits);
  }

 private:
  std::uint64_t seed_;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<WeightSource> checkpoint_source(const model::Checkpoint& checkpoint, ThreadPool& pool,
                                                cudaStream_t stream) {
  return std::make_unique<CheckpointSource>(checkpoint, &pool, stream);
}

std::unique_ptr<WeightSource> sizes_of(const model::Checkpoint& checkpoint) {
  return std::make_unique<CheckpointSource>(checkpoint, nullptr, nullptr);
}

std::unique_ptr<WeightSource> random_source(std::uint64_t seed, cudaStream_t stream) {
  return std::make_unique<RandomSource>(seed, stream);
}

}  // namespace glyd::runner
