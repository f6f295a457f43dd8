// glyd-pack where case files do not reach: signals, full disks, what is left on the disk afterwards.

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include "io/json.h"
#include "io/safetensors.h"
#include "process.h"
#include "support/fixtures.h"

namespace glyd::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

std::map<std::string, std::string> read_tree(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    files[entry.path().filename().string()] = entry.is_directory() ? "a folder" : read_file(entry.path());
  }
  return files;
}

Outcome glyd_pack(const std::vector<std::string>& arguments) {
  Invocation invocation;
  invocation.argv = {"glyd-pack"};
  invocation.argv.insert(invocation.argv.end(), arguments.begin(), arguments.end());
  return run(invocation);
}

// Runs glyd-pack in a child that `prepare` has changed; `meanwhile` sees its process id. Returns the status of waitpid.
int pack_in_child(const std::vector<std::string>& arguments, const std::function<void()>& prepare,
                  const std::function<void(pid_t)>& meanwhile, const fs::path& error_file) {
  Invocation invocation;
  invocation.argv = {"glyd-pack"};
  invocation.argv.insert(invocation.argv.end(), arguments.begin(), arguments.end());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (std::freopen(error_file.c_str(), "w", stderr) == nullptr) ::_exit(96);
    prepare();
    become(invocation);
  }
  meanwhile(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// Large enough that packing takes many times longer than noticing that it has begun.
void write_larger_model(const fs::path& dir) {
  fs::create_directory(dir);
  write_formula_model(dir, tiny_config("llama", {{"vocab_size", 20000}, {"hidden_size", 256}, {"head_dim", 64}}));
}

bool has_partial(const fs::path& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().find(".partial-") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("Packing that is interrupted leaves nothing", "[tools][pack]") {
  const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP);
  INFO("signal " << signal);
  const TempDir dir, errors;
  write_larger_model(dir.path() / "model");
  // A machine that is busy enough could end the work before the signal comes; that is no fault, but shows nothing.
  bool seen = false;
  for (int attempt = 0; attempt < 5 && !seen; ++attempt) {
    const auto interrupt = [&](pid_t child) {
      for (int i = 0; i < 5000 && !has_partial(dir.path()); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ::kill(child, signal);
    };
    const int status = pack_in_child(
        {(dir.path() / "model").string(), (dir.path() / "out").string()}, [] {}, interrupt, errors.path() / "err");
    REQUIRE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 0) {
      fs::remove_all(dir.path() / "out");
      continue;
    }
    seen = true;
    CHECK(WEXITSTATUS(status) == 130);
    CHECK(read_tree(dir.path()).size() == 1);
    CHECK_THAT(read_file(errors.path() / "err"), Contains("interrupted"));
  }
  CHECK(seen);
}

TEST_CASE("A terminal that goes away does not end what nohup started", "[tools][pack]") {
  const TempDir dir, errors;
  write_larger_model(dir.path() / "model");
  const auto hang_up = [&](pid_t child) {
    for (int i = 0; i < 5000 && !has_partial(dir.path()); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(child, SIGHUP);
  };
  const int status = pack_in_child(
      {(dir.path() / "model").string(), (dir.path() / "out").string()}, [] { ::signal(SIGHUP, SIG_IGN); }, hang_up,
      errors.path() / "err");
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("What an impatient second Ctrl-C leaves is named, then and by the next run", "[tools][pack]") {
  const TempDir dir, errors;
  write_larger_model(dir.path() / "model");
  const std::vector<std::string> arguments = {(dir.path() / "model").string(), (dir.path() / "out").string()};
  bool seen = false;
  for (int attempt = 0; attempt < 20 && !seen; ++attempt) {
    const auto interrupt_twice = [&](pid_t child) {
      for (int i = 0; i < 5000 && !has_partial(dir.path()); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ::kill(child, SIGINT);
      ::kill(child, SIGTERM);  // another one, so that the two do not become one
    };
    const int status = pack_in_child(
        arguments, [] {}, interrupt_twice, errors.path() / "err");
    REQUIRE(WIFEXITED(status));
    seen = has_partial(dir.path());
    if (!seen) fs::remove_all(dir.path() / "out");
  }
  REQUIRE(seen);
  std::string partial;
  for (const auto& [name, content] : read_tree(dir.path())) {
    if (name.starts_with("out.partial-")) partial = name;
  }
  const std::string said = read_file(errors.path() / "err");
  CHECK_THAT(said, Contains("error: interrupted") && Contains("remove " + (dir.path() / partial).string() + "\n"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);

  const Outcome next = glyd_pack({arguments[0], arguments[1], "-q"});
  CHECK(next.exit_code == 0);
  CHECK_THAT(next.err, Contains("warning: " + (dir.path() / partial).string()) && Contains("can be removed"));
  CHECK(std::count(next.err.begin(), next.err.end(), '\n') == 1);
  CHECK(fs::exists(dir.path() / partial));
}

TEST_CASE("A disk that is too small is one clear line, and nothing is left", "[tools][pack]") {
  const TempDir dir, errors;
  const std::string model = shipped_model("tiny-austen-qwen2").string(), out = (dir.path() / "out").string();
  const rlim_t most = GENERATE(0, 5000, 100'000, 2'000'000);
  INFO("files of at most " << most << " bytes");
  const auto limit = [&] {
    const rlimit bytes{most, most};
    ::setrlimit(RLIMIT_FSIZE, &bytes);
    ::dup2(STDOUT_FILENO, STDERR_FILENO);  // the limit would hold for a file of messages too
  };
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const int status = pack_in_child(
      {model, out}, [&] { ::dup2(ends[1], STDOUT_FILENO), limit(); }, [](pid_t) {}, errors.path() / "err");
  ::close(ends[1]);
  std::string said(4096, '\0');
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], said.data(), said.size()))));
  ::close(ends[0]);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 1);
  CHECK_THAT(said, Contains("error: ") && Contains("out.partial-") && Contains("File too large"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
  CHECK(read_tree(dir.path()).empty());
}

TEST_CASE("Too few open files name the cure", "[tools][pack]") {
  const TempDir dir, errors;
  const std::string model = shipped_model("tiny-austen-qwen2").string(), packed = (dir.path() / "packed").string();
  REQUIRE(glyd_pack({model, packed, "-q", "--max-shard-size", "300KB"}).exit_code == 0);
  const auto limit = [] {
    const rlimit files{12, 12};
    ::setrlimit(RLIMIT_NOFILE, &files);
  };
  const int status = pack_in_child(
      {"--verify", packed}, limit, [](pid_t) {}, errors.path() / "err");
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  CHECK_THAT(read_file(errors.path() / "err"), Contains("Too many open files") && Contains("ulimit -n"));
}

TEST_CASE("A file that may not be read is named, and nothing is left", "[tools][pack]") {
  if (::geteuid() == 0) {
    WARN("root may read everything: skipped");
    return;
  }
  const TempDir dir;
  fs::copy(shipped_model("tiny-austen-qwen2"), dir.path() / "model");
  const char* name = GENERATE("model.safetensors", "tokenizer.json");
  ::chmod((dir.path() / "model" / name).c_str(), 0);
  const Outcome outcome = glyd_pack({(dir.path() / "model").string(), (dir.path() / "out").string()});
  CHECK(outcome.exit_code == 3);
  CHECK_THAT(outcome.err, Contains(name) && Contains("Permission denied"));
  CHECK(read_tree(dir.path()).size() == 1);
}

TEST_CASE("glyd-pack packs, verifies, unpacks and reports in JSON", "[tools][pack]") {
  const TempDir dir;
  const std::string model = shipped_model("tiny-austen-qwen2").string(), packed = (dir.path() / "packed").string(),
                    back = (dir.path() / "back").string();
  const auto json_of = [](const Outcome& outcome) {
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return io::parse_json(outcome.out, "stdout");
  };
  const io::Json dry = json_of(glyd_pack({model, "--dry-run", "--json", "-q"}));
  CHECK(read_tree(dir.path()).empty());
  const io::Json report =
      json_of(glyd_pack({model, packed, "--json", "-q", "--threads", "1", "--max-shard-size", "1MB"}));
  CHECK(report.at("verified") == true);
  CHECK(report.at("files") == 3);
  CHECK(report.at("classes") == dry.at("classes"));
  CHECK(report.at("bytes_before") ==
        fs::file_size(fs::path(model) / "model.safetensors") - 8 -
            io::Safetensors::open(fs::path(model) / "model.safetensors").header_text().size());
  CHECK(glyd_pack({"--verify", packed}).exit_code == 0);
  CHECK(json_of(glyd_pack({"--unpack", packed, back, "--json"})).at("bytes") ==
        fs::file_size(fs::path(model) / "model.safetensors"));
  CHECK(read_tree(back) == read_tree(model));

  // Now it is in the way.
  CHECK(glyd_pack({model, packed}).exit_code == 2);
  CHECK(glyd_pack({model, packed, "--force"}).exit_code == 0);
  CHECK_FALSE(fs::exists(fs::path(packed) / "model.safetensors.index.json"));
}

}  // namespace glyd::test
