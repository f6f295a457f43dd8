// Packed directories: what is written is read alike, verified, and becomes the original again to the last byte.

#include "model/packing.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "codec/manifest.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using codec::Manifest;
using io::Json;
using model::Checkpoint;
using test::error_of;
using test::formula_tensors;
using test::named;
using test::RawTensor;
using test::TempDir;
namespace fs = std::filesystem;

namespace {

// Sizes at which the formula's weights pack well, and small enough for thousands of trials.
Json config_of(const std::string& family, const Json& changes = Json::object()) {
  Json all = {{"vocab_size", 300}, {"hidden_size", 64}, {"intermediate_size", 96}, {"head_dim", 16}};
  all.update(changes);
  return test::tiny_config(family, all);
}

// bf16 to F32 (exact) or F16 of other values: what matters is that they are no bf16.
RawTensor retyped(const RawTensor& t, const std::string& dtype) {
  RawTensor out{t.name, dtype, t.shape, ""};
  for (std::size_t i = 0; i < t.data.size(); i += 2) {
    out.data += dtype == "F32" ? std::string("\0\0", 2) + t.data.substr(i, 2) : t.data.substr(i, 1) + "\x2A";
  }
  return out;
}

// A file whose header nobody would write: spaces, other keys, escapes, data in the opposite order, blanks at its end.
std::string odd_file(const std::vector<RawTensor>& tensors) {
  std::uint64_t end = 0;
  for (const RawTensor& t : tensors) end += t.data.size();
  std::string header =
                  "{ \"__metadata__\" :\t{\"format\":\"pt\", \"\\u006bey \xC3\xA9\\n\" : \"\\ud83d\\ude00 \\/ \x7F\"}",
              data;
  for (const RawTensor& t : tensors) {
    std::string name;
    for (const char c : t.name) name += c == '.' ? "\\u002E" : std::string(1, c);
    header += "\r\n ,\n\"" + name + "\":{\"shape\" : [";
    for (std::size_t i = 0; i < t.shape.size(); ++i) header += (i ? " ,  " : "") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(end - t.data.size()) + "," + std::to_string(end) +
              "] , \"note\":[1.50e+0,null], \"dtype\":\"" + t.dtype + "\"}";
    end -= t.data.size();
    data.insert(0, t.data);
  }
  header += "}" + std::string(13, ' ') + "\n";
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return length + header + data;
}

void write_single(const fs::path& dir, const Json& config, const std::vector<RawTensor>& tensors) {
  fs::create_directories(dir);
  test::write_file(dir / "config.json", config.dump(3) + "\n");
  test::write_file(dir / "model.safetensors", test::safetensors_bytes(tensors));
}

// Tensors dealt out to shards one by one, so that q, k and v of a layer are never together.
void write_shards(const fs::path& dir, const Json& config, const std::vector<RawTensor>& tensors, std::size_t count,
                  const std::function<std::string(const std::vector<RawTensor>&)>& file_bytes) {
  fs::create_directories(dir);
  test::write_file(dir / "config.json", config.dump());
  std::vector<std::vector<RawTensor>> shards(count);
  std::string map;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    shards[i % count].push_back(tensors[i]);
    map +=
        (i ? ",\n" : "") + Json(tensors[i].name).dump() + " :  \"part-" + std::to_string(i % count) + ".safetensors\"";
  }
  for (std::size_t i = 0; i < count; ++i) {
    test::write_file(dir / ("part-" + std::to_string(i) + ".safetensors"), file_bytes(shards[i]));
  }
  test::write_file(dir / "model.safetensors.index.json",
                   "{\"metadata\":{\"total_size\": 12, \"\xC3\xBC\":1e3},\n\"weight_map\":{" + map + "}}\n\n ");
}

using Tree = std::map<std::string, std::string>;

Tree read_tree(const fs::path& dir) {
  Tree files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    files[entry.path().filename().string()] = entry.is_directory() ? "a folder" : test::read_file(entry.path());
  }
  return files;
}

