#pragma once
// Diagnostics on stderr, and in a file where one was asked for. Text that a person asked for goes to stdout, never
// here.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace glyd::log {

enum class Level { Debug, Info, Warning, Error, Off };

// What goes to stderr: everything from `level` up. Info is the default (-v: Debug, -q: Warning).
void set_level(Level level);
bool enabled(Level level);

// Writes everything, whatever the level, to `path` too (appended). Throws Error(Usage) when it cannot be opened. A
// write that fails later (full disk) is reported once on stderr and then ignored.
void set_file(const std::string& path);

// One line; control characters in `message` are escaped. Errors are written as "error: ...", warnings "warning: ...".
void write(Level level, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::Debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::Info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::Warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace glyd::log
