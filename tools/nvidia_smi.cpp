#include "nvidia_smi.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>

namespace glyd::tools {

std::optional<std::uint64_t> driver_memory_used(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string gpu = "0";
  for (const auto& [name, value] : facts) {
    const bool plain = std::all_of(value.begin(), value.end(), [](char c) { return c == '-' || std::isalnum(c) != 0; });
    if (name == "uuid" && plain && !value.empty()) gpu = value;
  }
  const std::string command =
      "timeout 5 nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i " + gpu + " 2>/dev/null";
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (!pipe) return std::nullopt;
  char line[64] = {};
  const bool got = std::fgets(line, sizeof line, pipe) != nullptr;
  std::uint64_t mebibytes = 0;
  const bool ended_well = ::pclose(pipe) == 0;
  if (!got || !ended_well || std::from_chars(line, line + sizeof line, mebibytes).ec != std::errc{})
    return std::nullopt;
  return mebibytes << 20;
}

}  // namespace glyd::tools