model::PackReport pack(const fs::path& from, const fs::path& to, model::PackSettings settings = {}, int threads = 2) {
  ThreadPool pool(threads);
  Progress silent;
  settings.glyd_version = "test";
  return model::pack_model(Checkpoint::open(from), to, settings, pool, silent);
}

void unpack(const fs::path& from, const fs::path& to, bool replace = false) {
  ThreadPool pool(2);
  Progress silent;
  model::unpack_model(Checkpoint::open(from), to, replace, pool, silent);
}

void verify(const fs::path& dir) {
  ThreadPool pool(1);
  Progress silent;
  model::verify_checksums(Checkpoint::open(dir), pool, silent);
}

void check_same_weights(const Checkpoint& a, const Checkpoint& b) {
  const auto matrices_a = model::all_matrices(a.spec()), matrices_b = model::all_matrices(b.spec());
  REQUIRE(matrices_a.size() == matrices_b.size());
  for (std::size_t i = 0; i < matrices_a.size(); ++i) {
    const model::MatrixSpec& m = *matrices_a[i];
    INFO(m.name);
    std::vector<Bf16> left(m.rows * m.cols), right(left.size());
    a.read_rows(m, 0, m.rows, left);
    b.read_rows(*matrices_b[i], 0, m.rows, right);
    CHECK(left == right);
    const std::uint64_t first = m.rows / 3, count = m.rows / 2;  // across members
    std::vector<Bf16> part(count * m.cols);
    b.read_rows(*matrices_b[i], first, count, part);
    CHECK(std::equal(part.begin(), part.end(), left.begin() + static_cast<std::ptrdiff_t>(first * m.cols)));
    const Range cols{m.cols / 4, m.cols / 2 + 1};
    std::vector<Bf16> block(count * cols.size()), want;
    b.read_columns(*matrices_b[i], first, count, cols, block);
    for (std::uint64_t r = 0; r < count; ++r)
      for (std::uint64_t c = cols.begin; c < cols.end; ++c) want.push_back(part[r * m.cols + c]);
    CHECK(block == want);
  }
  for (const model::VectorSpec* v : model::all_vectors(a.spec())) {
    INFO(v->name);
    std::vector<Bf16> left(v->size), right(v->size);
    a.read_vector(*v, left);
    b.read_vector(*v, right);
    CHECK(left == right);
  }
}

// Packs, reads and unpacks `model` (which lies in `dir`); the packed directory stays at dir / "packed".
model::PackReport check_round_trip(const fs::path& dir, const fs::path& model, model::PackSettings settings = {}) {
  const Tree before = read_tree(model);
  const model::PackReport report = pack(model, dir / "packed", settings);
  const Checkpoint original = Checkpoint::open(model), packed = Checkpoint::open(dir / "packed");
  REQUIRE(packed.manifest() != nullptr);
  CHECK(original.manifest() == nullptr);
  check_same_weights(original, packed);
  CHECK(packed.parameters() == original.parameters());
  CHECK(report.bytes_after() >= packed.stored_bytes());
  unpack(dir / "packed", dir / "back");
  CHECK(read_tree(dir / "back") == before);
  CHECK(read_tree(model) == before);
  return report;
}

}  // namespace

TEST_CASE("Packed and unpacked: families, tied and untied", "[model][packing]") {
  const std::string family = GENERATE("qwen2", "qwen3", "llama");
  const bool tied = GENERATE(true, false);
  INFO(family << (tied ? ", tied" : ", untied"));
  const TempDir dir;
  const Json config = config_of(family, {{"tie_word_embeddings", tied}});
  write_single(dir.path() / "model", config, formula_tensors(config));
  test::write_file(dir.path() / "model" / "tokenizer_config.json", "{ \"odd\" :  true }\n");
  test::write_file(dir.path() / "model" / "empty.txt", "");
  const model::PackReport report = check_round_trip(dir.path(), dir.path() / "model");

  const model::PackReport::Class total = report.total();
  CHECK(total.tensors == (tied ? 9u : 10u));  // two layers of four, embedding, head
  CHECK(total.packed == total.tensors);
  CHECK(total.bytes_before == 2 * total.weights);
  CHECK(report.files == 1);
  const Checkpoint packed = Checkpoint::open(dir.path() / "packed");
  CHECK(packed.packed(packed.spec().layers[1].qkv)->grid().rows == 8 * 16);
  CHECK(packed.packed(packed.spec().embed)->bytes() == report.classes[0].bytes_after);
  CHECK(packed.stored_bytes() < packed.weight_bytes());
}

