// glyd.json, and packed matrices read from files by rows.

#include "codec/packed_file.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "codec/manifest.h"
#include "codec/matrices.h"
#include "io/json.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using codec::Manifest;
using codec::PackedTensor;
using codec::UnitGrid;
using test::TempDir;

namespace {

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A safetensors file of one U8 tensor with these bytes, and something before it.
io::Safetensors write_tensor(const std::filesystem::path& dir, const std::string& bytes) {
  const std::filesystem::path path = dir / "model.safetensors";
  test::write_file(path,
                   test::safetensors_bytes({{"before", "U8", {3}, "abc"}, {"m.glyd", "U8", {bytes.size()}, bytes}}));
  return io::Safetensors::open(path);
}

std::string refusal(const std::function<void()>& body) { return test::error_of(Code::Model, body); }

Manifest example() {
  Manifest m;
  m.glyd_version = "0.1.0";
  m.matrices = {{"layers.0.qkv", 48, 300, 20000, 7, {{"q", 16}, {"k", 16}, {"v \"\n\xC3\xA9", 16}}},
                {"embed", 100, 300, 40000, 0, {{"e", 100}}}};
  m.files = {{"model.safetensors",
              "{ \"odd\\u0041\" :\t1}\n  ",
              12345,
              io::Sha256::of("file"),
              {{"q", io::Sha256::of("q")}, {"norm", io::Sha256::of("norm")}}}};
  m.others = {{"config.json", 17, io::Sha256::of("config")}, {"README.md", 0, io::Sha256::of("")}};
  m.index = "{\"weight_map\": {}}\n\n";
  return m;
}

void check_names_it(const std::string& said) {
  CHECK_THAT(said, Contains("model.safetensors") && Contains("'m.glyd'"));
}

std::string refused_manifest(const Manifest& m) {
  return refusal([&] { codec::parse_manifest(codec::manifest_text(m), "dir/glyd.json"); });
}

}  // namespace

TEST_CASE("A manifest is read as it was written", "[codec][manifest]") {
  const Manifest written = example();
  const std::string text = codec::manifest_text(written);
  const Manifest read = codec::parse_manifest(text, "glyd.json");
  CHECK(codec::manifest_text(read) == text);
  CHECK(read.glyd_version == "0.1.0");
  REQUIRE(read.matrices.size() == 2);
  CHECK(read.matrices[0].members[2].tensor == "v \"\n\xC3\xA9");
  CHECK(read.matrices[0].exceptions == 7);
  CHECK(read.matrices[0].bits_a_weight() == Approx(8.0 * 20000 / (48 * 300)));
  CHECK(read.files[0].header == written.files[0].header);
  CHECK(read.files[0].tensors[1].sha256 == io::Sha256::of("norm"));
  CHECK(read.others[0].bytes == 17);
  CHECK(read.index == written.index);

  Manifest without = example();
  without.index.reset();
  CHECK_FALSE(codec::parse_manifest(codec::manifest_text(without), "glyd.json").index);
}

TEST_CASE("A manifest that was changed anywhere is refused or says the same", "[codec][manifest]") {
  const std::string text = codec::manifest_text(example());
  std::size_t refused = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0x01, 0x20}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ bit);
      try {
        const Manifest read = codec::parse_manifest(changed, "glyd.json");
        CHECK(codec::manifest_text(read) == text);
      } catch (const Error& e) {
        CHECK(e.code() == Code::Model);
        ++refused;
      }
    }
  }
  CHECK(refused > text.size());
  for (std::size_t length = 0; length + 1 < text.size(); length += 7) {
    CHECK_FALSE(refusal([&] { codec::parse_manifest(text.substr(0, length), "glyd.json"); }).empty());
  }
}

TEST_CASE("A manifest written by hand as docs/packed-directory.md says is accepted", "[codec][manifest]") {
  const std::string zeros(64, '0');
  const std::string signed_text =
      "{\n"
      "\"format\": \"glyd-packed\",\n"
      "\"version\": 1,\n"
      "\"glyd_version\": \"by hand\",\n"
      "\"matrices\": [\n"
      "  {\"name\": \"layers.0.qkv\", \"rows\": 48, \"cols\": 300, \"bytes\": 20000, \"bits_per_weight\": 11.1111, "
      "\"exceptions\": 7, \"members\": [\n"
      "   {\"tensor\": \"q\", \"rows\": 16},\n"
      "   {\"tensor\": \"\xC3\xA9/\x7F \\\" \\\\ \\n \\u001f\", \"rows\": 32}]},\n"
      "  {\"name\": \"embed\", \"rows\": 100, \"cols\": 300, \"bytes\": 40000, \"bits_per_weight\": 10.6667, "
      "\"exceptions\": 0, \"members\": [\n"
      "   {\"tensor\": \"e\", \"rows\": 100}]}],\n"
      "\"files\": [\n"
      "  {\"name\": \"model.safetensors\", \"bytes\": 10, \"sha256\": \"" +
      zeros + "\", \"header\": \"{}\", \"tensors\": []}],\n" +
      "\"others\": [\n"
      "  {\"name\": \"config.json\", \"bytes\": 17, \"sha256\": \"" +
      zeros + "\"}],\n" + "\"index\": null,\n";
  const std::string checksum = "\"sha256\": \"" + io::to_hex(io::Sha256::of(signed_text)) + "\"\n}\n";
  const Manifest read = codec::parse_manifest(signed_text + checksum, "glyd.json");
  CHECK(read.matrices.at(0).members.at(1).tensor == "\xC3\xA9/\x7F \" \\ \n \x1F");
  CHECK(codec::manifest_text(read) == signed_text + checksum);

  // The same values, written in another way.
  const io::Json values = io::Json::parse(signed_text + checksum);
  CHECK(codec::manifest_text(codec::parse_manifest(values.dump(1, '\t', true), "glyd.json")) == signed_text + checksum);
}

