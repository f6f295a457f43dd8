#include "model/checkpoint.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using io::Json;
using model::Checkpoint;
using test::formula_tensors;
using test::named;
using test::RawTensor;
using test::TempDir;

namespace {

void remove(std::vector<RawTensor>& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const RawTensor& t) { return t.name == name; });
}

RawTensor zeros(const std::string& name, std::vector<std::uint64_t> shape, const std::string& dtype = "BF16",
                std::size_t width = 2) {
  std::size_t bytes = width;
  for (const std::uint64_t dim : shape) bytes *= dim;
  return {name, dtype, std::move(shape), std::string(bytes, '\0')};
}

void write_model(const std::filesystem::path& dir, const Json& config, const std::vector<RawTensor>& tensors) {
  test::write_file(dir / "config.json", config.dump());
  test::write_file(dir / "model.safetensors", test::safetensors_bytes(tensors));
}

// What Checkpoint::open says to these tensors; "" when it opens.
std::string refusal(const std::filesystem::path& dir) {
  return test::error_of(Code::Model, [&] { Checkpoint::open(dir); });
}

std::string refusal_of(const Json& config, const std::vector<RawTensor>& tensors) {
  const TempDir dir;
  write_model(dir.path(), config, tensors);
  return refusal(dir.path());
}

// A sharded model: shards as given, and an index that maps each tensor to the shard it is in unless `edit` changes it.
void write_sharded(
    const std::filesystem::path& dir, const Json& config, const std::vector<std::vector<RawTensor>>& shards,
    const std::function<void(Json&)>& edit = [](Json&) {}) {
  test::write_file(dir / "config.json", config.dump());
  Json index = {{"metadata", {{"total_size", 1.5}}}, {"weight_map", Json::object()}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = "part-" + std::to_string(i) + ".safetensors";
    test::write_file(dir / name, test::safetensors_bytes(shards[i]));
    for (const RawTensor& t : shards[i]) index["weight_map"][t.name] = name;
  }
  edit(index);
  test::write_file(dir / "model.safetensors.index.json", index.dump());
}

std::vector<std::vector<RawTensor>> split(std::vector<RawTensor> tensors, std::size_t count) {
  std::vector<std::vector<RawTensor>> shards(count);
  for (std::size_t i = 0; i < tensors.size(); ++i) shards[i % count].push_back(tensors[i]);
  return shards;
}

std::vector<Bf16> rows_of(const Checkpoint& c, const model::MatrixSpec& matrix) {
  std::vector<Bf16> out(matrix.rows * matrix.cols);
  c.read_rows(matrix, 0, matrix.rows, out);
  return out;
}

std::vector<Bf16> as_bf16(const std::string& bytes) {
  std::vector<Bf16> out(bytes.size() / 2);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

const std::string kQ = "model.layers.0.self_attn.q_proj.weight";

}  // namespace

TEST_CASE("the fixture's formula gives the specification's first values", "[model]") {
  const std::vector<Bf16> embed = as_bf16(test::formula_tensor("model.embed_tokens.weight", 8));
  const int bytes[] = {17, 6, 182, 201, 59, 49, 190, 138};
  for (std::size_t i = 0; i < 8; ++i) CHECK(to_float(embed[i]) == static_cast<float>(bytes[i] - 128) / 512.0f);
  const std::vector<Bf16> norm = as_bf16(test::formula_tensor("model.norm.weight", 4));
  const float values[] = {1.1953125f, 1.0f, 1.140625f, 1.0703125f};
  for (std::size_t i = 0; i < 4; ++i) CHECK(to_float(norm[i]) == values[i]);
}

