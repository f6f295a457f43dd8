#include "runner/cuda/weights.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "base/sizes.h"
#include "base/timing.h"
#include "cuda/packing/packing.h"
#include "runner/cuda/cache_sides.h"
#include "runner/cuda/check.h"
#include "runner/cuda/device_memory.h"
#include "runner/cuda/packer.h"

namespace glyd::runner {
namespace {

std::int64_t plain_stride(std::int64_t cols) {
  return static_cast<std::int64_t>(round_up(unsigned_of(cols), codec::kGroupCols));
}
std::uint64_t plain_bytes(const PartOf& m) {
  return round_up(
      unsigned_of(m.rows()) * unsigned_of(plain_stride(m.cols())) * sizeof(std::uint16_t) + cuda::kPlainReadAhead, 256);
}

std::vector<PartOf> parts_of(const model::ModelSpec& spec, const model::Shard& shard) {
  std::vector<PartOf> all;
  for (const auto& [matrix, part] : model::all_parts(spec, shard)) all.push_back({matrix, part});
  return all;
}

// Rows [first, first + rows) of a matrix, as a matrix; first is a multiple of 64.
DeviceMatrix rows_of(const DeviceMatrix& m, std::int64_t first, std::int64_t rows) {
  DeviceMatrix part;
  part.rows = rows;
  part.cols = m.cols;
  if (m.packed) {
    part.packed = m.packed->part(first, rows);
    if (!CacheSides::is_worth_it(*part.packed)) part.packed->claims = nullptr;
  } else {
    part.plain = {m.plain.data + first * m.plain.stride, rows, m.cols, m.plain.stride};
  }
  part.bytes = m.rows == 0 ? 0 : m.bytes / unsigned_of(m.rows) * unsigned_of(rows);
  return part;
}

class Loader {
 public:
  Loader(const model::Shard& shard, WeightSource& from, const LoadSettings& settings, const WeightSizes& sizes,
         Arena& arena, Progress& progress)
      : shard_(shard),
        from_(from),
        settings_(settings),
        arena_(arena),
        progress_(progress),
        scratch_(sizes.load_scratch) {
    if (sizes.any_packed && settings.kernels == cuda::KernelSet::Hopper)
      sides_.emplace(settings.multiprocessors, settings.stream);
  }

  DeviceWeights load(const model::ModelSpec& spec) {
    const std::uint64_t before = arena_.used();
    const bool own_head = !spec.lm_head.members.empty();
    DeviceWeights w;
    if (shard_.first_stage())
      w.embed = matrix({&spec.embed, model::whole(spec.embed)}, shard_.last_stage() && !own_head);
    for (const model::LayerSpec& l : spec.layers) {
      DeviceLayer layer;
      layer.input_norm = vector(l.input_norm);
      layer.qkv = matrix({&l.qkv, shard_.qkv});
      layer.qkv_bias = vector(l.qkv_bias, shard_.qkv.rows);
      layer.q_norm = vector(l.q_norm);
      layer.k_norm = vector(l.k_norm);
      layer.o = matrix({&l.o, shard_.o});
      if (shard_.adds_output_biases()) layer.o_bias = vector(l.o_bias);
      layer.post_norm = vector(l.post_norm);
      layer.gate_up = matrix({&l.gate_up, shard_.gate_up});
      layer.gate_up_bias = vector(l.gate_up_bias, shard_.gate_up.rows);
      layer.down = matrix({&l.down, shard_.down});
      if (shard_.adds_output_biases()) layer.down_bias = vector(l.down_bias);
      w.layers.push_back(layer);
    }
    if (shard_.last_stage()) {
      w.final_norm = vector(spec.final_norm);
      const auto first = static_cast<std::int64_t>(shard_.vocab.begin);
      const auto rows = static_cast<std::int64_t>(shard_.vocab.size());
      if (rows == 0) {
        w.lm_head.emplace();
      } else if (own_head) {
        w.lm_head = matrix({&spec.lm_head, shard_.lm_head});
      } else if (shard_.ranks > 1) {
        w.lm_head = rows_of(*w.embed, first, rows);
        cut_products(*w.lm_head, spec.embed.name);
      }
    }
    check(cudaStreamSynchronize(settings_.stream), "loading weights");
    w.bytes = arena_.used() - before;
    return w;
  }
  double pack_seconds = 0;