TEST_CASE("Spaces do not matter to a manifest's checksum, values do", "[codec][manifest]") {
  std::string text = codec::manifest_text(example());
  CHECK_NOTHROW(codec::parse_manifest("  \n" + text + "\n\n", "glyd.json"));
  const auto at = text.find("\"rows\": 48");
  text.replace(at, 10, "\"rows\":  48");
  CHECK_NOTHROW(codec::parse_manifest(text, "glyd.json"));
  text.replace(text.find("\"exceptions\": 7"), 15, "\"exceptions\": 8");
  CHECK_THAT(refusal([&] { codec::parse_manifest(text, "glyd.json"); }), Contains("checksum"));
}

TEST_CASE("Manifests of other formats and versions are refused by name", "[codec][manifest]") {
  std::string text = codec::manifest_text(example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return refusal([&] { codec::parse_manifest(changed, "dir/glyd.json"); });
  };
  CHECK_THAT(with("\"version\": 1", "\"version\": 2, \"news\": []"),
             Contains("dir/glyd.json") && Contains("version 2"));
  CHECK_THAT(with("glyd-packed", "other"), Contains("'other'") && Contains("glyd-packed"));
  CHECK_THAT(with("\"glyd_version\"", "\"unknown\""), Contains("'unknown'"));
  CHECK_THAT(with("\"others\": [", "\"others\": {}, \"o\": ["), Contains("expected an array"));
  CHECK_THAT(with("\"rows\": 48", "\"rows\": -48"), Contains("'-48'"));
  CHECK_THAT(with("\"rows\": 48", "\"rows\": 48.0"), Contains("'48.0'"));
  CHECK_THAT(with("\"rows\": 48", "\"rows\": 48, \"rows\": 48"), Contains("twice"));
  CHECK_THAT(with("\"cols\": 300, ", ""), Contains("'cols' is missing"));
  CHECK_THAT(refusal([] { codec::parse_manifest("[]", "dir/glyd.json"); }), Contains("dir/glyd.json"));
}

TEST_CASE("A manifest that contradicts itself is refused", "[codec][manifest]") {
  Manifest m = example();
  SECTION("rows that do not add up") {
    m.matrices[0].members[0].rows = 17;
    CHECK_THAT(refused_manifest(m), Contains("'layers.0.qkv'") && Contains("48"));
  }
  SECTION("rows that overflow") {
    m.matrices[0].members = {{"a", ~std::uint64_t{0}}, {"b", 49}};
    CHECK_THAT(refused_manifest(m), Contains("'layers.0.qkv'"));
  }
  SECTION("a size that overflows") {
    m.matrices[0].cols = std::uint64_t{1} << 59;
    CHECK_THAT(refused_manifest(m), Contains("too large"));
  }
  SECTION("no members") {
    m.matrices[0] = {"x", 0, 300, 0, 0, {}};
    CHECK_THAT(refused_manifest(m), Contains("'x'"));
  }
  SECTION("a matrix twice") {
    m.matrices[1].name = "layers.0.qkv";
    CHECK_THAT(refused_manifest(m), Contains("twice"));
  }
  SECTION("a tensor in two matrices") {
    m.matrices[1].members[0].tensor = "k";
    CHECK_THAT(refused_manifest(m), Contains("'k'") && Contains("twice"));
  }
  SECTION("a tensor twice in a file") {
    m.files[0].tensors[1].name = "q";
    CHECK_THAT(refused_manifest(m), Contains("'q'") && Contains("twice"));
  }
  SECTION("two files of one name") {
    m.others[0].name = "model.safetensors";
    CHECK_THAT(refused_manifest(m), Contains("'model.safetensors'") && Contains("twice"));
  }
  SECTION("a file that would take the place of the index") {
    m.others[0].name = "model.safetensors.index.json";
    CHECK_THAT(refused_manifest(m), Contains("twice"));
  }
  SECTION("names that leave the directory") {
    const std::string name = GENERATE("../x", "/etc/passwd", "a/b", "..", "", "a\\b");
    const bool weights = GENERATE(true, false);
    (weights ? m.files[0].name : m.others[0].name) = name;
    CHECK_THAT(refused_manifest(m), Contains("not a plain file name"));
  }
}

