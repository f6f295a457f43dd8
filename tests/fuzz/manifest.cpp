// Packed directories. Input: a byte that chooses, then 0: the text of a glyd.json; 1: a weights file beside a good
// glyd.json; 2: edits of a good glyd.json, signed again. Whatever comes: an Error, or a directory that can be read,
// and one whose checksums agree gives the original again.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "codec/manifest.h"
#include "model/packing.h"
#include "support/fixtures.h"

using namespace glyd;
using codec::Manifest;
namespace fs = std::filesystem;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Body>
bool accepts(Body body) {
  try {
    body();
    return true;
  } catch (const Error& e) {
    require(e.code() == Code::Model);
    require(std::string(e.what()).find('\n') == std::string::npos);
    return false;
  }
}

// A small model and its packed directory, made once.
struct Good {
  Good() {
    log::set_level(log::Level::Off);
    fs::create_directory(model);
    const io::Json sizes = {
        {"vocab_size", 64}, {"hidden_size", 32}, {"num_hidden_layers", 1}, {"intermediate_size", 32}};
    test::write_formula_model(model, test::tiny_config("qwen2", sizes));
    Progress silent;
    model::pack_model(model::Checkpoint::open(model), packed, {}, threads, silent);
    weights = test::read_file(packed / "model.safetensors");
    json = test::read_file(packed / "glyd.json");
    require(!codec::load_manifest(packed).matrices.empty());
  }
  test::TempDir dir;
  fs::path model = dir.path() / "model", packed = dir.path() / "packed", out = dir.path() / "out";
  std::string weights, json;
  ThreadPool threads{1};
};

void check_text(std::string_view text) {
  accepts([&] {
    const std::string again = codec::manifest_text(codec::parse_manifest(text, "fuzz"));
    require(codec::manifest_text(codec::parse_manifest(again, "fuzz")) == again);
  });
}

void check_directory(Good& good) {
  Progress silent;
  accepts([&] {
    const model::Checkpoint checkpoint = model::Checkpoint::open(good.packed);
    const bool whole = accepts([&] { model::verify_checksums(checkpoint, good.threads, silent); });
    const bool unpacked = accepts([&] { model::unpack_model(checkpoint, good.out, false, good.threads, silent); });
    require(unpacked == fs::exists(good.out));
    require(whole || !unpacked);
    if (unpacked) fs::remove_all(good.out);
    for (const model::MatrixSpec* m : model::all_matrices(checkpoint.spec())) {
      std::vector<Bf16> rows(m->rows * m->cols);
      accepts([&] { checkpoint.read_rows(*m, 0, m->rows, rows); });
    }
  });
}

// Takes numbers and text from the input.
struct Source {
  std::span<const std::uint8_t> bytes;
  std::uint8_t byte() {
    if (bytes.empty()) return 0;
    const std::uint8_t first = bytes[0];
    bytes = bytes.subspan(1);
    return first;
  }
  void change(std::uint64_t& value) {
    const std::uint8_t how = byte();
    value = how < 64 ? value + how - 32 : how < 128 ? how - 64u : std::uint64_t{byte()} << how % 64;
  }
  void change(std::string& text) {
    const std::size_t at = text.empty() ? 0 : (byte() * 256u + byte()) % text.size();
    if (byte() % 2 || text.empty())
      text.insert(at, 1, static_cast<char>(byte() & 0x7F));
    else
      text[at] = static_cast<char>(byte() & 0x7F);
  }
};

void edit(Manifest& m, Source& source) {
  const auto pick = [&](auto& items) { return items.empty() ? nullptr : &items[source.byte() % items.size()]; };
  const std::uint8_t what = source.byte() % 14;
  if (what < 7) {
    Manifest::Matrix* matrix = pick(m.matrices);
    if (!matrix) return;
    if (what == 0) source.change(matrix->name);
    if (what == 1) source.change(matrix->rows);
    if (what == 2) source.change(matrix->cols);
    if (what == 3) source.change(matrix->bytes);
    Manifest::Member* member = pick(matrix->members);
    if (what == 4) source.change(member->tensor);
    if (what == 5) source.change(member->rows);
    if (what == 6) std::swap(*member, *pick(pick(m.matrices)->members));
    return;
  }
  Manifest::WeightFile* file = pick(m.files);
  Manifest::OtherFile* other = pick(m.others);
  if (what == 7 && file) source.change(file->name);
  if (what == 8 && file) source.change(file->header);
  if (what == 9 && file) source.change(file->bytes);
  if (what == 10 && file && !file->tensors.empty()) source.change(pick(file->tensors)->name);
  if (what == 11 && file && !file->tensors.empty()) file->tensors.pop_back();
  if (what == 12 && other) source.change(other->name);
  if (what == 13 && file && m.files.size() < 4) m.files.push_back(Manifest::WeightFile(*file));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static Good good;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0:
      check_text(text);
      return 0;
    case 1:
      test::write_file(good.packed / "model.safetensors", text);
      break;
    default: {
      Manifest manifest = codec::parse_manifest(good.json, "good");
      Source source{{data + 1, size - 1}};
      for (int i = 0; i < 8 && !source.bytes.empty(); ++i) edit(manifest, source);
      test::write_file(good.packed / "glyd.json", codec::manifest_text(manifest));
    }
  }
  check_directory(good);
  test::write_file(good.packed / "model.safetensors", good.weights);
  test::write_file(good.packed / "glyd.json", good.json);
  return 0;
}
