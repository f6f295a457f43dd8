#pragma once
// What glyd-pack was asked to do, read from its command line.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace glyd::tools {

enum class PackMode { Pack, Unpack, DryRun, Verify };

struct PackOptions {
  PackMode mode = PackMode::Pack;
  std::string model;
  std::string out;  // empty with DryRun and Verify
  std::uint64_t max_shard_bytes = 5'000'000'000;
  int threads = 0;
  bool verify = true;
  bool force = false;
  bool json = false;
  bool verbose = false, quiet = false;
  std::optional<std::string> log_file;
};

// Empty when --help or --version was printed. Throws Error(Usage).
std::optional<PackOptions> parse_pack_options(const std::vector<std::string>& args);

}  // namespace glyd::tools