 private:
  template <class Body>
  void timed(const Body& body) {
    const auto start = Clock::now();
    body();
    pack_seconds += seconds_since(start);
  }

  // `multiplied`: by the product kernels. (An embedding that is not the head is only looked up.)
  DeviceMatrix matrix(const PartOf& part, bool multiplied = true) {
    DeviceMatrix m;
    m.rows = part.rows();
    m.cols = part.cols();
    const std::uint64_t before = arena_.used();
    if (settings_.format != WeightFormat::Bf16) make_packed(part, multiplied, m);
    if (!m.packed) make_plain(part, m);
    cut_products(m, part.spec->name);
    m.bytes = arena_.used() - before;
    progress_.advance(unsigned_of(m.rows) * unsigned_of(m.cols) * sizeof(Bf16));
    return m;
  }

  void cut_products(DeviceMatrix& m, const std::string& name) {
    m.partition = cuda::make_partition(m.rows, m.cols, settings_.multiprocessors);
    const std::vector<std::uint8_t> splits = cuda::split_counts(m.partition);
    auto* counts = arena_.take<std::uint8_t>(splits.size(), name.c_str());
    check(cudaMemcpyAsync(counts, splits.data(), splits.size(), cudaMemcpyHostToDevice, settings_.stream), "loading");
    check(cudaStreamSynchronize(settings_.stream), "loading weights");
    m.splits = counts;
  }

  void make_plain(const PartOf& part, DeviceMatrix& m) {
    const std::int64_t stride = plain_stride(m.cols);
    auto* data = static_cast<std::uint16_t*>(arena_.take(plain_bytes(part), part.spec->name.c_str()));
    from_.rows(part, data, stride);
    m.plain = {data, m.rows, m.cols, stride};
  }

  // Leaves m.packed empty for a matrix that is to be plain.
  void make_packed(const PartOf& part, bool multiplied, DeviceMatrix& m) {
    const std::string& name = part.spec->name;
    const std::uint64_t stored = from_.packed_size(part).bytes;
    if (stored == 0 && settings_.format != WeightFormat::Packed && !from_.is_packed(part)) return;
    auto* scratch = static_cast<std::uint8_t*>(scratch_.get());
    const std::uint64_t source_bytes = stored != 0 ? round_up(stored, 256) : plain_bytes(part);
    Packer packer(scratch + source_bytes, Packer::scratch_bytes(m.rows, m.cols));
    std::optional<ResidentBytes> prepared;
    if (stored != 0) {
      from_.packed(part, scratch);
      timed([&] { prepared = packer.prepare_from_file_bytes(scratch, stored, name, settings_.stream); });
    }
    if (!prepared) {  // plain in the file, cut through units, or with words that are too long for the kernels
      const std::int64_t stride = plain_stride(m.cols);
      auto* rows = reinterpret_cast<std::uint16_t*>(scratch);
      from_.rows(part, rows, stride);
      packer = Packer(scratch + plain_bytes(part), Packer::scratch_bytes(m.rows, m.cols));
      timed([&] { prepared = packer.prepare_from_bf16(rows, m.rows, m.cols, stride, settings_.stream); });
    }
    if (!prepared) return;
    if (multiplied && packer.max_block_bytes() > settings_.largest_block) {
      log::warning("{} stays plain: a block of 64 x 256 weights takes {} bytes packed, the kernels have room for {}",
                   name, packer.max_block_bytes(), settings_.largest_block);
      return;
    }
    void* memory = arena_.take(prepared->total, name.c_str());
    timed([&] {
      const cuda::ResidentMatrix resident = packer.finish(memory, settings_.stream, sides_ ? &*sides_ : nullptr);
      check(cudaStreamSynchronize(settings_.stream), "packing weights");
      m.packed = resident;
    });
  }

