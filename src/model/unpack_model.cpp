// A packed directory read back: its original written again, or only compared with the checksums.

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "codec/manifest.h"
#include "io/file.h"
#include "io/output.h"
#include "io/sha256.h"
#include "model/known_files.h"
#include "model/packing.h"
#include "model/packing_files.h"

namespace glyd::model {
namespace {

using codec::Manifest;

const Manifest& require_packed(const Checkpoint& checkpoint) {
  if (checkpoint.manifest() == nullptr) {
    fail(Code::Model, "{}: not a packed directory: {} is missing", printable(checkpoint.dir().native()),
         codec::kManifestName);
  }
  return *checkpoint.manifest();
}

std::string manifest_path(const Checkpoint& checkpoint) {
  return printable((checkpoint.dir() / codec::kManifestName).native());
}

WeightFiles::Place find_stored(const Checkpoint& checkpoint, const std::string& tensor) {
  const WeightFiles::Place place = checkpoint.weights().find(tensor);
  if (!place) {
    fail(Code::Model, "{}: tensor {} is listed and is not among the weights", manifest_path(checkpoint), quote(tensor));
  }
  return place;
}

void check_tensor(const WeightFiles::Place& place, const io::Digest& found, const io::Digest& expected) {
  if (found == expected) return;
  fail(Code::Model,
       "{}: tensor {} does not have the checksum of the original; the file is damaged: pack the original "
       "again",
       printable(place.file->path().native()), quote(place.tensor->name));
}

void check_other(const std::filesystem::path& path, const Manifest::OtherFile& found,
                 const Manifest::OtherFile& expected) {
  if (found.bytes == expected.bytes && found.sha256 == expected.sha256) return;
  fail(Code::Model,
       "{}: does not have the checksum of the original: it was changed or is damaged; put the original file back",
       printable(path.native()));
}

// What is stored without a checksum belongs to no original file.
void require_checksums(const Checkpoint& packed, const Manifest& manifest) {
  std::set<std::string_view> listed;
  for (const Manifest::WeightFile& file : manifest.files) {
    for (const Manifest::Checksum& tensor : file.tensors) listed.insert(tensor.name);
  }
  packed.weights().for_each([&](const io::Safetensors& file, const io::Tensor& tensor) {
    if (listed.contains(tensor.name)) return;
    fail(Code::Model, "{}: tensor {} is not in {}: there is no checksum for it", printable(file.path().native()),
         quote(tensor.name), codec::kManifestName);
  });
}

// Whether unpacking writes a file of that name.
bool is_original(const Manifest& manifest, const std::string& name) {
  const auto named = [&](const auto& file) { return file.name == name; };
  return std::any_of(manifest.files.begin(), manifest.files.end(), named) ||
         std::any_of(manifest.others.begin(), manifest.others.end(), named);
}

// One of the original weight files, being written.
struct Restored {
  const Manifest::WeightFile* entry;
  io::OutputFile file;
  io::Safetensors layout;  // the same file, read: the header says where each tensor goes
};

// The size is checked first: only files of the size that their parts have are made.
void check_size(const Checkpoint& packed, const Manifest::WeightFile& entry) {
  std::uint64_t bytes = 8 + entry.header.size();
  for (const Manifest::Checksum& tensor : entry.tensors) {
    const io::Tensor& stored = *find_stored(packed, tensor.name).tensor;
    bytes += stored.end - stored.begin;
  }
  if (bytes != entry.bytes) {
    fail(Code::Model, "{}: {} has {} bytes, its header and tensors make {}", manifest_path(packed), quote(entry.name),
         entry.bytes, bytes);
  }
}

// The file with its header and room for its data.
Restored begin_file(const Manifest::WeightFile& entry, const std::filesystem::path& dir) {
  io::OutputFile file(dir / entry.name);
  std::string start;
  for (int i = 0; i < 8; ++i) start += static_cast<char>(entry.header.size() >> (8 * i) & 0xFF);
  start += entry.header;
  file.write_at(0, std::as_bytes(std::span(start)));
  file.resize(entry.bytes);
  io::Safetensors layout = io::Safetensors::open(file.path());
  return {&entry, std::move(file), std::move(layout)};
}

struct TensorJob {
  Restored* file;
  const io::Tensor* target;
  WeightFiles::Place source;
  io::Digest sha256;
};

// What has to be written into a file, checked against what there is.
void list_jobs(const Checkpoint& packed, Restored& file, std::vector<TensorJob>& jobs) {
  std::map<std::string_view, const Manifest::Checksum*> checksums;
  for (const Manifest::Checksum& tensor : file.entry->tensors) checksums[tensor.name] = &tensor;
  for (const io::Tensor& tensor : file.layout.tensors()) {
    const auto checksum = checksums.find(tensor.name);
    const WeightFiles::Place source = find_stored(packed, tensor.name);
    if (checksum == checksums.end() || source.tensor->dtype != tensor.dtype || source.tensor->shape != tensor.shape) {
      fail(Code::Model, "{}: the header of {} and the weights disagree about tensor {}", manifest_path(packed),
           quote(file.entry->name), quote(tensor.name));
    }
    jobs.push_back({&file, &tensor, source, checksum->second->sha256});
  }
}

void write_tensor(const TensorJob& job, Progress& progress) {
  io::Sha256 hash;
  const std::uint64_t begin = job.file->layout.data_begin() + job.target->begin;
  read_original(job.source, [&](std::uint64_t offset, std::span<const std::byte> piece) {
    hash.update(piece);
    job.file->file.write_at(begin + offset, piece);
    progress.advance(piece.size());
  });
  check_tensor(job.source, hash.finish(), job.sha256);
}

void write_tensors(const Checkpoint& packed, std::vector<Restored>& files, ThreadPool& threads, Progress& progress) {
  std::vector<TensorJob> jobs;
  for (Restored& file : files) list_jobs(packed, file, jobs);
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (const TensorJob& job : jobs) {
    sizes.push_back(job.target->end - job.target->begin);
    total += sizes.back();
  }
  progress.begin("unpacking", total);
  run_largest_first(sizes, threads, [&](std::size_t i) { write_tensor(jobs[i], progress); });
  progress.end();
}

// The written files read once more as a whole.
std::uint64_t check_files(const Checkpoint& packed, const std::vector<Restored>& files, ThreadPool& threads,
                          Progress& progress) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (const Restored& file : files) {
    sizes.push_back(file.entry->bytes);
    total += sizes.back();
  }
  progress.begin("checksums", total);
  run_largest_first(sizes, threads, [&](std::size_t i) {
    const Manifest::WeightFile& entry = *files[i].entry;
    if (io::sha256_of_range(io::File::open(files[i].file.path()), 0, entry.bytes, progress) != entry.sha256) {
      fail(Code::Model, "{}: {} was written again with another checksum than the original has", manifest_path(packed),
           quote(entry.name));
    }
  });
  progress.end();
  return total;
}

}  // namespace