TEST_CASE("a model is opened and its matrices read, members one after another", "[model]") {
  const TempDir dir;
  test::write_formula_model(dir.path(), test::tiny_config("qwen2"));
  const Checkpoint c = Checkpoint::open(dir.path());
  const model::MatrixSpec& qkv = c.spec().layers[1].qkv;
  std::string expected;
  for (const auto& [part, rows] : {std::pair{"q", 16}, std::pair{"k", 8}, std::pair{"v", 8}}) {
    expected += test::formula_tensor("model.layers.1.self_attn." + std::string(part) + "_proj.weight",
                                     static_cast<std::uint64_t>(rows) * 16);
  }
  const std::vector<Bf16> all = as_bf16(expected);
  CHECK(rows_of(c, qkv) == all);
  // Any range of rows, across the borders of members.
  for (const auto& [first, rows] :
       {std::pair{0, 1}, std::pair{15, 2}, std::pair{14, 14}, std::pair{31, 1}, std::pair{16, 0}}) {
    std::vector<Bf16> part(static_cast<std::size_t>(rows) * 16);
    c.read_rows(qkv, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(rows), part);
    CHECK(part == std::vector<Bf16>(all.begin() + first * 16, all.begin() + (first + rows) * 16));
  }
  // And some columns of them.
  for (const Range cols : {Range{0, 16}, Range{0, 1}, Range{15, 16}, Range{3, 11}, Range{8, 8}}) {
    std::vector<Bf16> part(17 * cols.size()), want;
    c.read_columns(qkv, 14, 17, cols, part);
    for (std::uint64_t r = 14; r < 31; ++r)
      for (std::uint64_t col = cols.begin; col < cols.end; ++col) want.push_back(all[r * 16 + col]);
    CHECK(part == want);
  }
  std::vector<Bf16> bias(32);
  c.read_vector(c.spec().layers[0].qkv_bias, bias);
  CHECK(std::vector<Bf16>(bias.begin() + 16, bias.begin() + 24) ==
        as_bf16(test::formula_tensor("model.layers.0.self_attn.k_proj.bias", 8)));
  std::vector<Bf16> wrong(15);
  CHECK_THROWS_AS(c.read_rows(qkv, 0, 1, wrong), Error);
  CHECK_THROWS_AS(c.read_rows(qkv, 32, 1, std::span(bias).first(16)), Error);
  CHECK_THROWS_AS(c.read_columns(qkv, 0, 1, {0, 16}, wrong), Error);
  CHECK_THROWS_AS(c.read_columns(qkv, 0, 1, {2, 17}, wrong), Error);
  CHECK_THROWS_AS(c.read_columns(qkv, 0, 1, {3, 2}, wrong), Error);
  CHECK_THROWS_AS(c.read_vector(c.spec().final_norm, wrong), Error);
  CHECK(c.parameters() == 2 * 32 * 16 + 16 + 2 * (16 * 2 + 32 * 16 + 32 + 16 * 16 + 3 * 24 * 16));
  CHECK(c.weight_bytes() == 2 * c.parameters());
  CHECK(c.stored_bytes() == c.weight_bytes());
  CHECK(c.dir() == dir.path());
}

TEST_CASE("the shipped models open", "[model]") {
  const Checkpoint qwen3 = Checkpoint::open(test::shipped_model("tiny-austen"));
  CHECK(qwen3.stored_bytes() == qwen3.weight_bytes());
  CHECK(qwen3.spec().lm_head.members.empty());
  CHECK_FALSE(Checkpoint::open(test::shipped_model("tiny-austen-qwen2")).spec().lm_head.members.empty());
}