  // All of a vector, or the elements that belong to rows of a matrix.
  const std::uint16_t* vector(const model::VectorSpec& spec) { return vector(spec, {{0, spec.size}}); }
  const std::uint16_t* vector(const model::VectorSpec& spec, const std::vector<Range>& rows) {
    if (spec.size == 0) return nullptr;
    std::vector<std::uint16_t> all(spec.size), host;
    from_.vector(spec, all.data());
    for (const Range& range : rows)
      host.insert(host.end(), all.begin() + static_cast<std::ptrdiff_t>(range.begin),
                  all.begin() + static_cast<std::ptrdiff_t>(range.end));
    host.resize(round_up(host.size(), 8), 0);
    auto* device = arena_.take<std::uint16_t>(host.size(), spec.name.c_str());
    check(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(std::uint16_t), cudaMemcpyHostToDevice,
                          settings_.stream),
          "loading vectors");
    check(cudaStreamSynchronize(settings_.stream), "loading vectors");
    progress_.advance(spec.size * sizeof(Bf16));
    return device;
  }

  const model::Shard& shard_;
  WeightSource& from_;
  const LoadSettings& settings_;
  Arena& arena_;
  Progress& progress_;
  DeviceMemory scratch_;
  std::optional<CacheSides> sides_;
};

}  // namespace

std::uint64_t file_bytes(const model::ModelSpec& spec, const model::Shard& shard) {
  std::uint64_t bytes = 0;
  for (const PartOf& m : parts_of(spec, shard)) bytes += unsigned_of(m.rows()) * unsigned_of(m.cols()) * sizeof(Bf16);
  for (const auto* v : model::all_vectors(spec)) bytes += v->size * sizeof(Bf16);
  return bytes;
}

WeightSizes weight_sizes(const model::ModelSpec& spec, const model::Shard& shard, const WeightSource& from,
                         WeightFormat format, bool estimated) {
  constexpr std::uint64_t kSplitCounts = 4096;  // what a matrix takes for its split counts, at most
  WeightSizes sizes;
  sizes.weights = kSplitCounts;  // of a head that is part of the embedding
  for (const PartOf& m : parts_of(spec, shard)) {
    sizes.weights += kSplitCounts;
    if (format == WeightFormat::Bf16 || (format == WeightFormat::AsStored && !from.is_packed(m))) {
      sizes.weights += plain_bytes(m);
      continue;
    }
    const WeightSource::Packed stored = from.packed_size(m);
    sizes.any_packed = true;
    sizes.weights += stored.bytes != 0 ? resident_bytes_upper_bound(m.rows(), m.cols(), stored.bytes)
                                       : resident_bytes_estimate(m.rows(), m.cols());
    // Packed with longer words than the kernels take, it is unpacked and packed again.
    const bool as_stored = stored.bytes != 0 && stored.longest_word <= codec::kCodeBits;
    const std::uint64_t source = as_stored ? round_up(stored.bytes, 256) : plain_bytes(m);
    sizes.load_scratch = std::max(sizes.load_scratch, source + Packer::scratch_bytes(m.rows(), m.cols()));
  }
  for (const auto* v : model::all_vectors(spec)) sizes.weights += round_up(v->size * sizeof(Bf16), 256);
  // Trained weights of models that were never packed vary around the estimate.
  if (estimated && sizes.any_packed) sizes.weights += sizes.weights / 50;
  return sizes;
}

DeviceWeights load_weights(const model::ModelSpec& spec, const model::Shard& shard, WeightSource& from,
                           const LoadSettings& settings, const WeightSizes& sizes, Arena& arena, Progress& progress,
                           double& pack_seconds) {
  Loader loader(shard, from, settings, sizes, arena, progress);
  DeviceWeights weights = loader.load(spec);
  pack_seconds = loader.pack_seconds;
  return weights;
}

}  // namespace glyd::runner
