#include "io/hub_cache.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/error.h"
#include "io/file.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
namespace fs = std::filesystem;

namespace {

// Sets or clears a variable of the environment for the scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old, had_ = true;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Environment() { had_ ? ::setenv(name_, old_.c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

fs::path add_model(const fs::path& cache, const std::string& entry, const std::string& revision) {
  const fs::path snapshot = cache / entry / "snapshots" / revision;
  fs::create_directories(snapshot);
  fs::create_directories(cache / entry / "refs");
  test::write_file(cache / entry / "refs" / "main", revision);
  return snapshot;
}

}  // namespace

TEST_CASE("a directory is itself, a file says what to pass instead", "[io]") {
  const test::TempDir dir;
  CHECK(io::resolve_model(dir.path().string()) == dir.path());
  test::write_file(dir.path() / "model.safetensors", "x");
  test::write_file(dir.path() / "m.gguf", "x");
  CHECK_THROWS_WITH(io::resolve_model((dir.path() / "model.safetensors").string()),
                    Contains("a file; pass the directory") && Contains(": " + dir.path().string()));
  CHECK_THROWS_WITH(io::resolve_model((dir.path() / "m.gguf").string()), Contains("GGUF"));
  CHECK_THROWS_WITH(io::resolve_model((dir.path() / "nothing").string()), Contains("nothing: no such directory"));
  CHECK_THROWS_WITH(io::resolve_model(""), Contains("no such directory"));
}

TEST_CASE("ORG/NAME is looked up in the cache that the environment names", "[io]") {
  const test::TempDir dir;
  const Environment no_cache("HF_HUB_CACHE", nullptr), no_home("HF_HOME", nullptr), no_xdg("XDG_CACHE_HOME", nullptr);
  const Environment home("HOME", dir.path().c_str());
  const fs::path at_home = add_model(dir.path() / ".cache/huggingface/hub", "models--Org--Na.me-1", "aaa");
  CHECK(io::resolve_model("Org/Na.me-1") == at_home);
  {
    const fs::path in_hf = add_model(dir.path() / "hf/hub", "models--Org--Na.me-1", "bbb");
    const Environment hf("HF_HOME", (dir.path() / "hf").c_str());
    CHECK(io::resolve_model("Org/Na.me-1") == in_hf);
    const fs::path direct = add_model(dir.path() / "direct", "models--Org--Na.me-1", "ccc\n");
    fs::create_directories(dir.path() / "direct/models--Org--Na.me-1/snapshots/ccc");
    const Environment hub("HF_HUB_CACHE", (dir.path() / "direct").c_str());
    CHECK(io::resolve_model("Org/Na.me-1") == dir.path() / "direct/models--Org--Na.me-1/snapshots/ccc");
    CHECK_THROWS_WITH(io::resolve_model("Org/Other"),
                      Contains("Org/Other") && Contains((dir.path() / "direct/models--Org--Other").string()) &&
                          Contains("hf download Org/Other"));
  }
}

TEST_CASE("a link in the cache without its file names the cure", "[io]") {
  const test::TempDir dir;
  const fs::path snapshot = add_model(dir.path(), "models--Org--Na--me", "abc");
  fs::create_symlink("../../blobs/123", snapshot / "model.safetensors");
  CHECK(io::hub_name(snapshot) == "Org/Na--me");
  CHECK(io::hub_name("/a/b") == "");
  CHECK(io::hub_name("models--b") == "");
  CHECK_THROWS_WITH(io::File::open(snapshot / "model.safetensors"), Contains("cannot be opened: No such file") &&
                                                                        Contains("a link to ../../blobs/123") &&
                                                                        Contains("hf download Org/Na--me"));
  fs::create_symlink("nowhere", dir.path() / "link");
  CHECK_THROWS_WITH(io::File::open(dir.path() / "link"), Contains("a link to nowhere") && !Contains("hf download"));
  CHECK_THROWS_WITH(io::File::open(dir.path() / "none"), EndsWith("No such file or directory"));
}

TEST_CASE("a damaged cache entry is explained and never left", "[io]") {
  const test::TempDir dir;
  const Environment hub("HF_HUB_CACHE", dir.path().c_str());
  const fs::path entry = dir.path() / "models--a--b";
  const fs::path snapshot = add_model(dir.path(), "models--a--b", "abc");
  fs::create_directories(dir.path() / "outside");
  for (const char* revision : {"../../../outside", "/etc", "..", "", "a/b"}) {
    INFO(revision);
    test::write_file(entry / "refs/main", revision);
    CHECK_THROWS_WITH(io::resolve_model("a/b"), Contains("refs/main") && Contains("hf download a/b"));
  }
  test::write_file(entry / "refs/main", "def");
  CHECK_THROWS_WITH(io::resolve_model("a/b"), Contains("snapshots/def") && Contains("hf download a/b"));
  fs::remove(entry / "refs/main");
  CHECK_THROWS_WITH(io::resolve_model("a/b"), Contains("refs/main is missing") && Contains(snapshot.string()));
  for (const char* name : {"../b", "a/..", "a/b/c", "a b/c", "-", "a/"}) {
    INFO(name);
    CHECK_THROWS_WITH(io::resolve_model(name), Contains("no such directory"));
  }
}