TEST_CASE("F32 and F16 become bf16 by rounding to nearest-even; bf16 keeps every pattern", "[model]") {
  const Json config = test::tiny_config("llama");
  std::vector<RawTensor> tensors = formula_tensors(config);
  const float floats[] = {1.0f, 1.00390625f, 1.01171875f, -1.00390637f, 3.4e38f, 0.0f, -0.0f, 1e-45f};
  const std::uint16_t from_floats[] = {0x3F80, 0x3F80, 0x3F82, 0xBF81, 0x7F80, 0x0000, 0x8000, 0x0000};
  const std::uint16_t halves[] = {0x3C00, 0x3C04, 0x3C0C, 0xBC05, 0x7BFF, 0x7C00, 0x8000, 0x0001};
  const std::uint16_t from_halves[] = {0x3F80, 0x3F80, 0x3F82, 0xBF81, 0x4780, 0x7F80, 0x8000, 0x3380};
  const std::uint16_t patterns[] = {0x7F81, 0xFFFF, 0x7F80, 0xFF80, 0x0001, 0x8000, 0x7FC0, 0x1234};

  RawTensor& q = named(tensors, kQ);
  q.dtype = "F32";
  q.data = std::string(16 * 16 * 4, '\0');
  std::memcpy(q.data.data() + 16 * 15 * 4, floats, sizeof floats);
  RawTensor& k = named(tensors, "model.layers.0.self_attn.k_proj.weight");
  k.dtype = "F16";
  k.data = std::string(8 * 16 * 2, '\0');
  std::memcpy(k.data.data(), halves, sizeof halves);
  RawTensor& v = named(tensors, "model.layers.0.self_attn.v_proj.weight");
  std::memcpy(v.data.data(), patterns, sizeof patterns);
  RawTensor& norm = named(tensors, "model.norm.weight");
  norm.dtype = "F32";
  norm.data = std::string(16 * 4, '\0');
  std::memcpy(norm.data.data(), floats, sizeof floats);
  // An odd offset for all that follows: the format promises no alignment.
  tensors.insert(tensors.begin(), zeros("model.layers.0.self_attn.rotary_emb.inv_freq", {3}, "U8", 1));

  const TempDir dir;
  write_model(dir.path(), config, tensors);
  const Checkpoint c = Checkpoint::open(dir.path());
  const std::vector<Bf16> qkv = rows_of(c, c.spec().layers[0].qkv);
  std::vector<Bf16> columns(32 * 5), same_columns;  // rows of all three types
  c.read_columns(c.spec().layers[0].qkv, 0, 32, {2, 7}, columns);
  for (std::size_t r = 0; r < 32; ++r)
    same_columns.insert(same_columns.end(), qkv.begin() + static_cast<std::ptrdiff_t>(r * 16 + 2),
                        qkv.begin() + static_cast<std::ptrdiff_t>(r * 16 + 7));
  CHECK(columns == same_columns);
  std::vector<Bf16> final_norm(16);
  c.read_vector(c.spec().final_norm, final_norm);
  for (std::size_t i = 0; i < 8; ++i) {
    INFO(i);
    CHECK(qkv[15 * 16 + i].bits == from_floats[i]);
    CHECK(qkv[16 * 16 + i].bits == from_halves[i]);
    CHECK(qkv[24 * 16 + i].bits == patterns[i]);
    CHECK(final_norm[i].bits == from_floats[i]);
  }
  CHECK(c.stored_bytes() == c.weight_bytes() + 2 * (16 * 16 + 16));
}

TEST_CASE("a missing tensor is named", "[model]") {
  for (const char* type : {"qwen2", "qwen3", "llama"}) {
    const Json config = test::tiny_config(type);
    const std::vector<RawTensor> all = formula_tensors(config);
    for (const RawTensor& t : all) {
      std::vector<RawTensor> tensors = all;
      remove(tensors, t.name);
      INFO(t.name);
      CHECK_THAT(refusal_of(config, tensors), Contains("model.safetensors") && Contains("'" + t.name + "' is missing"));
    }
  }
  const Json config = test::tiny_config("qwen3");
  CHECK_THAT(refusal_of(config, {}), Contains("'model.embed_tokens.weight' is missing (25 of 25"));
  std::vector<RawTensor> headless = formula_tensors(config);
  remove(headless, "lm_head.weight");
  CHECK_THAT(refusal_of(config, headless),
             Contains("'lm_head.weight' is missing") && Contains("tie_word_embeddings is false"));
}

