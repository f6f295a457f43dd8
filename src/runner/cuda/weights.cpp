#include "runner/cuda/weights.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "base/log.h"
#include "codec/packed_file.h"
#include "cuda/packing/packing.h"
#include "runner/cuda/check.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/packer.h"

namespace glyd::runner {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kStaging = 64 << 20;  // of each of two pinned buffers
constexpr float kSigma = 0.02f;               // of random weights

std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }
std::uint64_t size(std::int64_t n) { return static_cast<std::uint64_t>(n); }

std::int64_t plain_stride(std::uint64_t cols) { return static_cast<std::int64_t>(round_up(cols, codec::kGroupCols)); }
std::uint64_t plain_bytes(const model::MatrixSpec& m) {
  return round_up(m.rows * size(plain_stride(m.cols)) * sizeof(std::uint16_t), 256);
}

// Reads files with all threads into one of two pinned buffers while the other is copied to the device.
class Uploader {
 public:
  Uploader(ThreadPool& pool, cudaStream_t stream) : pool_(pool), stream_(stream) {}

  // Fills(begin, end, memory): units [begin, end) of `count`, each of `unit_bytes`, one after another; `copy` takes
  // them from the buffer to the device.
  template <class Fill, class Copy>
  void run(std::uint64_t count, std::uint64_t unit_bytes, const Fill& fill, const Copy& copy) {
    const std::uint64_t at_a_time = std::max<std::uint64_t>(1, kStaging / std::max<std::uint64_t>(1, unit_bytes));
    for (std::uint64_t begin = 0; begin < count; begin += at_a_time) {
      const std::uint64_t end = std::min(count, begin + at_a_time);
      Buffer& buffer = buffers_[turn_ ^= 1];
      buffer.need(std::max(kStaging, unit_bytes));
      timed(wait_seconds, [&] { check(cudaEventSynchronize(buffer.done.get()), "copying weights"); });
      timed(read_seconds, [&] {
        const std::uint64_t grain = std::max<std::uint64_t>(1, (4u << 20) / std::max<std::uint64_t>(1, unit_bytes));
        pool_.parallel_for(end - begin, grain, [&](std::size_t first, std::size_t last) {
          fill(begin + first, begin + last, buffer.memory.get() + first * unit_bytes);
        });
      });
      copy(begin, end, buffer.memory.get());
      check(cudaEventRecord(buffer.done.get(), stream_), "copying weights");
    }
  }
  void finish() {
    timed(wait_seconds, [&] { check(cudaStreamSynchronize(stream_), "copying weights"); });
  }

  template <class Body>
  static void timed(double& seconds, const Body& body) {
    const auto start = Clock::now();
    body();
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  double read_seconds = 0, wait_seconds = 0;

 private:
  struct Buffer {
    PinnedMemory memory;
    Event done;
    void need(std::uint64_t bytes) {
      if (memory.bytes() < bytes) memory = PinnedMemory(bytes);
    }
  };
  ThreadPool& pool_;
  cudaStream_t stream_;
  Buffer buffers_[2];
  int turn_ = 0;
};

// Where a matrix comes from.
struct Source {
  // Its bf16 rows to device memory [rows][stride].
  std::function<void(const model::MatrixSpec&, std::uint16_t* to, std::int64_t stride)> rows;
  // Its packed bytes to device memory; the number of bytes (0: it is not stored packed).
  std::function<std::uint64_t(const model::MatrixSpec&)> packed_bytes;
  std::function<void(const model::MatrixSpec&, std::uint8_t* to)> packed;
  std::function<void(const model::VectorSpec&, std::uint16_t* host)> vector;
};

class Loader {
 public:
  Loader(const Source& source, const LoadSettings& settings, Arena& arena, Progress& progress, std::uint64_t scratch)
      : source_(source), settings_(settings), arena_(arena), progress_(progress), scratch_(scratch) {}