std::uint64_t unpack_model(const Checkpoint& packed, const std::filesystem::path& out, bool replace,
                           ThreadPool& threads, Progress& progress) {
  const Manifest& manifest = require_packed(packed);
  require_checksums(packed, manifest);
  require_apart(packed.dir(), out);
  io::OutputDirectory directory(
      out, replace ? known_files(out, [&](const std::string& name) { return is_original(manifest, name); }) : nullptr);
  for (const Manifest::OtherFile& file : manifest.others) {
    check_other(packed.dir() / file.name, copy_other(packed.dir() / file.name, directory.temporary()), file);
  }
  if (manifest.index) io::write_text(directory.temporary() / "model.safetensors.index.json", *manifest.index);

  std::vector<Restored> files;
  files.reserve(manifest.files.size());
  for (const Manifest::WeightFile& entry : manifest.files) {
    check_size(packed, entry);
    files.push_back(begin_file(entry, directory.temporary()));
  }
  write_tensors(packed, files, threads, progress);
  for (Restored& file : files) file.file.close();
  const std::uint64_t bytes = check_files(packed, files, threads, progress);
  directory.commit();
  return bytes;
}

void verify_checksums(const Checkpoint& packed, ThreadPool& threads, Progress& progress) {
  const Manifest& manifest = require_packed(packed);
  for (const Manifest::OtherFile& file : manifest.others) {
    const io::File found = io::File::open(packed.dir() / file.name);
    Progress silent;
    check_other(found.path(), {file.name, found.size(), io::sha256_of_range(found, 0, found.size(), silent)}, file);
  }
  require_checksums(packed, manifest);
  std::set<std::string_view> tensors;
  std::vector<std::pair<WeightFiles::Place, const io::Digest*>> jobs;
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (const Manifest::WeightFile& file : manifest.files) {
    for (const Manifest::Checksum& tensor : file.tensors) {
      if (!tensors.insert(tensor.name).second) continue;  // a copy in another file
      jobs.emplace_back(find_stored(packed, tensor.name), &tensor.sha256);
      sizes.push_back(jobs.back().first.tensor->end - jobs.back().first.tensor->begin);
      total += sizes.back();
    }
  }
  progress.begin("verifying", total);
  run_largest_first(sizes, threads, [&](std::size_t i) {
    io::Sha256 hash;
    read_original(jobs[i].first, [&](std::uint64_t, std::span<const std::byte> piece) {
      hash.update(piece);
      progress.advance(piece.size());
    });
    check_tensor(jobs[i].first, hash.finish(), *jobs[i].second);
  });
  progress.end();
}

}  // namespace glyd::model