TEST_CASE("Both shipped models come back to the last byte, at no more bits than recorded", "[model][packing]") {
  const auto [name, bits] =
      GENERATE(table<std::string, double>({{"tiny-austen", 10.80}, {"tiny-austen-qwen2", 10.92}}));
  INFO(name);
  const TempDir dir;
  const model::PackReport report = check_round_trip(dir.path(), test::shipped_model(name));
  CHECK(report.total().bits_a_weight() < bits);
}

TEST_CASE("Odd headers, shards that split matrices, an odd index", "[model][packing]") {
  model::PackSettings settings;
  settings.max_shard_bytes = GENERATE(5'000'000'000u, 30'000u, 1u);
  INFO("shards of " << settings.max_shard_bytes);
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  const Json config = config_of("qwen2");
  const std::vector<RawTensor> tensors = formula_tensors(config);
  const auto check = [&] {
    const model::PackReport report = check_round_trip(dir.path(), model, settings);
    CHECK(report.total().packed == report.total().tensors);
    CHECK((report.files > 1) == (settings.max_shard_bytes < 1'000'000));
  };
  SECTION("one file with an odd header") {
    write_single(model, config, tensors);
    test::write_file(model / "model.safetensors", odd_file(tensors));
    check();
  }
  SECTION("shards") {
    write_shards(model, config, tensors, 3, test::safetensors_bytes);
    check();
  }
  SECTION("shards with odd headers") {
    write_shards(model, config, tensors, 2, odd_file);
    check();
  }
  SECTION("an index beside a single file, which does not count") {
    write_single(model, config, tensors);
    test::write_file(model / "model.safetensors.index.json", "left over, and no JSON \xE2\x82\xAC");
    check();
  }
}

TEST_CASE("What is no bf16 matrix stays as it is", "[model][packing]") {
  const TempDir dir;
  const Json config = config_of("qwen3", {{"tie_word_embeddings", true}});
  std::vector<RawTensor> tensors = formula_tensors(config);
  const auto change = [&](const std::string& name, const std::string& dtype) {
    named(tensors, name) = retyped(named(tensors, name), dtype);
  };
  change("model.layers.0.self_attn.k_proj.weight", "F32");  // so q and v of that layer are not packed either
  change("model.layers.1.mlp.down_proj.weight", "F16");
  change("model.norm.weight", "F32");
  tensors.push_back({"lm_head.weight", "BF16", {300, 64}, std::string(300 * 64 * 2, 'x')});  // redundant, and different
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {0}, ""});
  tensors.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", "F64", {}, "12345678"});
  write_single(dir.path() / "model", config, tensors);
  const model::PackReport report = check_round_trip(dir.path(), dir.path() / "model");
  CHECK(report.total().packed == report.total().tensors - 2);

  const Checkpoint packed = Checkpoint::open(dir.path() / "packed");
  CHECK(packed.packed(packed.spec().layers[0].qkv) == nullptr);
  CHECK(packed.packed(packed.spec().layers[1].qkv) != nullptr);
  CHECK(packed.packed(packed.spec().layers[1].down) == nullptr);
  CHECK(packed.weights().find("lm_head.weight").packed == nullptr);
}