  DeviceWeights load(const model::ModelSpec& spec) {
    const std::uint64_t before = arena_.used();
    DeviceWeights w;
    w.embed = matrix(spec.embed, spec.lm_head.members.empty());
    for (const model::LayerSpec& l : spec.layers) {
      DeviceLayer layer;
      layer.input_norm = vector(l.input_norm);
      layer.qkv = matrix(l.qkv);
      layer.qkv_bias = vector(l.qkv_bias);
      layer.q_norm = vector(l.q_norm);
      layer.k_norm = vector(l.k_norm);
      layer.o = matrix(l.o);
      layer.o_bias = vector(l.o_bias);
      layer.post_norm = vector(l.post_norm);
      layer.gate_up = matrix(l.gate_up);
      layer.gate_up_bias = vector(l.gate_up_bias);
      layer.down = matrix(l.down);
      layer.down_bias = vector(l.down_bias);
      w.layers.push_back(layer);
    }
    w.final_norm = vector(spec.final_norm);
    if (!spec.lm_head.members.empty()) w.lm_head = matrix(spec.lm_head);
    check(cudaStreamSynchronize(settings_.stream), "loading weights");
    w.bytes = arena_.used() - before;
    return w;
  }
  double pack_seconds = 0;

 private:
  // `multiplied`: by the product kernels. (An embedding that is not the head is only looked up.)
  DeviceMatrix matrix(const model::MatrixSpec& spec, bool multiplied = true) {
    DeviceMatrix m;
    m.rows = static_cast<std::int64_t>(spec.rows);
    m.cols = static_cast<std::int64_t>(spec.cols);
    const std::uint64_t before = arena_.used();
    if (settings_.format != WeightFormat::Bf16) make_packed(spec, multiplied, m);
    if (!m.packed) make_plain(spec, m);
    m.partition = cuda::make_partition(m.rows, m.cols, settings_.multiprocessors);
    const std::vector<std::uint8_t> splits = cuda::split_counts(m.partition);
    m.max_splits = *std::max_element(splits.begin(), splits.end());
    auto* counts = arena_.take<std::uint8_t>(splits.size(), spec.name.c_str());
    check(cudaMemcpyAsync(counts, splits.data(), splits.size(), cudaMemcpyHostToDevice, settings_.stream), "loading");
    check(cudaStreamSynchronize(settings_.stream), "loading weights");
    m.splits = counts;
    m.bytes = arena_.used() - before;
    progress_.advance(spec.rows * spec.cols * sizeof(Bf16));
    return m;
  }

  void make_plain(const model::MatrixSpec& spec, DeviceMatrix& m) {
    const std::int64_t stride = plain_stride(spec.cols);
    auto* data = static_cast<std::uint16_t*>(arena_.take(plain_bytes(spec), spec.name.c_str()));
    if (stride != m.cols)
      check(cudaMemsetAsync(data, 0, plain_bytes(spec), settings_.stream), "clearing memory for weights");
    source_.rows(spec, data, stride);
    m.plain = {data, m.rows, m.cols, stride};
  }

  // Leaves m.packed empty for a matrix that is to be plain.
  void make_packed(const model::MatrixSpec& spec, bool multiplied, DeviceMatrix& m) {
    const std::uint64_t stored = source_.packed_bytes(spec);
    if (stored == 0 && settings_.format != WeightFormat::Packed) return;
    auto* scratch = static_cast<std::uint8_t*>(scratch_.get());
    const std::uint64_t source_bytes = stored != 0 ? round_up(stored, 256) : plain_bytes(spec);
    Packer packer(scratch + source_bytes, Packer::scratch_bytes(m.rows, m.cols));
    std::optional<ResidentBytes> prepared;
    if (stored != 0) {
      source_.packed(spec, scratch);
      Uploader::timed(pack_seconds,
                      [&] { prepared = packer.prepare_from_file_bytes(scratch, stored, spec.name, settings_.stream); });
    }
    if (!prepared) {  // plain in the file, or with words that are too long for the kernels
      const std::int64_t stride = plain_stride(spec.cols);
      auto* rows = reinterpret_cast<std::uint16_t*>(scratch);
      source_.rows(spec, rows, stride);
      packer = Packer(scratch + plain_bytes(spec), Packer::scratch_bytes(m.rows, m.cols));
      Uploader::timed(pack_seconds,
                      [&] { prepared = packer.prepare_from_bf16(rows, m.rows, m.cols, stride, settings_.stream); });
    }
    if (!prepared) return;
    if (multiplied && packer.max_block_bytes() > settings_.largest_block) {
      log::debug("{} stays plain: a block of it takes {} bytes packed", spec.name, packer.max_block_bytes());
      return;
    }
    void* memory = arena_.take(prepared->total, spec.name.c_str());
    Uploader::timed(pack_seconds, [&] {
      const cuda::ResidentMatrix resident = packer.finish(memory, settings_.stream);
      check(cudaStreamSynchronize(settings_.stream), "packing weights");
      m.packed = resident;
    });
  }

