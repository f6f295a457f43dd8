// Packing: checksums of the original, then every tensor in the order of the original files, then the manifest.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "codec/manifest.h"
#include "codec/pack.h"
#include "codec/unpack.h"
#include "io/output.h"
#include "io/sha256.h"
#include "io/shard_writer.h"
#include "model/directory.h"
#include "model/known_files.h"
#include "model/packing.h"
#include "model/packing_files.h"

namespace glyd::model {
namespace {

using codec::Manifest;
using Place = WeightFiles::Place;

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr std::uint64_t kMostIndexBytes = 64 << 20;

// A matrix that may be packed, or a tensor that stays as it is.
struct Item {
  const MatrixSpec* matrix = nullptr;
  std::vector<Place> places;  // of the members, or of the one tensor
  bool packable = false;
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const Place& p : places) sum += p.tensor->end - p.tensor->begin;
    return sum;
  }
};

std::string class_name(const MatrixSpec& matrix) { return matrix.name.substr(matrix.name.rfind('.') + 1); }

// The one tensor of each name that is kept: the one that the index names, else the first.
std::map<std::string_view, Place> list_tensors(const WeightFiles& weights) {
  std::map<std::string_view, Place> tensors;
  weights.for_each([&](const io::Safetensors& file, const io::Tensor& tensor) {
    tensors.try_emplace(tensor.name, Place{.file = &file, .tensor = &tensor});
  });
  return tensors;
}

// Everything that is kept, in the order of the files; a matrix stands where its first member does.
std::vector<Item> list_items(const Checkpoint& checkpoint) {
  std::map<std::string_view, Place> tensors = list_tensors(checkpoint.weights());
  std::vector<Item> items;
  for (const MatrixSpec* matrix : all_matrices(checkpoint.spec())) {
    Item item{matrix, {}, matrix->rows > 0 && matrix->cols > 0};
    for (const Member& member : matrix->members) {
      item.places.push_back(tensors.at(member.tensor));
      item.packable &= item.places.back().tensor->dtype == io::Dtype::BF16;
      tensors.erase(member.tensor);
    }
    items.push_back(std::move(item));
  }
  for (const auto& [name, place] : tensors) items.push_back({nullptr, {place}, false});
  const auto place = [](const Item& item) { return std::tuple(item.places[0].file, item.places[0].tensor); };
  std::sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return place(a) < place(b); });
  return items;
}

// pack() reads every weight twice; what is shown advances once.
class HalfProgress : public Progress {
 public:
  explicit HalfProgress(Progress& whole) : whole_(whole) {}
  void advance(std::uint64_t bytes) override {
    done_ += bytes / 2;
    whole_.advance(bytes / 2);
  }
  void complete(std::uint64_t bytes) { whole_.advance(bytes - std::min<std::uint64_t>(bytes, done_)); }

 private:
  Progress& whole_;
  std::atomic<std::uint64_t> done_{0};
};

// The packed matrix, or nothing when it stays plain.
std::optional<std::vector<std::byte>> try_pack(const Checkpoint& checkpoint, const Item& item, ThreadPool& threads,
                                               Progress& progress) {
  std::optional<std::vector<std::byte>> packed;
  HalfProgress half(progress);
  if (item.packable) {
    const MatrixSpec& matrix = *item.matrix;
    const codec::RowSource source = [&](std::uint64_t first, std::uint64_t rows, std::span<Bf16> out) {
      checkpoint.read_rows(matrix, first, rows, out);
    };
    packed = codec::pack({matrix.rows, matrix.cols}, source, {}, threads, half);
  }
  half.complete(item.bytes());
  return packed;
}

// Adds an item to its class; `exceptions` of a packed matrix.
class Counter {
 public:
  explicit Counter(const ModelSpec& spec) {
    for (const MatrixSpec* matrix : all_matrices(spec)) {
      const std::string name = class_name(*matrix);
      if (numbers_.emplace(name, report.classes.size()).second) report.classes.push_back({.name = name});
    }
    report.classes.push_back({.name = "other"});
  }

  void add(const Item& item, const std::vector<std::byte>* packed, std::uint64_t exceptions) {
    PackReport::Class& c = item.matrix ? report.classes[numbers_.at(class_name(*item.matrix))] : report.classes.back();
    ++c.tensors;
    c.packed += packed != nullptr;
    for (const Place& p : item.places) {
      std::uint64_t count = 1;
      for (const std::uint64_t dim : p.tensor->shape) count *= dim;
      c.weights += count;
    }
    c.bytes_before += item.bytes();
    c.bytes_after += packed ? packed->size() : item.bytes();
    c.exceptions += exceptions;
  }

