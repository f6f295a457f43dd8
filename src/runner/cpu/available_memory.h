#pragma once
// How much memory this process may still take.

#include <cstdint>
#include <filesystem>

namespace glyd::runner::cpu {

// The least of: MemAvailable of /proc/meminfo; what the limits of its control group and the groups above leave (page
// cache counted as free); what the address space limit (ulimit -v) leaves. Files that cannot be read set no limit.
// `root` is where /proc and /sys are looked for.
std::uint64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace glyd::runner::cpu