  const std::uint16_t* vector(const model::VectorSpec& spec) {
    if (spec.size == 0) return nullptr;
    std::vector<std::uint16_t> host(round_up(spec.size, 8), 0);
    source_.vector(spec, host.data());
    auto* device = arena_.take<std::uint16_t>(host.size(), spec.name.c_str());
    check(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(std::uint16_t), cudaMemcpyHostToDevice,
                          settings_.stream),
          "loading vectors");
    check(cudaStreamSynchronize(settings_.stream), "loading vectors");
    progress_.advance(spec.size * sizeof(Bf16));
    return device;
  }

  const Source& source_;
  const LoadSettings& settings_;
  Arena& arena_;
  Progress& progress_;
  DeviceMemory scratch_;
};

std::uint64_t all_bytes(const model::ModelSpec& spec) {
  std::uint64_t bytes = 0;
  for (const auto* m : model::all_matrices(spec)) bytes += m->rows * m->cols * sizeof(Bf16);
  for (const auto* v : model::all_vectors(spec)) bytes += v->size * sizeof(Bf16);
  return bytes;
}

// The same for every format and order of loading.
std::uint64_t name_hash(const std::string& name) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

WeightSizes weight_sizes(const model::ModelSpec& spec, const model::Checkpoint* checkpoint, WeightFormat format) {
  constexpr std::uint64_t kSplitCounts = 4096;  // what a matrix takes for its split counts, at most
  WeightSizes sizes;
  for (const auto* m : model::all_matrices(spec)) {
    const codec::PackedTensor* stored = checkpoint == nullptr ? nullptr : checkpoint->packed(*m);
    const auto rows = static_cast<std::int64_t>(m->rows), cols = static_cast<std::int64_t>(m->cols);
    const bool pack = format == WeightFormat::Packed || (format == WeightFormat::AsStored && stored != nullptr);
    if (!pack) {
      sizes.weights += plain_bytes(*m) + kSplitCounts;
      continue;
    }
    sizes.any_packed = true;
    sizes.weights += kSplitCounts + (stored != nullptr ? resident_bytes_upper_bound(rows, cols, stored->bytes())
                                                       : resident_bytes_estimate(rows, cols));
    // Packed with longer words than the kernels take, it is unpacked and packed again.
    const bool as_stored = stored != nullptr && stored->longest_word() <= codec::kCodeBits;
    const std::uint64_t source = as_stored ? round_up(stored->bytes(), 256) : plain_bytes(*m);
    sizes.load_scratch = std::max(sizes.load_scratch, source + Packer::scratch_bytes(rows, cols));
  }
  if (checkpoint == nullptr) {  // random rows whose length is no multiple of 32 are made apart first
    std::uint64_t apart = 0;
    for (const auto* m : model::all_matrices(spec)) {
      if (plain_stride(m->cols) != static_cast<std::int64_t>(m->cols))
        apart = std::max(apart, round_up(m->rows * m->cols * sizeof(Bf16), 256));
    }
    sizes.load_scratch += apart;
  }
  for (const auto* v : model::all_vectors(spec)) sizes.weights += round_up(v->size * sizeof(Bf16), 256);
  // Trained weights of models that were never packed vary around the estimate.
  if (checkpoint != nullptr && checkpoint->manifest() == nullptr && sizes.any_packed)
    sizes.weights += sizes.weights / 50;
  return sizes;
}