  PackReport report;

 private:
  std::map<std::string, std::size_t> numbers_;
};

std::uint64_t count_exceptions(const std::vector<std::byte>& packed, const std::string& name) {
  return codec::Unpacker(packed, name).stats().exceptions;
}

std::uint64_t sum_bytes(const std::vector<Item>& items) {
  std::uint64_t sum = 0;
  for (const Item& item : items) sum += item.bytes();
  return sum;
}

// Checksums of the weight files and of every tensor in them.
std::vector<Manifest::WeightFile> describe_files(const Checkpoint& checkpoint, ThreadPool& threads,
                                                 Progress& progress) {
  struct Job {
    std::size_t file;
    std::uint64_t begin, end;
    io::Digest* result;
  };
  const std::vector<io::Safetensors>& sources = checkpoint.weights().files();
  std::vector<io::File> files;
  std::vector<Manifest::WeightFile> described(sources.size());
  std::vector<Job> jobs;
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  const auto add = [&](const Job& job) {
    jobs.push_back(job);
    sizes.push_back(job.end - job.begin);
    total += sizes.back();
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const io::Safetensors& source = sources[i];
    Manifest::WeightFile& file = described[i];
    files.push_back(io::File::open(source.path()));
    file.name = source.path().filename().string();
    file.header = source.header_text();
    file.bytes = files.back().size();
    file.tensors.resize(source.tensors().size());
    add({i, 0, file.bytes, &file.sha256});
    for (std::size_t t = 0; t < file.tensors.size(); ++t) {
      const io::Tensor& tensor = source.tensors()[t];
      file.tensors[t].name = tensor.name;
      add({i, source.data_begin() + tensor.begin, source.data_begin() + tensor.end, &file.tensors[t].sha256});
    }
  }
  progress.begin("checksums", total);
  run_largest_first(sizes, threads, [&](std::size_t i) {
    *jobs[i].result = io::sha256_of_range(files[jobs[i].file], jobs[i].begin, jobs[i].end, progress);
  });
  progress.end();
  return described;
}

// A tensor that several files hold is kept once, so they must be alike.
void require_equal_copies(const WeightFiles& weights, const std::vector<Manifest::WeightFile>& files) {
  std::map<const io::Tensor*, io::Digest> digests;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t t = 0; t < files[i].tensors.size(); ++t) {
      digests[&weights.files()[i].tensors()[t]] = files[i].tensors[t].sha256;
    }
  }
  const std::map<std::string_view, Place> kept = list_tensors(weights);
  for (const io::Safetensors& file : weights.files()) {
    for (const io::Tensor& tensor : file.tensors()) {
      const io::Tensor& other = *kept.at(tensor.name).tensor;
      if (other.dtype != tensor.dtype || other.shape != tensor.shape || digests[&other] != digests[&tensor]) {
        fail(Code::Model,
             "{}: tensor {} differs from the one of that name in another file that counts, so it cannot be kept; "
             "remove one of them",
             printable(file.path().native()), quote(tensor.name));
      }
    }
  }
}

io::ShardWriter make_writer(const std::filesystem::path& dir, const std::vector<Item>& items,
                            std::uint64_t max_shard_bytes) {
  std::vector<io::ShardWriter::Planned> plan;
  for (const Item& item : items) {
    io::ShardWriter::Planned planned{item.bytes(), 0};
    for (const Place& p : item.places)
      planned.header_bytes += io::ShardWriter::header_bytes(p.tensor->name, p.tensor->shape);
    if (item.packable) {
      const std::uint64_t weights = item.matrix->rows * item.matrix->cols;
      planned.least_bytes = weights;  // signs and mantissas alone
      const std::uint64_t most[] = {2 * weights};
      planned.header_bytes =
          std::max(planned.header_bytes, io::ShardWriter::header_bytes(item.matrix->name + codec::kPackedEnding, most));
    }
    plan.push_back(planned);
  }
  return {dir, max_shard_bytes, std::move(plan)};
}

void write_plain(io::ShardWriter& writer, const Item& item) {
  for (const Place& place : item.places) {
    const io::Tensor& tensor = *place.tensor;
    writer.begin_tensor(tensor.name, tensor.dtype, tensor.shape, tensor.end - tensor.begin);
    read_original(place, [&](std::uint64_t, std::span<const std::byte> piece) { writer.append(piece); });
  }
}