TEST_CASE("A name that is not UTF-8 cannot be put in a manifest", "[codec][manifest]") {
  Manifest m = example();
  m.others[0].name = "bad\xFFname";
  CHECK_THAT(refusal([&] { codec::manifest_text(m); }), Contains("bad\\xffname") && Contains("UTF-8"));
}

TEST_CASE("Rows of a packed tensor are those of the matrix", "[codec][packed_file]") {
  const auto [rows, cols] = GENERATE(table<std::uint64_t, std::uint64_t>(
      {{1, 1}, {16, 256}, {17, 257}, {100, 31}, {3, 5000}, {1000, 3}, {530, 4100}}));
  INFO(rows << " x " << cols);
  const UnitGrid grid{rows, cols};
  const test::Weights weights = test::heavy_tails(rows * cols, 0.02f, rows);
  const TempDir dir;
  const std::vector<std::byte> packed = test::pack_always(grid, weights);
  const io::Safetensors file = write_tensor(dir.path(), as_text(packed));
  const PackedTensor tensor(file, *file.find("m.glyd"));
  CHECK(tensor.grid().rows == rows);
  CHECK(tensor.grid().cols == cols);
  CHECK(tensor.bytes() == packed.size());
  std::vector<std::byte> copy(packed.size());
  tensor.read_packed(0, copy);
  CHECK(copy == packed);

  std::mt19937 random(1);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges = {{0, rows}, {0, 1}, {rows - 1, 1}, {rows, 0}, {0, 0}};
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t first = random() % rows;
    ranges.emplace_back(first, random() % (rows - first + 1));
  }
  for (const auto& [first, count] : ranges) {
    INFO("rows [" << first << ", +" << count << ")");
    test::Weights got(count * cols);
    tensor.read_rows(first, count, got);
    CHECK(std::equal(got.begin(), got.end(), weights.begin() + static_cast<std::ptrdiff_t>(first * cols)));
  }
  test::Weights two(2 * cols);
  CHECK_THROWS_AS(tensor.read_rows(rows - 1, 2, two), Error);
  CHECK_THROWS_AS(tensor.read_rows(0, 1, two), Error);
}

TEST_CASE("A tensor that is no packed matrix is refused by name", "[codec][packed_file]") {
  const TempDir dir;
  const UnitGrid grid{40, 600};
  const std::string good = as_text(test::pack_always(grid, test::gaussian(grid.rows * grid.cols, 0.02f, 1)));
  const auto open = [&](const std::string& bytes) {
    const io::Safetensors file = write_tensor(dir.path(), bytes);
    return refusal([&] { PackedTensor(file, *file.find("m.glyd")); });
  };
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    std::string changed = good;
    std::memcpy(&changed[at], &value, bytes);
    return open(changed);
  };
  REQUIRE(open(good).empty());
  check_names_it(open(""));
  check_names_it(open(good.substr(0, 63)));
  check_names_it(open(good.substr(0, good.size() - 4)));
  check_names_it(open(good + "abcd"));
  check_names_it(with(0, 'X', 1));
  CHECK_THAT(with(8, 2, 4), Contains("version 2"));
  for (const std::size_t at : {12, 16, 24, 32}) {  // code bytes, rows, cols, stream bytes
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 31, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
      INFO("field at " << at << " = " << value);
      check_names_it(with(at, value, at == 12 ? 4 : 8));
    }
  }
  test::write_file(dir.path() / "model.safetensors", test::safetensors_bytes({{"m.glyd", "I8", {good.size()}, good}}));
  const io::Safetensors file = io::Safetensors::open(dir.path() / "model.safetensors");
  CHECK_THAT(refusal([&] { PackedTensor(file, *file.find("m.glyd")); }), Contains("'m.glyd' is I8"));
}

TEST_CASE("Damage in a packed tensor is an error that names it, or other weights", "[codec][packed_file]") {
  const TempDir dir;
  const UnitGrid grid{70, 300};
  const std::string good = as_text(test::pack_always(grid, test::heavy_tails(grid.rows * grid.cols, 0.02f, 5)));
  const auto seed = GENERATE(range(1u, 301u));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::string bytes = good;
  for (unsigned i = 0; i < 1 + seed % 3; ++i) bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
  const io::Safetensors file = write_tensor(dir.path(), bytes);
  const std::string said = refusal([&] {
    const PackedTensor tensor(file, *file.find("m.glyd"));
    REQUIRE((tensor.grid().rows <= bytes.size() && tensor.grid().cols <= bytes.size()));
    test::Weights rows(tensor.grid().rows * tensor.grid().cols);
    tensor.read_rows(0, tensor.grid().rows, rows);
  });
  if (!said.empty()) check_names_it(said);
}