DeviceWeights load_weights(const model::Checkpoint& checkpoint, const LoadSettings& settings, Arena& arena,
                           ThreadPool& pool, Progress& progress, std::vector<LoadStage>& stages) {
  Uploader uploader(pool, settings.stream);
  Source source;
  source.rows = [&](const model::MatrixSpec& m, std::uint16_t* to, std::int64_t stride) {
    const std::uint64_t row_bytes = m.cols * sizeof(Bf16);
    uploader.run(
        m.rows, row_bytes,
        [&](std::uint64_t first, std::uint64_t last, std::uint8_t* memory) {
          checkpoint.read_rows(m, first, last - first, {reinterpret_cast<Bf16*>(memory), (last - first) * m.cols});
        },
        [&](std::uint64_t first, std::uint64_t last, const std::uint8_t* memory) {
          check(cudaMemcpy2DAsync(to + first * size(stride), size(stride) * sizeof(Bf16), memory, row_bytes, row_bytes,
                                  last - first, cudaMemcpyHostToDevice, settings.stream),
                "copying weights");
        });
    uploader.finish();
  };
  source.packed_bytes = [&](const model::MatrixSpec& m) {
    const codec::PackedTensor* stored = checkpoint.packed(m);
    return stored == nullptr ? 0 : stored->bytes();
  };
  source.packed = [&](const model::MatrixSpec& m, std::uint8_t* to) {
    const codec::PackedTensor* stored = checkpoint.packed(m);
    constexpr std::uint64_t kUnit = 1 << 20;
    const std::uint64_t units = (stored->bytes() + kUnit - 1) / kUnit;
    const auto end_of = [&](std::uint64_t unit) { return std::min(unit * kUnit, stored->bytes()); };
    uploader.run(
        units, kUnit,
        [&](std::uint64_t first, std::uint64_t last, std::uint8_t* memory) {
          stored->read_packed(first * kUnit, {reinterpret_cast<std::byte*>(memory), end_of(last) - first * kUnit});
        },
        [&](std::uint64_t first, std::uint64_t last, const std::uint8_t* memory) {
          check(cudaMemcpyAsync(to + first * kUnit, memory, end_of(last) - first * kUnit, cudaMemcpyHostToDevice,
                                settings.stream),
                "copying weights");
        });
    uploader.finish();
  };
  source.vector = [&](const model::VectorSpec& v, std::uint16_t* host) {
    checkpoint.read_vector(v, {reinterpret_cast<Bf16*>(host), v.size});
  };
  const WeightSizes sizes = weight_sizes(checkpoint.spec(), &checkpoint, settings.format);
  const bool packs = settings.format == WeightFormat::Packed && checkpoint.manifest() == nullptr;
  progress.begin(packs ? "packing" : "loading", all_bytes(checkpoint.spec()));
  Loader loader(source, settings, arena, progress, sizes.load_scratch);
  DeviceWeights weights = loader.load(checkpoint.spec());
  progress.end();
  stages.push_back({"files", uploader.read_seconds});
  stages.push_back({"copies", uploader.wait_seconds});
  if (sizes.any_packed) stages.push_back({packs ? "packing" : "checking", loader.pack_seconds});
  return weights;
}

DeviceWeights random_weights(const model::ModelSpec& spec, std::uint64_t seed, const LoadSettings& settings,
                             Arena& arena, Progress& progress, std::vector<LoadStage>& stages) {
  Source source;
  source.rows = [&](const model::MatrixSpec& m, std::uint16_t* to, std::int64_t stride) {
    const std::uint64_t matrix_seed = seed ^ name_hash(m.name);
    if (stride == static_cast<std::int64_t>(m.cols)) {
      check(cuda::random_weights(matrix_seed, kSigma, static_cast<std::int64_t>(m.rows * m.cols), to, settings.stream),
            "making random weights");
      return;
    }
    const DeviceMemory rows(m.rows * m.cols * sizeof(Bf16));
    check(cuda::random_weights(matrix_seed, kSigma, static_cast<std::int64_t>(m.rows * m.cols),
                               static_cast<std::uint16_t*>(rows.get()), settings.stream),
          "making random weights");
    check(cudaMemsetAsync(to, 0, m.rows * size(stride) * sizeof(Bf16), settings.stream), "making random weights");
    check(cudaMemcpy2DAsync(to, size(stride) * sizeof(Bf16), rows.get(), m.cols * sizeof(Bf16), m.cols * sizeof(Bf16),
                            m.rows, cudaMemcpyDeviceToDevice, settings.stream),
          "making random weights");
    check(cudaStreamSynchronize(settings.stream), "making random weights");
  };
  source.packed_bytes = [](const model::MatrixSpec&) { return std::uint64_t{0}; };
  source.vector = [](const model::VectorSpec& v, std::uint16_t* host) {
    const bool norm = v.name.find("norm") != std::string::npos;
    std::fill_n(host, v.size, to_bf16(norm ? 1.0f : 0.01f).bits);
  };
  const WeightSizes sizes = weight_sizes(spec, nullptr, settings.format);
  double seconds = 0;
  progress.begin("making random weights", all_bytes(spec));
  Loader loader(source, settings, arena, progress, sizes.load_scratch);
  DeviceWeights weights;
  Uploader::timed(seconds, [&] { weights = loader.load(spec); });
  progress.end();
  stages.push_back({"making", seconds - loader.pack_seconds});
  if (sizes.any_packed) stages.push_back({"packing", loader.pack_seconds});
  return weights;
}

}  // namespace glyd::runner
