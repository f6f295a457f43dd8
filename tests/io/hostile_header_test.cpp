// Headers as large as the format allows, made to cost memory or time: opening them stays under 1 GiB and ends soon.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "base/error.h"
#include "io/safetensors.h"
#include "support/fixtures.h"

using namespace glyd;
using Catch::Matchers::Contains;

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;  // reserves terabytes of address space itself
#else
constexpr bool kSanitized = false;
#endif
constexpr std::size_t kHeaderBytes = kSanitized ? 5'000'000 : 99'000'000;

// `begin`, then `item` as often as fits ("#" in it replaced by a number), then `end`.
std::string large_header(const std::string& begin, const std::string& item, const std::string& end) {
  std::string text = begin;
  text.reserve(kHeaderBytes + 1000);
  const auto hash = item.find('#');
  for (std::size_t i = 0; text.size() < kHeaderBytes; ++i) {
    if (hash == std::string::npos) {
      text += item;
    } else {
      text.append(item, 0, hash).append(std::to_string(i)).append(item, hash + 1);
    }
  }
  return text + end;
}

// Opens the file in a child process that may use 1 GiB; returns the error's text, "opened", or how the child died.
std::string open_in_child(const std::string& header) {
  const test::TempDir dir;
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  test::write_file(dir.path() / "t.safetensors", bytes + header);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string result = "opened";
    try {
      if (!kSanitized) {
        // What the test program itself holds comes on top of what opening may take.
        std::size_t pages = 0;
        if (FILE* statm = std::fopen("/proc/self/statm", "r")) {
          if (std::fscanf(statm, "%zu", &pages) != 1) pages = 0;
          std::fclose(statm);
        }
        const rlim_t limit = (rlim_t{1} << 30) + pages * 4096;
        const rlimit both{limit, limit};
        ::setrlimit(RLIMIT_AS, &both);
      }
      io::Safetensors::open(dir.path() / "t.safetensors");
    } catch (const std::exception& e) {
      result = e.what();
    }
    const ssize_t written = ::write(ends[1], result.data(), result.size());
    ::_exit(written == static_cast<ssize_t>(result.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string result(4096, '\0');
  const ssize_t got = ::read(ends[0], result.data(), result.size());
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "the child died";
  result.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return result;
}

}  // namespace

TEST_CASE("a header of millions of entries is bounded in memory", "[io]") {
  const std::string entries = large_header("{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                           ",\"#\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", "}");
  const std::string result = open_in_child(entries);
  if (kSanitized) {
    CHECK(result == "opened");  // smaller here, and valid
  } else {
    CHECK_THAT(result, Contains("more than 1000000 tensors"));
  }
  // The same name again and again is found by sorting, not by comparing each with all.
  CHECK_THAT(open_in_child(
                 large_header("{\"x\":{\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
                              "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],\"data_offsets\":[0,0]}",
                              ",\"x\":{\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
                              "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],\"data_offsets\":[0,0]}",
                              "}")),
             Contains("'x' is given twice"));
}

TEST_CASE("other ways to make a large header are bounded too", "[io]") {
  CHECK_THAT(open_in_child(large_header("{\"__metadata__\":{\"x\":\"\"", ",\"#\":\"\"", "}}")),
             Contains("__metadata__"));
  CHECK_THAT(open_in_child(large_header("{\"a\":{\"x\":0", ",\"#\":0", "}}")), Contains("unknown fields"));
  CHECK_THAT(open_in_child(large_header("{\"a\":{\"x\":[", "{},", "0]}}")), Contains("dtype is missing"));
  CHECK_THAT(open_in_child(large_header("{\"a\":{\"shape\":[0", ",0", "]}}")), Contains("more than 4096"));
  CHECK_THAT(open_in_child(large_header("", "[", "")), Contains("a list where an object"));
  CHECK_THAT(open_in_child(large_header("{\"a\":", "{\"a\":", "")), Contains("nested deeper") || Contains("'a'"));
  CHECK_THAT(open_in_child(large_header("{\"a\":{\"x\":", "[", "")), Contains("nested deeper than 16"));
  CHECK_THAT(open_in_child(large_header("{\"", "nn", "")), Contains("not valid JSON"));
  CHECK_THAT(open_in_child(large_header("{\"", "nn", "\":0}")), Contains("nnn") && Contains("an object"));
  CHECK_THAT(open_in_child(large_header("{\"a\":{\"shape\":[", "1", "]}}")), Contains("'a'") && Contains("shape"));
  CHECK_THAT(open_in_child(large_header("{\"a\":{\"dtype\":\"", "\\u0001", "\"}}")), Contains("unknown dtype"));
  CHECK_THAT(open_in_child(large_header("", " ", "")), Contains("not valid JSON"));
}
