#include "runner/cpu/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "runner/cpu/sizes.h"

namespace glyd::runner::cpu {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// The number at the start of a file; none for "max", or when there is no such file.
std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The number behind `key` in a file of lines "key number ..."; none when it is not there.
std::optional<std::uint64_t> number_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

std::uint64_t left(std::uint64_t limit, std::uint64_t used) { return limit - std::min(limit, used); }

// What one control group leaves, by the file names of its version.
std::uint64_t group_leaves(const fs::path& group, const char* limit_file, const char* usage_file) {
  const auto limit = number_in(group / limit_file);
  const auto usage = number_in(group / usage_file);
  if (!limit || !usage) return kUnlimited;
  const std::uint64_t cache = number_of(group / "memory.stat", "inactive_file").value_or(0) +
                              number_of(group / "memory.stat", "active_file").value_or(0);
  return left(*limit, left(*usage, cache));
}

// The least that the process's control group and those above it leave.
std::uint64_t control_groups_leave(const fs::path& root) {
  std::uint64_t least = kUnlimited;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/path" (version 2) or "4:memory:/path" (version 1)
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && controllers != "memory") continue;

    const fs::path mount = root / (version2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
      least = std::min(least, version2 ? group_leaves(mount / group, "memory.max", "memory.current")
                                       : group_leaves(mount / group, "memory.limit_in_bytes", "memory.usage_in_bytes"));
      if (group.empty()) break;
    }
  }
  return least;
}

std::uint64_t address_space_left(const fs::path& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  const std::uint64_t pages = number_in(root / "proc/self/statm").value_or(0);
  return left(limit.rlim_cur, multiply(pages, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))));
}

}  // namespace

std::uint64_t available_memory(const fs::path& root) {
  const auto kibibytes = number_of(root / "proc/meminfo", "MemAvailable:");
  return std::min(
      {kibibytes ? multiply(*kibibytes, 1024) : kUnlimited, control_groups_leave(root), address_space_left(root)});
}

}  // namespace glyd::runner::cpu