Manifest::Matrix write_packed(io::ShardWriter& writer, const MatrixSpec& spec, const std::vector<std::byte>& packed,
                              std::uint64_t exceptions) {
  const std::uint64_t shape[] = {packed.size()};
  writer.begin_tensor(spec.name + codec::kPackedEnding, io::Dtype::U8, shape, packed.size());
  writer.append(packed);
  Manifest::Matrix matrix{spec.name, spec.rows, spec.cols, packed.size(), exceptions, {}};
  for (const Member& member : spec.members) matrix.members.push_back({member.tensor, member.rows});
  return matrix;
}

void require_plain(const Checkpoint& checkpoint) {
  if (checkpoint.manifest() != nullptr) {
    fail(Code::Usage, "{}: is packed already; --unpack makes the original of it", printable(checkpoint.dir().native()));
  }
}

}  // namespace

double PackReport::Class::bits_a_weight() const {
  return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes_after) / static_cast<double>(weights);
}

PackReport::Class PackReport::total() const {
  Class sum{.name = "matrices"};
  for (const Class& c : classes) {
    if (c.name == "other") continue;
    sum.tensors += c.tensors;
    sum.packed += c.packed;
    sum.weights += c.weights;
    sum.bytes_before += c.bytes_before;
    sum.bytes_after += c.bytes_after;
    sum.exceptions += c.exceptions;
  }
  return sum;
}

std::uint64_t PackReport::bytes_before() const { return total().bytes_before + classes.back().bytes_before; }
std::uint64_t PackReport::bytes_after() const { return total().bytes_after + classes.back().bytes_after; }

PackReport measure_packing(const Checkpoint& checkpoint, ThreadPool& threads, Progress& progress) {
  require_plain(checkpoint);
  const std::vector<Item> items = list_items(checkpoint);
  Counter counter(checkpoint.spec());
  progress.begin("packing", sum_bytes(items));
  for (const Item& item : items) {
    const auto packed = try_pack(checkpoint, item, threads, progress);
    counter.add(item, packed ? &*packed : nullptr, packed ? count_exceptions(*packed, item.matrix->name) : 0);
  }
  progress.end();
  return counter.report;
}

PackReport pack_model(const Checkpoint& checkpoint, const std::filesystem::path& out, const PackSettings& settings,
                      ThreadPool& threads, Progress& progress) {
  require_plain(checkpoint);
  require_apart(checkpoint.dir(), out);
  io::OutputDirectory directory(
      out, settings.replace
               ? known_files(out, [&](const std::string& name) { return goes_along(checkpoint.dir(), name); })
               : nullptr);
  const std::vector<Item> items = list_items(checkpoint);
  Manifest manifest;
  manifest.glyd_version = settings.glyd_version;
  manifest.files = describe_files(checkpoint, threads, progress);
  require_equal_copies(checkpoint.weights(), manifest.files);

  Counter counter(checkpoint.spec());
  io::ShardWriter writer = make_writer(directory.temporary(), items, settings.max_shard_bytes);
  progress.begin("packing", sum_bytes(items));
  for (const Item& item : items) {
    writer.next_planned();
    const auto packed = try_pack(checkpoint, item, threads, progress);
    const std::uint64_t exceptions = packed ? count_exceptions(*packed, item.matrix->name) : 0;
    if (packed) {
      manifest.matrices.push_back(write_packed(writer, *item.matrix, *packed, exceptions));
    } else {
      write_plain(writer, item);
    }
    counter.add(item, packed ? &*packed : nullptr, exceptions);
  }
  counter.report.files = writer.finish();
  progress.end();

  std::set<std::string> weight_files;
  for (const Manifest::WeightFile& file : manifest.files) weight_files.insert(file.name);
  for (const std::string& name : other_files(checkpoint.dir(), weight_files)) {
    manifest.others.push_back(copy_other(checkpoint.dir() / name, directory.temporary()));
  }
  if (entry_exists(checkpoint.dir() / kIndexName)) {
    manifest.index = io::read_text(checkpoint.dir() / kIndexName, kMostIndexBytes);
  }
  io::write_text(directory.temporary() / codec::kManifestName, codec::manifest_text(manifest));
  if (settings.verify) verify_checksums(Checkpoint::open(directory.temporary()), threads, progress);
  directory.commit();
  return counter.report;
}

}  // namespace glyd::model