TEST_CASE("A matrix that does not get smaller stays plain", "[model][packing]") {
  const TempDir dir;
  const Json config = config_of("llama");
  std::vector<RawTensor> tensors = formula_tensors(config);
  std::mt19937 random(7);
  for (const char* name : {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"}) {
    for (char& c : named(tensors, name).data) c = static_cast<char>(random());  // NaNs and infinities among them
  }
  write_single(dir.path() / "model", config, tensors);
  const model::PackReport report = check_round_trip(dir.path(), dir.path() / "model");
  CHECK(report.total().packed == report.total().tensors - 1);
  const Checkpoint packed = Checkpoint::open(dir.path() / "packed");
  CHECK(packed.packed(packed.spec().layers[0].gate_up) == nullptr);
}

TEST_CASE("A tensor in two shards is kept once when both are alike", "[model][packing]") {
  const TempDir dir;
  const Json config = config_of("llama");
  const std::vector<RawTensor> tensors = formula_tensors(config);
  write_shards(dir.path() / "model", config, tensors, 2, test::safetensors_bytes);
  // Tensors 0, 2, ... are in part 0; a copy of number 2, a matrix, goes to part 1, where the index does not look for
  // it.
  const auto second_shard = [&](RawTensor copy) {
    std::vector<RawTensor> second;
    for (std::size_t i = 1; i < tensors.size(); i += 2) second.push_back(tensors[i]);
    second.push_back(std::move(copy));
    test::write_file(dir.path() / "model" / "part-1.safetensors", test::safetensors_bytes(second));
  };
  second_shard(tensors[2]);
  check_round_trip(dir.path(), dir.path() / "model");

  RawTensor other = tensors[2];
  other.data[5] = static_cast<char>(other.data[5] ^ 1);
  second_shard(other);
  CHECK_THAT(error_of(Code::Model, [&] { pack(dir.path() / "model", dir.path() / "packed2"); }),
             Contains(quote(other.name)) && Contains("part-1.safetensors"));
  CHECK_FALSE(fs::exists(dir.path() / "packed2"));
}

TEST_CASE("Tensors that the index does not list are kept too", "[model][packing]") {
  const TempDir dir;
  const fs::path model = dir.path() / "model";
  const Json config = config_of("llama");
  std::vector<RawTensor> tensors = formula_tensors(config);
  const RawTensor leftover{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, "12345678"};
  write_shards(model, config, tensors, 2, [&](std::vector<RawTensor> shard) {
    shard.insert(shard.begin() + 1, leftover);
    return test::safetensors_bytes(shard);
  });
  check_round_trip(dir.path(), model, {.max_shard_bytes = 20'000});
}

TEST_CASE("Other files: links followed, other weights and folders left out", "[model][packing]") {
  const TempDir dir;
  const fs::path model = dir.path() / "model", kept = dir.path() / "kept";
  const Json config = config_of("qwen3");
  write_single(model, config, formula_tensors(config));
  test::write_file(model / "README.md", "read me");
  test::write_file(model / ".gitattributes", "*");
  const Tree wanted = read_tree(model);
  fs::create_directory(kept);
  fs::rename(model / "model.safetensors", kept / "blob");  // as the Hugging Face cache does it
  fs::create_symlink(kept / "blob", model / "model.safetensors");
  fs::rename(model / "README.md", kept / "blob2");
  fs::create_symlink("../kept/blob2", model / "README.md");
  fs::create_symlink("nowhere", model / "dangling");
  fs::create_directories(model / ".cache" / "deep");
  fs::create_directory(model / "onnx");
  for (const char* name : {"pytorch_model.bin", "model.gguf", "consolidated.00.pth", "other.safetensors"}) {
    test::write_file(model / name, "weights");
  }
  pack(model, dir.path() / "packed");
  unpack(dir.path() / "packed", dir.path() / "back");
  CHECK(read_tree(dir.path() / "back") == wanted);
}

TEST_CASE("The same bytes come out with any number of threads", "[model][packing]") {
  const TempDir dir;
  pack(test::shipped_model("tiny-austen-qwen2"), dir.path() / "one", {.max_shard_bytes = 1'000'000}, 1);
  pack(test::shipped_model("tiny-austen-qwen2"), dir.path() / "three", {.max_shard_bytes = 1'000'000, .verify = false},
       3);
  CHECK(read_tree(dir.path() / "one") == read_tree(dir.path() / "three"));
  CHECK(read_tree(dir.path() / "one").size() > 8);
}

TEST_CASE("Measuring gives the sizes of packing", "[model][packing]") {
  const TempDir dir;
  ThreadPool pool(2);
  Progress silent;
  const auto measured =
      model::measure_packing(Checkpoint::open(test::shipped_model("tiny-austen-qwen2")), pool, silent);
  const auto packed = pack(test::shipped_model("tiny-austen-qwen2"), dir.path() / "packed");
  CHECK(measured.bytes_before() == packed.bytes_before());
  CHECK(measured.bytes_after() == packed.bytes_after());
  CHECK(measured.total().exceptions == packed.total().exceptions);
  CHECK(measured.files == 0);
}

namespace {

// Throws at its n-th sign of life.
struct Cancelling : Progress {
  explicit Cancelling(int n) : left(n) {}
  void advance(std::uint64_t) override {
    if (left.fetch_sub(1) == 0) throw Error(Code::Interrupted, "interrupted");
  }
  std::atomic<int> left;
};

}  // namespace

TEST_CASE("Cancelled at any moment, nothing is left and what was there stays", "[model][packing]") {
  const TempDir dir;
  const Json config = config_of("qwen3");
  write_single(dir.path() / "model", config, formula_tensors(config));
  pack(dir.path() / "model", dir.path() / "packed");
  const Tree before = read_tree(dir.path()), packed = read_tree(dir.path() / "packed");
  const auto cancelled = [&](bool unpacking, int n) {
    Cancelling progress(n);
    ThreadPool pool(2);
    const Checkpoint checkpoint = Checkpoint::open(dir.path() / (unpacking ? "packed" : "model"));
    const bool replace = n % 2 == 0 && !unpacking;
    const fs::path out = dir.path() / (replace ? "packed" : "out");
    if (unpacking) {
      model::unpack_model(checkpoint, out, replace, pool, progress);
    } else {
      model::pack_model(checkpoint, out, {.replace = replace}, pool, progress);
    }
  };
  for (const bool unpacking : {false, true}) {
    int n = 0;
    while (!error_of(Code::Interrupted, [&] { cancelled(unpacking, n); }).empty()) {
      INFO((unpacking ? "unpacking" : "packing") << ", cancelled at " << n);
      CHECK(read_tree(dir.path()) == before);
      CHECK(read_tree(dir.path() / "packed") == packed);
      n += 1 + n / 8;
    }
    CHECK(n > 20);
    fs::remove_all(dir.path() / "out");
  }
}

TEST_CASE("Packed weights without glyd.json are told as such", "[model][packing]") {
  const TempDir dir;
  const fs::path model = dir.path() / "model", packed = dir.path() / "packed";
  const Json config = config_of("qwen3");
  write_single(model, config, formula_tensors(config));
  pack(model, packed, {.max_shard_bytes = GENERATE(20'000u, 100'000'000u)});
  fs::remove(packed / "glyd.json");
  CHECK_THAT(
      error_of(Code::Model, [&] { Checkpoint::open(packed); }),
      Contains(packed.string() + ": packed weights") && Contains("glyd.json is missing; pack the original again"));
}

TEST_CASE("A packed matrix that the index does not list is named, with its file", "[model][packing]") {
  const TempDir dir;
  const fs::path model = dir.path() / "model", packed = dir.path() / "packed";
  const Json config = config_of("qwen3");
  write_single(model, config, formula_tensors(config));
  pack(model, packed, {.max_shard_bytes = 50'000});  // the embedding shares a file with others
  const fs::path path = packed / "model.safetensors.index.json";
  Json index = Json::parse(test::read_file(path));
  REQUIRE(index["weight_map"].erase("embed.glyd") == 1);
  test::write_file(path, index.dump());
  CHECK_THAT(error_of(Code::Model, [&] { Checkpoint::open(packed); }),
             Contains("does not list tensor 'embed.glyd', which is in 'model-0000"));
}

TEST_CASE("Only files of models are replaced, and the first other one is named", "[model][packing]") {
  const TempDir dir;
  const fs::path model = dir.path() / "model", packed = dir.path() / "packed", back = dir.path() / "back";
  const model::PackSettings replace{.replace = true};
  const Json config = config_of("qwen3");
  write_single(model, config, formula_tensors(config));
  for (const char* name : {"README.md", "LICENSE", "tokenizer.json", "merges.txt", "chat_template.jinja", "own.py"})
    test::write_file(model / name, "text");
  fs::copy(model, back);
  fs::copy(model, packed);
  fs::remove(packed / "own.py");
  pack(model, packed, replace);  // a plain model
  pack(model, packed, replace);  // a packed one, which lists own.py
  unpack(packed, back, true);    // what is there will be written again
  CHECK(read_tree(back) == read_tree(model));
  fs::remove(model / "own.py");
  pack(model, packed, replace);
  pack(packed / ".." / "model", packed, replace);

  for (const char* name : {"notes.txt", "own.py", "README.md.orig", "pytorch_model.bin"}) {
    INFO(name);
    for (const fs::path& out : {packed, back}) {
      fs::remove(out / "own.py");
      test::write_file(out / name, "work");
      CHECK_THAT(error_of(Code::Usage, [&] { pack(model, out, replace); }), Contains(quote(name)));
      if (out == back) CHECK_THAT(error_of(Code::Usage, [&] { unpack(packed, out, true); }), Contains(quote(name)));
      CHECK(test::read_file(out / name) == "work");
      fs::remove(out / name);
    }
  }
}

TEST_CASE("Places where output must not go", "[model][packing]") {
  const TempDir dir;
  const fs::path model = dir.path() / "models" / "m";
  const Json config = config_of("llama");
  write_single(model, config, formula_tensors(config));
  const Tree before = read_tree(model);
  const model::PackSettings replace{.replace = true};
  CHECK_THAT(error_of(Code::Usage, [&] { pack(model, model, replace); }), Contains("own directory"));
  CHECK_THAT(error_of(Code::Usage, [&] { pack(model, model / "out"); }), Contains("lies inside"));
  CHECK_THAT(error_of(Code::Usage, [&] { pack(model, model / ".." / "m" / "x" / ".." / "out"); }),
             Contains("lies inside"));
  CHECK_THAT(error_of(Code::Usage, [&] { pack(model, dir.path() / "models", replace); }),
             Contains("model lies inside"));
  fs::create_directory_symlink(model, dir.path() / "link");
  CHECK_THAT(error_of(Code::Usage, [&] { pack(model, dir.path() / "link" / "out"); }), Contains("lies inside"));
  CHECK_THAT(error_of(Code::Usage, [&] { pack(dir.path() / "link", model, replace); }), Contains("own directory"));
  CHECK(read_tree(model) == before);
  pack(model, dir.path() / "models" / "m2");  // a name that begins alike is another place
  CHECK_THAT(error_of(Code::Usage, [&] { pack(dir.path() / "models" / "m2", dir.path() / "twice"); }),
             Contains("packed already") && Contains("--unpack"));
  CHECK_THAT(error_of(Code::Model, [&] { unpack(model, dir.path() / "twice"); }), Contains("glyd.json"));
  CHECK_THAT(error_of(Code::Model, [&] { verify(model); }), Contains("glyd.json"));
}

namespace {

// A packed model to damage.
struct Packed {
  Packed() {
    const Json config = config_of("qwen2", {{"num_hidden_layers", 1}});
    write_single(dir.path() / "model", config, formula_tensors(config));
    test::write_file(dir.path() / "model" / "tokenizer.json", "{}");
    pack(dir.path() / "model", packed);
  }
  void change(const std::string& name, const std::function<void(std::string&)>& edit) const {
    std::string bytes = test::read_file(packed / name);
    edit(bytes);
    test::write_file(packed / name, bytes);
  }
  // Changes glyd.json in a way that its checksum fits.
  void change_manifest(const std::function<void(Manifest&)>& edit) const {
    Manifest manifest = codec::load_manifest(packed);
    edit(manifest);
    test::write_file(packed / "glyd.json", codec::manifest_text(manifest));
  }
  std::string open_error() const {
    return error_of(Code::Model, [&] { Checkpoint::open(packed); });
  }
  std::string verify_error() const {
    return error_of(Code::Model, [&] { verify(packed); });
  }
  // Also checks that nothing was left.
  std::string unpack_error() const {
    const std::string said = error_of(Code::Model, [&] { unpack(packed, dir.path() / "out"); });
    CHECK(read_tree(dir.path()).size() == 2);
    return said;
  }

  TempDir dir;
  fs::path packed = dir.path() / "packed";
};

}  // namespace

TEST_CASE("Damaged packed directories are refused by name", "[model][packing]") {
  const Packed p;
  REQUIRE(p.verify_error().empty());
  const auto refused_everywhere = [&](const std::string& part) {
    CHECK_THAT(p.open_error(), Contains(part));
    CHECK_THAT(p.unpack_error(), Contains(part));
  };
  SECTION("a file removed") {
    const std::string name = GENERATE("model.safetensors", "config.json");
    fs::remove(p.packed / name);
    refused_everywhere(name);
  }
  SECTION("glyd.json removed") {
    fs::remove(p.packed / "glyd.json");
    CHECK_THAT(p.open_error(), Contains("packed weights") && Contains("glyd.json is missing"));
  }
  SECTION("a side file removed or changed") {
    if (GENERATE(true, false)) {
      fs::remove(p.packed / "tokenizer.json");
    } else {
      test::write_file(p.packed / "tokenizer.json", "{ }");
    }
    CHECK(p.open_error().empty());
    CHECK_THAT(p.verify_error(), Contains("tokenizer.json"));
    CHECK_THAT(p.unpack_error(), Contains("tokenizer.json"));
  }
  SECTION("cut short") {
    p.change("model.safetensors", [](std::string& bytes) { bytes.pop_back(); });
    refused_everywhere("model.safetensors");
  }
  SECTION("a manifest cut short, empty, of a later version") {
    p.change("glyd.json", [](std::string& text) { text.resize(text.size() / 2); });
    refused_everywhere("glyd.json");
    test::write_file(p.packed / "glyd.json", "");
    refused_everywhere("glyd.json");
    test::write_file(p.packed / "glyd.json", "{\"format\": \"glyd-packed\", \"version\": 7}");
    refused_everywhere("version 7");
  }
  SECTION("a weight changed where the structure does not show it") {
    const std::uint64_t at = io::Safetensors::open(p.packed / "model.safetensors").data_begin() + 20'000;
    p.change("model.safetensors", [&](std::string& bytes) { bytes[at] = static_cast<char>(bytes[at] ^ 0x10); });
    CHECK(p.open_error().empty());
    CHECK_THAT(p.verify_error(), Contains("'model.embed_tokens.weight'") && Contains("model.safetensors"));
    CHECK_THAT(p.unpack_error(), Contains("'model.embed_tokens.weight'") && Contains("model.safetensors"));
  }
}

TEST_CASE("Manifests that disagree with the weights or the config are refused", "[model][packing]") {
  const Packed p;
  const auto opens_with = [&](const std::function<void(Manifest&)>& edit) {
    p.change_manifest(edit);
    return p.open_error();
  };
  const std::string qkv = "layers.0.qkv";
  const auto matrix = [](Manifest& m, const std::string& name) -> Manifest::Matrix& {
    return *std::find_if(m.matrices.begin(), m.matrices.end(), [&](const auto& x) { return x.name == name; });
  };
  SECTION("a matrix that is not there") {
    CHECK_THAT(opens_with([&](Manifest& m) { matrix(m, qkv).name = "layers.1.qkv"; }), Contains("'layers.1.qkv.glyd'"));
  }
  SECTION("a matrix not listed") {
    CHECK_THAT(
        opens_with([&](Manifest& m) { std::erase_if(m.matrices, [&](const auto& x) { return x.name == qkv; }); }),
        Contains("q_proj.weight"));
  }
  SECTION("another size") {
    CHECK_THAT(opens_with([&](Manifest& m) { matrix(m, qkv).bytes += 1; }), Contains("'layers.0.qkv.glyd'"));
  }
  SECTION("another shape") {
    CHECK_THAT(opens_with([&](Manifest& m) { matrix(m, qkv).cols = 65; }), Contains("'layers.0.qkv.glyd'"));
  }
  SECTION("members in another order: another shape for k") {
    CHECK_THAT(
        opens_with([&](Manifest& m) { std::swap(matrix(m, qkv).members[0].tensor, matrix(m, qkv).members[1].tensor); }),
        Contains("shape"));
  }
  SECTION("members exchanged that look alike: for checksums to find") {
    CHECK(opens_with([&](Manifest& m) {
            std::swap(matrix(m, qkv).members[1].tensor, matrix(m, qkv).members[2].tensor);
          }).empty());
    CHECK_THAT(p.verify_error(), Contains("k_proj") || Contains("v_proj"));
  }
  SECTION("a member stored plain too") {
    CHECK_THAT(opens_with([&](Manifest& m) { matrix(m, qkv).members[0].tensor = "model.norm.weight"; }),
               Contains("'model.norm.weight'"));
  }
  SECTION("a tensor that no config implies") {
    CHECK_THAT(opens_with([&](Manifest& m) { matrix(m, qkv).members[0].tensor = "strange"; }), Contains("q_proj"));
  }
  SECTION("headers of the original that are wrong") {
    const std::string header = GENERATE("", "{}", "not JSON", "{\"model.norm.weight\":{\"dtype\":\"BF16\"}}");
    p.change_manifest([&](Manifest& m) { m.files[0].header = header; });
    CHECK_FALSE(p.unpack_error().empty());
  }
  SECTION("a header with other spaces: another file, so its checksum differs") {
    p.change_manifest([&](Manifest& m) {
      m.files[0].header.insert(1, " ");
      m.files[0].bytes += 1;
    });
    CHECK_THAT(p.unpack_error(), Contains("'model.safetensors'") && Contains("checksum"));
  }
  SECTION("a header that names a tensor which is not there, or of another shape") {
    const auto [from, to] = GENERATE(table<std::string, std::string>(
        {{"model.norm.weight", "model.norm.weighs"}, {"[300,64]", "[64,300]"}, {"\"BF16\"", "\"U16\""}}));
    p.change_manifest([&, from = from, to = to](Manifest& m) {
      m.files[0].header.replace(m.files[0].header.find(from), from.size(), to);
    });
    CHECK_FALSE(p.unpack_error().empty());
  }
  SECTION("a tensor without a checksum") {
    p.change_manifest([&](Manifest& m) {
      std::erase_if(m.files[0].tensors, [](const auto& t) { return t.name == "model.norm.weight"; });
    });
    CHECK_THAT(p.verify_error(), Contains("'model.norm.weight'"));
    CHECK_THAT(p.unpack_error(), Contains("'model.norm.weight'"));
  }
  SECTION("sizes that no file has") {
    p.change_manifest([&](Manifest& m) { m.files[0].bytes = GENERATE(0u, 1u, 100u); });
    CHECK_FALSE(p.unpack_error().empty());
  }
}

TEST_CASE("Two thousand random corruptions are each refused or harmless", "[model][packing]") {
  const Packed p;
  const std::string weights = test::read_file(p.packed / "model.safetensors"),
                    json = test::read_file(p.packed / "glyd.json");
  const Tree original = read_tree(p.dir.path() / "model");
  std::mt19937 random(2000);
  int refused = 0, harmless = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const bool in_json = trial % 4 == 0;
    std::string bytes = in_json ? json : weights;
    // Half of the trials hit the first bytes of a file, where headers are.
    const std::size_t reach = trial % 2 ? bytes.size() : std::min<std::size_t>(bytes.size(), 2000);
    const std::size_t at = random() % reach;
    const char before = bytes[at];
    bytes[at] = static_cast<char>(before ^ static_cast<char>(1 + random() % 255));
    INFO("trial " << trial << ": byte " << at << (in_json ? " of glyd.json" : " of the weights"));
    const fs::path path = p.packed / (in_json ? "glyd.json" : "model.safetensors");
    test::write_file(path, bytes);
    const std::string said = p.verify_error();
    said.empty() ? ++harmless : ++refused;
    if (said.empty()) {
      unpack(p.packed, p.dir.path() / "out");
      CHECK(read_tree(p.dir.path() / "out") == original);
      fs::remove_all(p.dir.path() / "out");
    }
    test::write_file(path, in_json ? json : weights);
  }
  CHECK(refused + harmless == 2000);
  CHECK(refused > 1500);
}