TEST_CASE("tensors that the config does not imply are refused, harmless ones aside", "[model]") {
  const Json config = test::tiny_config("llama");
  const std::vector<RawTensor> all = formula_tensors(config);
  const auto with = [&](const RawTensor& extra) {
    std::vector<RawTensor> tensors = all;
    tensors.push_back(extra);
    return refusal_of(config, tensors);
  };
  CHECK(with(zeros("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, "F32", 4)).empty());
  CHECK_THAT(with(zeros("model.layers.0.self_attn.q_proj.bias", {16})),
             Contains("'model.layers.0.self_attn.q_proj.bias'") && Contains("LlamaForCausalLM"));
  CHECK_THAT(with(zeros("model.layers.2.input_layernorm.weight", {16})),
             Contains("'model.layers.2.input_layernorm.weight'"));
  CHECK_THAT(with(zeros("something", {1})), Contains("'something'"));
  for (const char* ending : {"qweight", "qzeros", "g_idx", "weight_scale", "weight_packed", "weight_scale_inv"}) {
    INFO(ending);
    CHECK_THAT(with(zeros("model.layers.0.mlp.up_proj." + std::string(ending), {1})),
               Contains(ending) && Contains("quantised"));
  }
  // A quantised file lacks the plain weight too; that it is quantised says more.
  std::vector<RawTensor> quantised = all;
  named(quantised, kQ).name = "model.layers.0.self_attn.q_proj.qweight";
  CHECK_THAT(refusal_of(config, quantised), Contains("q_proj.qweight") && Contains("quantised"));
  std::vector<RawTensor> many = all;
  for (int i = 0; i < 100; ++i) many.push_back(zeros("extra." + std::to_string(i), {1}));
  CHECK_THAT(refusal_of(config, many), Contains("100 tensors") && Contains("and 96 more"));
}

TEST_CASE("shapes and dtypes must be the expected ones", "[model]") {
  const Json config = test::tiny_config("qwen3");
  const std::vector<RawTensor> all = formula_tensors(config);
  const auto changed = [&](const std::string& name, const RawTensor& instead) {
    std::vector<RawTensor> tensors = all;
    named(tensors, name) = instead;
    return refusal_of(config, tensors);
  };
  CHECK_THAT(changed(kQ, zeros(kQ, {16, 17})), Contains(kQ) && Contains("[16, 17]") && Contains("[16, 16]"));
  CHECK_THAT(changed(kQ, zeros(kQ, {256})), Contains(kQ) && Contains("[256]"));
  CHECK_THAT(changed(kQ, zeros(kQ, {1, 16, 16})), Contains(kQ) && Contains("[1, 16, 16]"));
  const std::string down = "model.layers.1.mlp.down_proj.weight", norm = "model.norm.weight";
  CHECK_THAT(changed(down, zeros(down, {24, 16})), Contains(down) && Contains("[24, 16]") && Contains("[16, 24]"));
  CHECK_THAT(changed(norm, zeros(norm, {1, 16})), Contains(norm) && Contains("[1, 16]") && Contains("[16]"));
  CHECK_THAT(changed(kQ, zeros(kQ, {16, 16}, "I8", 1)), Contains(kQ) && Contains("I8") && Contains("BF16, F16 or F32"));
  CHECK_THAT(changed(kQ, zeros(kQ, {16, 16}, "F8_E4M3", 1)), Contains(kQ) && Contains("F8_E4M3"));
  CHECK_THAT(changed(norm, zeros(norm, {16}, "F64", 8)), Contains(norm) && Contains("F64"));
  // The config decides: with another vocabulary the embedding is the wrong one.
  CHECK_THAT(refusal_of(test::tiny_config("qwen3", {{"vocab_size", 33}}), all),
             Contains("model.embed_tokens.weight") && Contains("[33, 16]"));
}

TEST_CASE("a tied model may store its head once more", "[model]") {
  const Json config = test::tiny_config("qwen3", {{"tie_word_embeddings", true}});
  std::vector<RawTensor> tensors = formula_tensors(config);
  RawTensor head = named(tensors, "model.embed_tokens.weight");
  head.name = "lm_head.weight";
  const std::uint64_t parameters = 32 * 16 + 16 + 2 * (16 * 2 + 2 * 4 + 32 * 16 + 16 * 16 + 3 * 24 * 16);
  for (const bool same : {true, false}) {
    if (!same) head.data[100] ^= 1;
    std::vector<RawTensor> with_head = tensors;
    with_head.push_back(head);
    const TempDir dir;
    write_model(dir.path(), config, with_head);
    const Checkpoint c = Checkpoint::open(dir.path());
    CHECK(c.spec().lm_head.members.empty());
    CHECK(c.parameters() == parameters);
    CHECK(c.stored_bytes() == 2 * parameters);
  }
}

TEST_CASE("prefixes of other exports are found, two are one too many", "[model]") {
  const Json config = test::tiny_config("qwen3", {{"tie_word_embeddings", true}});
  const std::vector<RawTensor> all = formula_tensors(config);
  const auto with_prefix = [&](const std::string& prefix) {
    std::vector<RawTensor> tensors = all;
    for (RawTensor& t : tensors) t.name = prefix + t.name.substr(std::string("model.").size());
    return tensors;
  };
  for (const char* prefix : {"", "model.language_model.", "language_model.model."}) {
    const TempDir dir;
    write_model(dir.path(), config, with_prefix(prefix));
    const Checkpoint c = Checkpoint::open(dir.path());
    CHECK(c.spec().final_norm.members[0].tensor == std::string(prefix) + "norm.weight");
    CHECK(rows_of(c, c.spec().embed) == as_bf16(test::formula_tensor("model.embed_tokens.weight", 32 * 16)));
  }
  std::vector<RawTensor> both = all;
  both.push_back(zeros("embed_tokens.weight", {32, 16}));
  CHECK_THAT(refusal_of(config, both),
             Contains("'model.embed_tokens.weight'") && Contains("'embed_tokens.weight'") && Contains("expected one"));
  CHECK_THAT(refusal_of(config, with_prefix("transformer.")),
             Contains("'model.embed_tokens.weight' is missing") && Contains("'transformer."));
}

TEST_CASE("shards are read through their index", "[model]") {
  const Json config = test::tiny_config("qwen2");
  const std::vector<RawTensor> all = formula_tensors(config);
  const TempDir dir;
  write_sharded(dir.path(), config, split(all, 3));
  test::write_file(dir.path() / "stray.safetensors", "not opened");  // old shards and adapters are not looked at
  const Checkpoint c = Checkpoint::open(dir.path());
  CHECK(c.files().size() == 3);
  for (const auto* matrix : model::all_matrices(c.spec())) {
    std::string expected;
    for (const auto& member : matrix->members)
      expected += test::formula_tensor(member.tensor, member.rows * matrix->cols);
    CHECK(rows_of(c, *matrix) == as_bf16(expected));
  }
  // A single file beside the index wins.
  test::write_file(dir.path() / "model.safetensors", test::safetensors_bytes(all));
  CHECK(Checkpoint::open(dir.path()).files().size() == 1);
}

TEST_CASE("the index says which copy of a tensor counts", "[model]") {
  const Json config = test::tiny_config("llama");
  std::vector<std::vector<RawTensor>> shards = split(formula_tensors(config), 2);
  RawTensor copy = named(shards[0], "model.embed_tokens.weight");
  copy.data.assign(copy.data.size(), '\x7f');
  shards[1].push_back(copy);
  const TempDir dir;
  write_sharded(dir.path(), config, shards,
                [](Json& index) { index["weight_map"]["model.embed_tokens.weight"] = "part-0.safetensors"; });
  const Checkpoint c = Checkpoint::open(dir.path());
  CHECK(rows_of(c, c.spec().embed) == as_bf16(test::formula_tensor("model.embed_tokens.weight", 32 * 16)));
}

TEST_CASE("a damaged index is refused", "[model]") {
  const Json config = test::tiny_config("llama");
  const std::vector<RawTensor> all = formula_tensors(config);
  const auto with_index = [&](const std::function<void(Json&)>& edit) {
    const TempDir dir;
    write_sharded(dir.path(), config, split(all, 2), edit);
    return refusal(dir.path());
  };
  const std::string norm = "model.norm.weight";
  for (const char* name : {"../part-0.safetensors", "/etc/passwd", "a/b", "C:\\x", "..", ".", "", "a\\b"}) {
    INFO(name);
    CHECK_THAT(with_index([&](Json& index) { index["weight_map"][norm] = name; }),
               Contains("index.json: weight_map") && Contains("'" + norm + "'") && Contains("plain file name"));
  }
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"][norm] = std::string("a\0b", 3); }),
             Contains("plain file name"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"][norm] = "gone.safetensors"; }),
             Contains("'gone.safetensors'") && Contains("not in the directory"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"][norm] = 3; }),
             Contains("'" + norm + "'") && Contains("a number"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"] = Json::array(); }), Contains("weight_map is a list"));
  CHECK_THAT(with_index([&](Json& index) { index.erase("weight_map"); }), Contains("weight_map is missing"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"] = Json::object(); }), Contains("is missing (21 of 21"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"].erase(norm); }),
             Contains("index.json: weight_map does not list tensor '" + norm + "', which is in 'part-") &&
                 Contains("fetch the index again"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"].erase("model.embed_tokens.weight"); }),
             Contains("weight_map does not list tensor 'model.embed_tokens.weight', which is in 'part-"));
  CHECK_THAT(with_index([&](Json& index) { index["weight_map"][norm] = "config.json"; }), Contains("config.json"));
  const auto move = [&](Json& index) {
    auto& place = index["weight_map"][norm];
    place = place == "part-0.safetensors" ? "part-1.safetensors" : "part-0.safetensors";
  };
  CHECK_THAT(with_index(move),
             Contains("'" + norm + "' is missing") && Contains("part-") && Contains("index.json says"));
  CHECK_THAT(with_index([](Json& index) {
               index["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = "part-0.safetensors";
             }),
             Contains("inv_freq' is missing"));

  for (const char* text : {"", "[]", "{", "{} x", R"({"weight_map":{"a":"b","a":"b"}})",
                           R"({"weight_map":{},"weight_map":{}})", R"({"weight_map":{"a":"b"}} {})"}) {
    INFO(text);
    const TempDir dir;
    test::write_file(dir.path() / "config.json", config.dump());
    test::write_file(dir.path() / "model.safetensors.index.json", text);
    CHECK_THAT(refusal(dir.path()), Contains("model.safetensors.index.json"));
  }
}

TEST_CASE("tensors of a shard that the index does not list are unexpected, and do not fill gaps", "[model]") {
  const Json config = test::tiny_config("llama");
  std::vector<std::vector<RawTensor>> shards = split(formula_tensors(config), 2);
  shards[0].push_back(zeros("extra.weight", {4}));
  const TempDir dir;
  write_sharded(dir.path(), config, shards, [](Json& index) { index["weight_map"].erase("extra.weight"); });
  CHECK_THAT(refusal(dir.path()), Contains("'extra.weight'"));
}

TEST_CASE("a folder without weights is listed, with the cure", "[model]") {
  const TempDir dir;
  test::write_file(dir.path() / "config.json", test::tiny_config("llama").dump());
  CHECK_THAT(refusal(dir.path()), Contains("neither model.safetensors nor model.safetensors.index.json") &&
                                      Contains("it holds config.json"));
  test::write_file(dir.path() / "pytorch_model-00001-of-00002.bin", "x");
  CHECK_THAT(refusal(dir.path()), Contains("pytorch_model-00001-of-00002.bin") && Contains("converted to safetensors"));
  test::write_file(dir.path() / "model-00001-of-00002.safetensors", "x");
  CHECK_THAT(refusal(dir.path()), Contains("model.safetensors.index.json") && Contains("under other names"));
  std::filesystem::create_symlink("nowhere", dir.path() / "model.safetensors");
  CHECK_THAT(refusal(dir.path()), Contains("model.safetensors: cannot be opened"));
}

TEST_CASE("a header far larger than any model's is refused", "[model]") {
  const Json config = test::tiny_config("llama");
  std::vector<RawTensor> tensors = formula_tensors(config);
  tensors.push_back(zeros(std::string(65 << 20, 'n'), {1}));
  CHECK_THAT(refusal_of(config, tensors), Contains("more than the 1000000 in 67108864"));
}
