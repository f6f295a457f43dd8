#pragma once
// Runs the built binary as a child with its own environment, limits and descriptors, and collects what it wrote.

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace glyd::test {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

struct Invocation {
  std::vector<std::string> argv;  // argv[0] picks the command: "glyd-run"
  std::string input;              // stdin
  std::map<std::string, std::string> environment;
  std::filesystem::path directory;  // working directory
  std::string output_to;            // where stdout goes instead of being collected: a path, "closed", "broken-pipe"
  std::chrono::seconds limit{30};
};

struct Outcome {
  int exit_code = -1;  // -1: it did not exit by itself
  int signal = 0;      // that ended it
  bool timed_out = false;
  std::string out, err;
};

// The child sees nothing of this process's environment but PATH, and has 1 GiB of address space (none of that with
// sanitizers, which reserve terabytes).
Outcome run(const Invocation& invocation);

// In a child: sets the limits, the environment and the directory and becomes the binary. Does not return.
[[noreturn]] void become(const Invocation& invocation);

}  // namespace glyd::test
