// tools/decode_glyd.py was written from docs/format.md and shares no code with the decoder here: what both read the
// same way is described well enough. It compares every tensor with the checksums that glyd-pack took of the original.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>
#include <string>

#include "base/bf16.h"
#include "io/json.h"
#include "model/config.h"
#include "model/packing.h"
#include "model/weights.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

namespace fs = std::filesystem;

// A python3 that has numpy, or empty.
std::string python() {
  for (const std::string name : {"/usr/bin/python3", "python3"}) {
    if (std::system((name + " -c 'import numpy' 2>/dev/null").c_str()) == 0) return name;
  }
  return "";
}

// Bell-shaped weights and here and there any bit pattern, in shapes that are no multiples of units, groups or tiles.
void write_odd_model(const fs::path& dir) {
  const io::Json config = tiny_config("qwen2", {{"hidden_size", 272},
                                                {"intermediate_size", 541},
                                                {"vocab_size", 515},
                                                {"num_hidden_layers", 1},
                                                {"head_dim", 22}});
  std::mt19937 random(20);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<RawTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape, std::uint64_t count) {
    std::string data;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint16_t bits =
          random() % 499 == 0 ? static_cast<std::uint16_t>(random()) : to_bf16(normal(random)).bits;
      data += static_cast<char>(bits & 0xFF);
      data += static_cast<char>(bits >> 8);
    }
    tensors.push_back({name, "BF16", std::move(shape), std::move(data)});
  };
  const model::ModelSpec spec = model::model_spec(model::parse_config(config.dump(), "config.json"));
  for (const model::MatrixSpec* m : model::all_matrices(spec)) {
    for (const model::Member& member : m->members) add(member.tensor, {member.rows, m->cols}, member.rows * m->cols);
  }
  for (const model::VectorSpec* v : model::all_vectors(spec)) {
    for (const model::Member& member : v->members) add(member.tensor, {member.rows}, member.rows);
  }
  fs::create_directories(dir);
  write_file(dir / "config.json", config.dump());
  write_file(dir / "model.safetensors", safetensors_bytes(tensors));
}

TEST_CASE("the independent decoder reads what glyd-pack writes", "[tools][pack]") {
  const std::string interpreter = python();
  if (interpreter.empty()) {
    WARN("skipped: no python3 with numpy on this machine");
    return;
  }
  const TempDir dir;
  write_odd_model(dir.path() / "odd");
  ThreadPool pool(2);
  Progress silent;
  const std::string script = (tests_dir().parent_path() / "tools" / "decode_glyd.py").string();
  int number = 0;
  for (const fs::path& model : {shipped_model("tiny-austen-qwen2"), dir.path() / "odd"}) {
    INFO(model);
    const fs::path packed = dir.path() / ("packed" + std::to_string(number++));
    const auto report = model::pack_model(model::Checkpoint::open(model), packed, {}, pool, silent);
    REQUIRE(report.total().packed >= 4);
    REQUIRE(report.total().exceptions > 0);
    CHECK(std::system((interpreter + " " + script + " " + packed.string() + " 2>/dev/null").c_str()) == 0);

    // And it does see a difference: one bit of a sign+mantissa byte, which no structure shows.
    std::string bytes = read_file(packed / "model.safetensors");
    const std::size_t matrix = bytes.find("GLYDMATR");
    REQUIRE(matrix != std::string::npos);
    bytes[matrix + 4096] = static_cast<char>(bytes[matrix + 4096] ^ 1);
    write_file(packed / "model.safetensors", bytes);
    CHECK(std::system((interpreter + " " + script + " " + packed.string() + " 2>/dev/null").c_str()) != 0);
  }
}

}  // namespace
}  // namespace glyd::test
