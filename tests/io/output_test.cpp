// SHA-256, folders that appear whole or not at all, and safetensors files written without knowing their sizes before.

#include "io/output.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "io/sha256.h"
#include "io/shard_writer.h"
#include "support/errors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using test::error_of;
using test::TempDir;
namespace fs = std::filesystem;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::set<std::string> names_in(const fs::path& dir) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.insert(entry.path().filename().string());
  return names;
}

// What may be replaced in these tests.
bool models_own(const std::string& name) {
  return std::set<std::string>{"config.json", "glyd.json", "model.safetensors"}.contains(name);
}

}  // namespace

TEST_CASE("SHA-256 of the standard's examples", "[io][sha256]") {
  const auto hex = [](const std::string& text) { return io::to_hex(io::Sha256::of(text)); };
  CHECK(hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 in hexadecimal and of a part of a file", "[io][sha256]") {
  const io::Digest digest = io::Sha256::of("abc");
  CHECK(io::from_hex(io::to_hex(digest)) == digest);
  CHECK_FALSE(io::from_hex(io::to_hex(digest).substr(1)));
  CHECK_FALSE(io::from_hex("G" + io::to_hex(digest).substr(1)));
  CHECK_FALSE(io::from_hex("A" + io::to_hex(digest).substr(1)));

  const TempDir dir;
  const std::string text = std::string(3 << 20, 'x') + "abc" + std::string(100, 'y');
  test::write_file(dir.path() / "file", text);
  const io::File file = io::File::open(dir.path() / "file");
  Progress silent;
  CHECK(io::sha256_of_range(file, 3 << 20, (3 << 20) + 3, silent) == digest);
  CHECK(io::sha256_of_range(file, 0, text.size(), silent) == io::Sha256::of(text));
  CHECK(io::sha256_of_range(file, 5, 5, silent) == io::Sha256::of(""));
}

TEST_CASE("A folder appears with commit and not without", "[io][output]") {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  {
    const io::OutputDirectory directory(out);
    io::write_text(directory.temporary() / "file", "text");
    CHECK_FALSE(fs::exists(out));
  }
  CHECK(names_in(dir.path()).empty());

  io::OutputDirectory directory(out.string() + "/");
  io::write_text(directory.temporary() / "file", "text");
  directory.commit();
  CHECK(names_in(dir.path()) == std::set<std::string>{"out"});
  CHECK(test::read_file(out / "file") == "text");
  struct stat status {};
  REQUIRE(::stat(out.c_str(), &status) == 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  CHECK((status.st_mode & 0777) == (0777 & ~mask));  // as mkdir makes them, not for its owner alone
}

TEST_CASE("The unfinished folder has its name told, until it is gone", "[io][output]") {
  const TempDir dir;
  CHECK(io::unfinished_directory() == nullptr);
  {
    const io::OutputDirectory directory(dir.path() / "a\nb");
    REQUIRE(io::unfinished_directory() != nullptr);
    CHECK_THAT(io::unfinished_directory(), Contains("/a\\nb.partial-"));
  }
  CHECK(io::unfinished_directory() == nullptr);
  for (int i = 0; i < 2; ++i) {
    io::OutputDirectory directory(dir.path() / "out", models_own);
    io::write_text(directory.temporary() / "config.json", "{}");
    io::write_text(directory.temporary() / "glyd.json", "{}");
    directory.commit();
    CHECK(io::unfinished_directory() == nullptr);
  }
}

TEST_CASE("What is there is replaced only when asked, and only by a whole one", "[io][output]") {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  fs::create_directory(out);
  test::write_file(out / "config.json", "old");
  test::write_file(out / "model.safetensors", "old");
  CHECK_THAT(error_of(Code::Usage, [&] { io::OutputDirectory{out}; }), Contains("--force"));
  {
    const io::OutputDirectory directory(out, models_own);
    io::write_text(directory.temporary() / "config.json", "half");
  }
  CHECK(test::read_file(out / "config.json") == "old");
  io::OutputDirectory directory(out, models_own);
  io::write_text(directory.temporary() / "new", "new");
  directory.commit();
  CHECK(names_in(out) == std::set<std::string>{"new"});
  CHECK(names_in(dir.path()) == std::set<std::string>{"out"});
}

TEST_CASE("A folder of something else, a file and a link are never replaced", "[io][output]") {
  const TempDir dir;
  fs::create_directory(dir.path() / "home");
  test::write_file(dir.path() / "home" / "letters.txt", "dear");
  test::write_file(dir.path() / "file", "text");
  fs::create_directory_symlink(dir.path() / "home", dir.path() / "link");
  fs::create_directory(dir.path() / "settings");  // config.json is a common name
  test::write_file(dir.path() / "settings" / "config.json", "{}");
  test::write_file(dir.path() / "settings" / "thesis.txt", "long");
  fs::create_directories(dir.path() / "project" / "src");  // a model, and work beside it
  for (const char* name : {"config.json", "glyd.json", "model.safetensors"})
    test::write_file(dir.path() / "project" / name, "{}");
  fs::create_directory(dir.path() / "noted");
  for (const char* name : {"config.json", "model.safetensors", "zebra.txt", "notes.txt"})
    test::write_file(dir.path() / "noted" / name, "{}");
  CHECK_THAT(error_of(Code::Usage, [&] { io::OutputDirectory(dir.path() / "noted", models_own); }),
             Contains("'notes.txt'") && !Contains("zebra"));
  for (const char* name : {"home", "file", "link", "settings", "project", "noted"}) {
    INFO(name);
    CHECK_THAT(error_of(Code::Usage, [&] { io::OutputDirectory(dir.path() / name, models_own); }), Contains(name));
  }
  fs::create_directory(dir.path() / "empty");
  io::OutputDirectory directory(dir.path() / "empty", models_own);
  directory.commit();
  CHECK(names_in(dir.path()) == std::set<std::string>{"empty", "file", "home", "link", "noted", "project", "settings"});
  CHECK(test::read_file(dir.path() / "home" / "letters.txt") == "dear");
  CHECK(test::read_file(dir.path() / "settings" / "thesis.txt") == "long");
  CHECK(fs::is_directory(dir.path() / "project" / "src"));
  CHECK(fs::exists(dir.path() / "noted" / "notes.txt"));
}

TEST_CASE("A folder that came into being meanwhile is not replaced", "[io][output]") {
  const TempDir dir;
  io::OutputDirectory directory(dir.path() / "out");
  fs::create_directory(dir.path() / "out");
  CHECK_THAT(error_of(Code::Usage, [&] { directory.commit(); }), Contains("exists already"));
}

TEST_CASE("Output that cannot be written is an error that names it", "[io][output]") {
  const TempDir dir;
  CHECK_THAT(error_of(Code::Runtime, [&] { io::OutputDirectory(dir.path() / "no" / "out"); }),
             Contains("no/out") && Contains("No such file") &&
                 Contains("make the directory " + (dir.path() / "no").string() + " first"));
  test::write_file(dir.path() / "taken", "text");
  CHECK_THAT(error_of(Code::Runtime, [&] { io::OutputFile(dir.path() / "taken"); }), Contains("taken"));
  io::OutputFile file(dir.path() / "new");
  CHECK_THAT(error_of(Code::Runtime, [&] { file.resize(std::uint64_t{1} << 63); }), Contains("new"));
}

namespace {

struct Written {
  std::string name;
  io::Dtype dtype;
  std::vector<std::uint64_t> shape;
  std::string data;
};

// Writes these tensors, each planned on its own, and reads all files again. Returns the files' names.
std::set<std::string> check_shards(const std::vector<Written>& tensors, std::uint64_t max_bytes) {
  const TempDir dir;
  std::vector<io::ShardWriter::Planned> plan;
  for (const Written& t : tensors)
    plan.push_back(
        {t.data.size() / 2, io::ShardWriter::header_bytes(t.name, t.shape)});  // may be smaller, says the plan
  io::ShardWriter writer(dir.path(), max_bytes, plan);
  for (const Written& t : tensors) {
    writer.next_planned();
    writer.begin_tensor(t.name, t.dtype, t.shape, t.data.size());
    writer.append(bytes_of(t.data.substr(0, t.data.size() / 3)));
    writer.append(bytes_of(t.data.substr(t.data.size() / 3)));
  }
  const std::size_t files = writer.finish();
  std::set<std::string> names = names_in(dir.path());
  CHECK(names.size() == files + (files > 1));
  std::size_t found = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    const io::Safetensors file = io::Safetensors::open(dir.path() / name);
    CHECK(file.data_begin() % 8 == 0);
    std::uint64_t bytes = 0, with_data = 0;
    for (const Written& t : tensors) {
      const io::Tensor* tensor = file.find(t.name);
      if (tensor == nullptr) continue;
      ++found;
      std::string data(tensor->end - tensor->begin, '\0');
      file.read(*tensor, 0, std::as_writable_bytes(std::span(data.data(), data.size())));
      CHECK((tensor->dtype == t.dtype && tensor->shape == t.shape && data == t.data));
      bytes += data.size();
      with_data += !data.empty();
      if (files > 1) {
        const io::Json index = io::parse_json(test::read_file(dir.path() / "model.safetensors.index.json"), "index");
        CHECK(index.at("weight_map").at(t.name) == name);
      }
    }
    CHECK((bytes <= max_bytes || with_data == 1));
  }
  CHECK(found == tensors.size());
  return names;
}

}  // namespace

TEST_CASE("Shards: sizes, names, index", "[io][shards]") {
  const auto tensor = [](const std::string& name, std::uint64_t bytes) {
    return Written{name, io::Dtype::U8, {bytes}, std::string(bytes, name[0])};
  };
  CHECK(check_shards({tensor("a", 10), tensor("b", 20)}, 100) == std::set<std::string>{"model.safetensors"});
  CHECK(check_shards({tensor("a", 10), tensor("b", 20)}, 30) == std::set<std::string>{"model.safetensors"});
  CHECK(check_shards({tensor("a", 10), tensor("b", 20)}, 29) ==
        std::set<std::string>{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                              "model.safetensors.index.json"});
  CHECK(check_shards({tensor("a", 200), tensor("b", 0), tensor("c", 1), tensor("d", 1)}, 100).size() == 3);
  check_shards({tensor("a", 0), tensor("b", 0)}, 1);
  check_shards({{"\"quoted\"\n\u00e9", io::Dtype::F32, {2, 1}, "12345678"}, {"scalar", io::Dtype::I16, {}, "12"}}, 5);
}

TEST_CASE("Shards: the room kept for a header is always enough", "[io][shards]") {
  const auto seed = GENERATE(range(1u, 21u));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::vector<Written> tensors;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t bytes = random() % 4 == 0 ? 0 : random() % 3000;
    tensors.push_back({std::string(random() % 60, 'n') + std::to_string(i),
                       io::Dtype::U8,
                       {bytes},
                       std::string(bytes, static_cast<char>('a' + i % 26))});
  }
  check_shards(tensors, 1 + random() % 10000);
}
